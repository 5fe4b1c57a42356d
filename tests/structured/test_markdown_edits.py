"""What a user can have filled in Markdown, and what stays as it is around it."""

import re
from collections.abc import Sequence

import pytest

from caesura.automata.dfa import Dfa
from caesura.automata.regex import matching
from caesura.server.structured.markdown.edits import completion, offers
from caesura.server.structured.markdown.patterns import Inline, body
from caesura.server.structured.offer import NoOffer, Offer
from caesura.wire import Hole, Pattern

from ..support.commonmark import edited, fills, links, marks, problem, walker

FRUIT = """\
# Fruit

| Name  | Count | Note |
|:------|------:|:----:|
| apple |    12 |  ok  |
| fig   |     3 |      |

See [the list](#fruit).
"""


def place(source: str) -> tuple[str, int, int]:
    """The text, and the cursor or the selection that is marked in it."""
    start, end = source.index("¦"), source.rindex("¦")
    return source.replace("¦", ""), start, max(start, end - 1)


def titles(source: str) -> list[str]:
    return [offer.title for offer in offers(*place(source))]


def offered(source: str, title: str) -> Offer:
    return next(offer for offer in offers(*place(source)) if offer.title == title)


def filled(source: str, title: str, *words: str) -> str:
    """The text after the edit, which its own check lets through."""
    text, _, _ = place(source)
    offer = offered(source, title)
    new = edited(text, offer, words)
    assert offer.check(new) is None
    return new


def typed(source: str, *words: str) -> str | None:
    text, at, _ = place(source)
    offer = completion(text, at)
    if offer is None:
        return None
    assert offer.start == at
    new = edited(text, offer, words)
    assert offer.check(new) is None
    return new


def refusal(source: str) -> str:
    with pytest.raises(NoOffer) as raised:
        offers(*place(source))
    assert str(raised.value).endswith(".")
    return str(raised.value)


def patterns(offer: Offer) -> list[str]:
    return [hole.grammar.regex for hole in offer.holes if isinstance(hole.grammar, Pattern)]


def first(source: str) -> Dfa:
    """What the first hole of an offer at the typing cursor takes."""
    text, at, _ = place(source)
    offer = completion(text, at)
    assert offer is not None
    return matching(patterns(offer)[0], whole=True)


# Tables


def test_a_row_is_added_below_the_cursor_in_the_columns_of_an_aligned_table() -> None:
    new = filled(FRUIT.replace("apple", "app¦le"), "Add a row below", "kiwi", "7", "x")
    assert new == FRUIT.replace("| fig ", "| kiwi  |     7 |  x   |\n| fig ")


def test_bars_are_fixed_and_every_cell_is_a_hole() -> None:
    offer = offered(FRUIT.replace("fig", "f¦ig"), "Add a row below")
    kinds = [type(segment) is Hole for segment in offer.segments]
    assert kinds == [False, True, False, True, False, True, False]


def test_a_cell_that_is_wider_than_its_column_widens_the_whole_column() -> None:
    new = filled(FRUIT.replace("fig", "f¦ig"), "Add a row below", "watermelon", "1", "x")
    assert new.splitlines()[2:7] == [
        "| Name       | Count | Note |",
        "|:-----------|------:|:----:|",
        "| apple      |    12 |  ok  |",
        "| fig        |     3 |      |",
        "| watermelon |     1 |  x   |",
    ]


def test_a_column_is_added_across_all_rows_and_padded() -> None:
    new = filled(FRUIT.replace("apple", "app¦le"), "Add a column to the right", "Colour", "red", "green")
    assert new.splitlines()[2:6] == [
        "| Name  | Colour | Count | Note |",
        "|:------|--------|------:|:----:|",
        "| apple | red    |    12 |  ok  |",
        "| fig   | green  |     3 |      |",
    ]


@pytest.mark.parametrize(
    ("source", "title", "known"),
    [
        (FRUIT.replace("apple", "app¦le"), "Add a column to the right", ["Name", "Count", "Note"]),
        (FRUIT.replace("apple", "app¦le"), "Add a row below", ["apple", "fig"]),
        ("- one\n- two words¦\n  - one more\n- a (b)\n", "Add an item below", ["one", "two words", "a (b)"]),
        ("1. [ ] one\n2. [x] two¦\n", "Add an item below", ["one", "two"]),
        ("- one\n- ¦\n- two words\n", "Fill the item", ["one", "two words"]),
        ("1. [ ] one\n1. [ ] ¦\n1. [ ] two\n", "Fill the item", ["one", "two"]),
        ("> - one\n> - ¦\n> - two\n", "Fill the item", ["one", "two"]),
        ("# one\n\n## ¦\n\n## two\n", "Fill the heading", ["one", "two"]),
        ("| a | b |\n|---|---|\n| one | 1 |\n| ¦ |  |\n| two | 2 |\n", "Fill the 2 empty cells", ["one", "two"]),
    ],
)
def test_a_new_column_row_item_or_heading_is_none_that_is_there(source: str, title: str, known: list[str]) -> None:
    text = matching(patterns(offered(source, title))[0], whole=True)
    assert not any(map(text.accepts, known))
    assert all(text.accepts(f"{one}s") for one in ("another", *known))


def test_a_row_repeats_a_first_cell_only_where_others_do() -> None:
    head = "| a | b |\n|---|---|\n| one | 1 |\n| one more | 2 |\n"
    assert [first(head + "| ¦").accepts(text) for text in ("one", "one more", "two")] == [False, False, True]
    assert [first(head + "| one¦").accepts(text) for text in (" more", " less", "s")] == [False, True, True]
    assert first(head + "| one | 3 |\n| ¦").accepts("one")
    assert first(head + "| x | ¦").accepts("one")


def test_empty_cells_are_offered_first_and_keep_the_alignment() -> None:
    source = FRUIT.replace("fig", "f¦ig")
    assert titles(source) == ["Fill the empty cell", "Add a row below", "Add a column to the right"]
    assert filled(source, "Fill the empty cell", "no") == FRUIT.replace("3 |      |", "3 |  no  |")


def test_selected_cells_are_replaced() -> None:
    text = "a | b\n--- | ---\n¦1 | 2¦\n"
    assert filled(text, "Replace the 2 cells", "x", "y") == "a | b\n--- | ---\nx | y\n"
    assert "cuts a cell" in refusal(FRUIT.replace("apple", "a¦ppl¦e"))
    assert "no whole cell" in refusal(FRUIT.replace("|:------|", "|¦:------¦|"))


@pytest.mark.parametrize(
    ("source", "row"),
    [
        ("|a|b|\n|-|-|\n|1|2¦|\n", "|x|y|\n"),
        ("a | b\n-|-\n1 | 2¦", "\nx | y"),
        ("> | a | b |\n> | - | - |\n> | 1 | 2¦ |\n>\n> c\n", "> | x | y |\n"),
        ("- | a | b |\n  |---|---|\n  | ¦1 | 2 |\n- c\n", "  | x | y |\n"),
        ("| a | b |\r\n|--|--|\r\n| ¦1 | 2 |\r\n", "| x | y |\r\n"),
        ("| ¦a | b |\n|---|---|\n", "| x | y |\n"),
        ("| a | b |\n|---|---|\n| ¦1 |\n", "| x | y |\n"),
    ],
)
def test_a_row_is_written_as_the_rows_of_the_table_are(source: str, row: str) -> None:
    text, _, _ = place(source)
    new = filled(source, "Add a row below", "x", "y")
    assert new.replace(row, "", 1) == text
    assert problem(text, offered(source, "Add a row below"), ["x", "y"]) is None


def test_wide_characters_take_two_columns() -> None:
    source = "| a    | b |\n|------|---|\n| 日本 | ¦1 |\n"
    assert filled(source, "Add a row below", "語", "2").endswith("\n| 語   | 2 |\n")


def test_a_table_with_more_rows_than_holes_gets_no_column() -> None:
    source = "| a |\n|---|\n" + "| 1 |\n" * 16 + "| ¦2 |\n"
    assert titles(source) == ["Add a row below"]


def test_a_table_without_the_right_number_of_cells_is_no_table() -> None:
    refusal("| a | ¦b |\n|---|\n")
    refusal("```\n| a |\n|---|\n| ¦1 |\n```\n")
    refusal("    | a |\n    |---|\n    | ¦1 |\n")
    refusal("<!--\n| a |\n|---|\n| ¦1 |\n-->\n")


def test_a_row_that_has_begun_goes_on_to_its_end() -> None:
    head = "| a   | b   |\n|-----|-----|\n| one | two |\n"
    assert typed(head + "| ¦", "x", "y") == head + "| x   | y   |"
    assert typed(head + "| si¦\n", "x", "y") == head + "| six | y   |\n"
    assert typed(head + "| x | ¦ |\n", "y") == head + "| x | y |\n"
    assert typed(head + "| x | y |¦\n") is None
    assert typed(head.replace("two", "t¦wo")) is None


def test_the_rest_of_a_cell_counts_what_was_typed() -> None:
    head = "| a |\n|---|\n"
    text, at, _ = place(head + "| `x` y¦")
    offer = completion(text, at)
    assert offer is not None
    [rest] = patterns(offer)
    assert all(re.fullmatch(rest, more) for more in ["z", " z", "-z `q`"])
    assert not any(re.fullmatch(rest, more) for more in ["", " ", "|", "`", "\n"])


def test_a_code_span_that_a_cell_leaves_open_is_closed() -> None:
    head = "| a   | b   |\n|-----|-----|\n| one | two |\n"
    text, at, _ = place(head + "| `x¦")
    offer = completion(text, at)
    assert offer is not None
    rest = patterns(offer)[0]
    assert all(re.fullmatch(rest, more) for more in ["`", "y`", " y` z", r"\|y`", "()` `q`"])
    assert not any(re.fullmatch(rest, more) for more in ["", "y", "y|`", "``", "`z", "`\n"])
    empty = completion(head + "| `", len(head) + 3)
    assert empty is not None
    assert not re.fullmatch(patterns(empty)[0], "` x")  # no code without a word
    assert typed(head + "| `x¦", "`", "y") == head + "| `x` | y   |"
    assert typed(head + "| `x¦` | y |\n", "z") == head + "| `xz` | y |\n"  # which the editor has closed
    assert typed(head + "| `x` `y¦", "`", "z") == head + "| `x` `y` | z   |"


# Lists and headings


@pytest.mark.parametrize(
    ("source", "new"),
    [
        ("- a¦\n- b\n", "- a\n- x\n- b\n"),
        ("* a\n* b¦", "* a\n* b\n* x"),
        ("1. a\n2. b¦\n", "1. a\n2. b\n3. x\n"),
        ("1. a\n1. b¦\n", "1. a\n1. b\n1. x\n"),
        ("9) a¦\n", "9) a\n10) x\n"),
        ("1. a¦\n2. b\n   more\n3. c\n", "1. a\n2. x\n3. b\n   more\n4. c\n"),
        ("8. a¦\n9. b\n", "8. a\n9. x\n9. b\n"),  # a longer number would move what is in its item
        ("- a¦\n\n- b\n\ntext\n", "- a\n\n- x\n\n- b\n\ntext\n"),
        ("- a\n  - b¦\n- c\n", "- a\n  - b\n  - x\n- c\n"),
        ("- a¦\n  - b\n- c\n", "- a\n  - b\n- x\n- c\n"),
        ("- [x] a¦\n", "- [x] a\n- [ ] x\n"),
        ("> 1.  a¦\n>     more\n", "> 1.  a\n>     more\n> 2.  x\n"),
        ("- a¦\r\n  ```\r\n  b\r\n  ```\r\n", "- a\r\n  ```\r\n  b\r\n  ```\r\n- x\r\n"),
        ("- > a¦\n", "- > a\n- x\n"),
        ("- a¦\n  ```\n  not closed\n", "- a\n  ```\n  not closed\n- x\n"),
        ("- a\n\n  ¦\n- b\n", "- a\n\n- x\n\n  \n- b\n"),
    ],
)
def test_an_item_is_added_with_the_marker_the_indent_and_the_spacing_of_its_list(source: str, new: str) -> None:
    text, _, _ = place(source)
    assert filled(source, "Add an item below", "x") == new
    assert problem(text, offered(source, "Add an item below"), ["x"]) is None


def test_an_item_is_refused_where_what_follows_would_become_part_of_it() -> None:
    assert "blank line" in refusal("- # a¦\ntext\n")


@pytest.mark.parametrize(
    ("source", "new"),
    [
        ("- ¦", "- x"),
        ("-¦", "- x"),
        ("3. ¦\n4. b\n", "3. x\n4. b\n"),
        ("- [ ] ¦\n", "- [ ] x\n"),
        ("> - a\n>   - ¦\n", "> - a\n>   - x\n"),
        ("a line\n- ¦\n", "a line\n- x\n"),
        ("## ¦\n\ntext\n", "## x\n\ntext\n"),
        ("- # ¦\n", "- # x\n"),
    ],
)
def test_an_item_or_a_heading_that_has_begun_gets_its_text(source: str, new: str) -> None:
    assert typed(source, "x") == new
    assert edited(place(source)[0], offers(*place(source))[0], ["x"]) == new


@pytest.mark.parametrize(
    "source", ["a¦", "- a¦", "# a¦", "¦", "```\n- ¦\n```\n", "    # ¦", "a\n2. ¦", "- ¦\nlazy\n", "a | ¦"]
)
def test_prose_code_and_what_would_take_in_other_lines_go_the_ordinary_way(source: str) -> None:
    assert typed(source) is None


# Fences


def test_an_empty_fence_gets_lines_that_do_not_close_it() -> None:
    source = "> - ~~~python\n>   ¦\n>   ~~~\n"
    assert filled(source, "Fill the code", "a = 1\n>\n>   b = 2") == (
        "> - ~~~python\n>   a = 1\n>\n>   b = 2\n>   ~~~\n"
    )
    [pattern] = patterns(offered(source, "Fill the code"))
    assert not re.fullmatch(pattern, "a\n>   ~~~")
    assert not re.fullmatch(pattern, "a\nb")  # it would leave the quote


def test_code_is_checked_in_the_language_of_its_fence() -> None:
    text, _, _ = place("```js\n¦```\n")
    offer = offered("```js\n¦```\n", "Fill the code")
    assert offer.level == "parses"
    assert offer.check(edited(text, offer, ["f(1);"])) is None
    assert offer.check(edited(text, offer, ["f(1"])) == "The code in the fence does not parse as javascript."
    assert offered("```nothing-known\n¦```\n", "Fill the code").level == "valid"


def test_a_fence_at_the_end_of_the_text_is_closed() -> None:
    assert filled("```python\n¦", "Fill the code", "a = 1") == "```python\na = 1\n```\n"


def test_a_fence_without_a_language_gets_one() -> None:
    offer = offered("```¦\na\n```\n", "Fill the language of the code")
    [pattern] = patterns(offer)
    assert re.fullmatch(pattern, "python")
    assert not re.fullmatch(pattern, "pythonic")
    refusal("```py\na¦\n```\n")


# Links


def test_a_link_goes_to_what_the_document_has() -> None:
    source = (
        "# One thing\n\n## One thing\n\nsee [x](¦) or [y](docs/a.md), <https://example.org/b> and ![i](pic.png)\n\n"
        "[ref]: https://example.org/c 'title'\n"
    )
    [pattern] = patterns(offered(source, "Fill the link's target"))
    known = ["#one-thing", "#one-thing-1", "docs/a.md", "https://example.org/b", "https://example.org/c"]
    assert all(re.fullmatch(pattern, target) for target in known)
    assert not any(re.fullmatch(pattern, target) for target in ["", "pic.png", "docs/b.md", "https://example.org/"])
    assert patterns(
        offered(source.replace("¦", "").replace("![i](pic.png)", "![i](pic.png) ![j](¦)"), "Fill the link's target")
    ) == ["(?:pic\\.png)"]


def test_a_link_without_any_known_target_is_refused() -> None:
    assert "no other link" in refusal("see [x](¦)\n")


def test_a_link_gets_its_text() -> None:
    assert filled("see [¦](docs/a.md)\n", "Fill the link's text", "the manual") == "see [the manual](docs/a.md)\n"


def test_brackets_in_code_are_no_link() -> None:
    refusal("# a\n\n`[x](¦)`\n")


# Front matter


def test_front_matter_is_yaml() -> None:
    source = "---\ntitle: ¦\ntags: [a]\n---\n\n# Text\n"
    assert filled(source, 'Fill the value of "title"', "A word") == source.replace("¦", "A word")
    offer = offered(source, 'Fill the value of "title"')
    assert offer.check(source.replace("¦", "x\n---\n")) is not None
    refusal("---\ntitle: a\n--¦-\n")


# Grammars


WALK = walker(7)
KNOWN = Inline(["https://example.org/a", "docs/x.md", "#setup"], ["ref"])


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (
            Inline().cell,
            ["a", "a b", "`x\\|y`", "Hello!", "x: y", "1 < 2", "@name", "a/b", "\\|", "a!=b", "语"],
            ["", " a", "a ", "a  b", "a|b", "`a", "a`b", "<b>", "http://x", "(www.x", "a@b.c", "[x](y)", "![a](b)",
             "a\\", "<http://x>", "[a]: b", "a\nb", "a\tb", "a\u00a0b", "[ ] x", "`a|b`", "a\u200bb"],
        ),
        (
            KNOWN.cell,
            ["[t](docs/x.md)", "see [the `x`](#setup), ok", "https://example.org/a", "[t][ref]"],
            ["![t](docs/x.md)", "[t](docs/y.md)", "https://example.org/b", "https://example.org/ab", "[t][r]", "[t]"],
        ),
        (
            Inline().item,
            ["-a", "*a* b", "**b**", "#tag", "1.5 x", "a | b", "~~x~~", "a - b"],
            ["- a", "-", "1. a", "1)", "# a", "#", "> a", ">", "***", "* * *", "---", "~~~", "===", "+ a", "```"],
        ),
        (Inline().first_cell, ["a", "*a*"], ["- a", "# a", "> a", "1. a", "a|b"]),
        (Inline().heading, ["a", "C# code"], ["a #", "#", "C#", "a\nb"]),
        (Inline().link_text, ["a `b` c"], ["a]", "[a", "a](b)", "a|b"]),
        (body("```", "", "\n"), ["a", "  a\n\n\tb", "`a`\n``b``"],
         ["", "\na", "a\n", "a\n```", "a\n   ````\nb", "a\n  "]),
        (body("~~~", "> ", "\r\n"), ["a\r\n> b", "a\r\n>\r\n> b"], ["a\nb", "a\r\nb", "a\r\n> ~~~"]),
    ],
)  # fmt: skip
def test_a_grammar_takes_what_keeps_its_place_and_nothing_else(
    pattern: str, good: Sequence[str], bad: Sequence[str]
) -> None:
    compiled = matching(pattern, whole=True)
    assert [text for text in good if not (re.fullmatch(pattern, text) and compiled.accepts(text))] == []
    assert [text for text in bad if re.fullmatch(pattern, text) or compiled.accepts(text)] == []


def test_the_automata_of_a_document_with_many_targets_stay_small() -> None:
    many = Inline([f"https://example{n}.org/{n * 7919}" for n in range(500)], [f"label {n}" for n in range(500)])
    assert len(matching(many.cell, whole=True).rows) < 2_000
    source = "".join(f"[a](https://example{n}.org/{n * 7919})\n" for n in range(500)) + "[b](¦)\n"
    [pattern] = patterns(offered(source, "Fill the link's target"))
    assert 50 < len(matching(pattern, whole=True).rows) < 4_000
    assert "example499" in pattern  # the nearest
    assert "example1." not in pattern


@pytest.mark.parametrize(
    "source",
    [
        *(FRUIT.replace("fig", mark) for mark in ("f¦ig", "¦fig¦")),
        FRUIT.replace("# Fruit", "# ¦"),
        FRUIT.replace("#fruit", "¦"),
        "> a | b\n> -|-\n> 1 | 2¦\n",
        "1. a\n   - [ ] b¦\n2. c\n",
        "- ¦\n- [b](c)\n\n[r]: c\n\n```\n```\n",
        "- ~~~x\n  ¦\n  ~~~\n- b\n",
    ],
)
def test_whatever_a_grammar_takes_leaves_the_structure_as_it_was(source: str) -> None:
    text, start, end = place(source)
    for offer in offers(text, start, end):
        for size in (1, 5, 20):
            drawn = fills(offer, WALK, size)
            new = edited(text, offer, drawn)
            assert offer.check(new) is None
            assert problem(text, offer, drawn) is None
            assert links(new) <= links(text) | {"#fruit", "c"}


# The check


def test_a_check_refuses_what_a_grammar_would_not_take() -> None:
    row = offered(FRUIT.replace("fig", "f¦ig"), "Add a row below")
    assert "cells" in str(row.check(edited(FRUIT, row, ["a | b", "c", "d"])))
    assert "structure" in str(row.check(edited(FRUIT, row, ["a", "c", "d |\n\n# e"])))
    item = offered("- a¦\n- b\n", "Add an item below")
    assert item.check(edited("- a\n- b\n", item, ["- nested"])) is not None
    assert item.check(edited("- a\n- b\n", item, ["[a]: b"])) is not None
    assert item.check(edited("- a\n- b\n", item, ["x"]).replace("- b", "b")) is not None


def test_text_outside_of_the_edit_is_as_it_was() -> None:
    for offer in offers(*place(FRUIT.replace("fig", "f¦ig"))):
        new = edited(FRUIT, offer, ["a very long text"] * len(offer.holes))
        assert new.startswith("# Fruit\n\n")
        assert new.endswith("\n\nSee [the list](#fruit).\n")
        assert marks(new) != marks(FRUIT)


def test_a_document_that_is_too_long_is_refused() -> None:
    assert "longer than" in refusal("¦" + "a\n" * 150_001)


@pytest.mark.parametrize(
    "source",
    [
        "- token: {}\n- a\n- ¦\n",
        "# token: {}\n\na\n\n# ¦\n",
        "| a | b |\n|---|---|\n| token: {} | c |\n| ¦ |  |\n",
        "[a](https://user:{}@example.org)\n\n[b](¦) [c](https://example.org)\n",
        "- [a](https://user:{}@example.org)\n- a\n- ¦\n",
    ],
)
def test_no_secret_of_the_document_is_in_a_grammar(source: str) -> None:
    token = "ghp_" + "1aB2" * 9
    source = source.format(token)
    found = [*offers(*place(source)), completion(*place(source)[:2])]
    patterns = [
        one.grammar.regex for offer in found if offer for one in offer.holes if isinstance(one.grammar, Pattern)
    ]
    assert patterns
    assert not any(token in re.sub(r"\\(.)", r"\1", pattern) for pattern in patterns)
