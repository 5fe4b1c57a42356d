"""The blocks of Markdown: lines and columns as markdown-it has them, what it lacks, and bounds on its time."""

import time
from collections.abc import Callable
from itertools import product

import pytest

from caesura.server.structured.markdown.blocks import cells, lines_of, read
from caesura.server.structured.offer import NoOffer

from ..support.commonmark import blocks, paragraphs

PIECES = (
    "- ",
    "1. ",
    "> ",
    "# ",
    "```",
    "    ",
    "  ",
    "\t",
    "a",
    "| a | b |",
    "|---|---|",
    "---",
    "===",
    "\n",
    "\n\n",
    "<div>",
    "<!--",
)


def structure(text: str) -> list[tuple[int, str, int]]:
    return [(e.depth - 1, e.kind, e.first) for e in read(text).shape() if e.kind not in ("definition", "front")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "a\r\nb\rc\n",
        "# a\n## b #\n#c\n\na\n---\nb\n===\n",
        "> a\nlazy\n> > b\n>\n> c\n",
        "- a\n  - b\n\n    c\n- d\n* e\n",
        "1. a\n2. b\n3) c\n\ntext\n2. none\n",
        "```py\n# a\n- b\n```\n~~~\n```\n",
        "- ```\n  a\n  | b |\n  |---|\n- c\n",
        "    | a |\n    |---|\n\n\t- b\n",
        "<div>\n| a |\n|---|\n</div>\n\n<!-- \n- a\n\n# b\n-->\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n3\n\ntext\n",
        "text\n| a | b |\n|---|:-:|\n| `x\\|y` | 2 |\n> quote\n",
        "| a | b |\n|---|\nno table\n",
        "> | a |\n> |---|\n> | 1 |\nbehind\n",
        "[a]: b\n[c]:\n  d 'e'\ntext\n",
        "[a]: b\n===\n",
        "* * *\n- - a\n+\n\n  b\n",
        "-\t\ta\n- \tb\n\n\t\tc\n",
    ],
)
def test_blocks_are_where_markdown_it_has_them(text: str) -> None:
    assert structure(text) == blocks(text)


def test_blocks_and_columns_are_where_markdown_it_has_them_whatever_stands_together() -> None:
    for pieces in product(PIECES, repeat=3):
        text = "".join(pieces) + "a"
        tree = read(text)
        assert structure(text) == blocks(text), text
        assert [tree.content(block) for _, block in tree.blocks if block.kind == "paragraph"] == paragraphs(text), text


def test_a_row_that_begins_like_a_list_item_is_no_table() -> None:
    assert [e.kind for e in read("- a | b\n--|--\n").shape()] == ["list", "item", "paragraph"]


def test_an_open_fence_at_the_top_has_the_empty_line_at_the_end_and_one_in_an_item_has_not() -> None:
    assert [(e.kind, e.last) for e in read("```\n").shape()] == [("fence", 1)]
    assert [(e.kind, e.last) for e in read("- ```\n").shape()] == [("list", 0), ("item", 0), ("fence", 0)]


def test_a_definition_keeps_its_target_as_it_is_written() -> None:
    assert [e.detail for e in read("[A  b]: <c d> 'e'\n[x]:\njavascript:y\n").shape()] == [
        ("a b", "<c d>"),
        ("x", "javascript:y"),
    ]


def test_a_list_is_loose_where_a_blank_line_parts_its_items() -> None:
    def tight(text: str) -> bool:
        entry = read(text).shape()[0]
        return bool(entry.detail[-1])

    assert tight("- a\n- b\n\n\ntext\n")
    assert not tight("- a\n\n- b\n")
    assert not tight("- a\n\n  b\n- c\n")
    assert tight("- a\n  ```\n\n  ```\n- b\n")
    assert tight("* a\n  > b\n  >\n* c\n")


def test_front_matter_is_read_only_at_the_top_and_with_a_key() -> None:
    assert [e.kind for e in read("---\ntitle: a\n---\n# b\n").shape()] == ["front", "heading"]
    assert [e.kind for e in read("---\n\ntext\n\n---\n").shape()] == ["rule", "paragraph", "rule"]
    assert [e.kind for e in read("---\n---\n").shape()] == ["rule", "rule"]


def test_a_row_has_its_cells_between_the_bars_that_are_not_escaped() -> None:
    row = cells("> | a \\| b |`c`|  ", 2)
    assert row.cells == (" a \\| b ", "`c`")
    assert row.text() == "> | a \\| b |`c`|  "
    assert cells("a | b", 0).cells == ("a ", " b")


def test_lines_end_as_editors_end_them() -> None:
    assert [(line.text, line.ending) for line in lines_of("a\r\nb\rc\n")] == [
        ("a", "\r\n"),
        ("b", "\r"),
        ("c", "\n"),
        ("", ""),
    ]
    assert len(lines_of("a")) == 1


@pytest.mark.parametrize(
    "text", ["> " * 5_000 + "a", "- " * 5_000 + "a", "[" * 20_000, "`" * 20_000, "| a " * 5_000, "*" * 20_000]
)
def test_hostile_text_is_read_in_a_moment(text: str) -> None:
    assert quickest(lambda: read(text + "\n" + text)) < 1


@pytest.mark.parametrize(
    "text", ["> " * 40 + "a\n" + "b\n" * 5_000, "|a" * 250 + "|\n" + "|-" * 250 + "|\n" + "|\n" * 1_000]
)
def test_text_that_would_take_long_to_read_is_refused(text: str) -> None:
    def refused() -> None:
        with pytest.raises(NoOffer, match="too long to read"):
            read(text)

    assert quickest(refused) < 1


def quickest(run: Callable[[], None]) -> float:
    """The least seconds of a core in three runs: other work on the machine only adds to them."""
    spent = []
    for _ in range(3):
        began = time.thread_time()
        run()
        spent.append(time.thread_time() - began)
    return min(spent)
