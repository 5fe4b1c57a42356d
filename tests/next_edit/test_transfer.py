"""Edits that are carried over to lines like those that the user changed, and where nothing is proposed."""

import pytest

from caesura.server.next_edit import proposals as rules
from tests.support.typist import Typist

CALLS = "".join(f"def f{at}(url):\n    return fetch(url{at}, None)\n\n\n" for at in range(6))


def test_an_argument_that_is_added_to_a_call_is_added_to_the_others() -> None:
    user = Typist(CALLS)
    user.replace("", ", timeout=10", after="fetch(url0, None")
    assert user.taken() == CALLS.replace("None)", "None, timeout=10)")


def test_a_proposal_says_which_edit_it_is_like() -> None:
    user = Typist(CALLS)
    user.replace("", ", timeout=10", after="fetch(url0, None")
    assert {one.why for one in user.proposed()} == {"Like your edit in line 2."}


def test_a_call_that_has_the_argument_already_stays() -> None:
    text = "a = get(x, retry=True)\nb = get(y)\nc = get(z)\n"
    user = Typist(text)
    user.replace("", ", retry=True", after="get(y")
    assert user.taken() == text.replace("(y)", "(y, retry=True)").replace("(z)", "(z, retry=True)")


def test_an_argument_of_one_call_is_none_of_another() -> None:
    user = Typist("a = get(x)\nb = put(x)\n")
    user.replace("", ", retry=True", after="get(x")
    assert user.proposed() == ()


def test_a_parameter_of_a_signature_is_no_argument_of_its_calls() -> None:
    user = Typist("def get(url):\n    return url\n\n\na = get(url)\n")
    user.replace("", ", retry", after="def get(url")
    assert user.proposed() == ()


def test_the_cases_of_a_list_change_with_the_first_two() -> None:
    rows = "".join(f'    ("{name}", {at}),\n' for at, name in enumerate(("one", "two", "three", "four")))
    user = Typist(f"CASES = [\n{rows}]\n")
    user.replace("", ", None", after='("one", 0')
    user.replace("", ", None", after='("two", 1')
    assert user.taken() == f"CASES = [\n{rows}]\n".replace("),", ", None),")


def test_a_removed_line_is_removed_elsewhere() -> None:
    body = "    check(x)\n    print(x)\n    return x\n\n\n"
    text = "".join(f"def f{at}(x):\n{body}" for at in range(3))
    user = Typist(text)
    at = text.index("    print")
    user.paste(at, at + len("    print(x)\n"), "")
    assert user.taken() == text.replace("    print(x)\n", "")


def test_the_indentation_is_that_of_the_place() -> None:
    user = Typist("log(a)\nif x:\n    log(b)\n")
    user.replace("log(a)", "log.info(a)")
    assert user.taken() == "log.info(a)\nif x:\n    log.info(b)\n"


def test_line_breaks_of_windows_stay() -> None:
    text = CALLS.replace("\n", "\r\n")
    user = Typist(text)
    user.replace("", ", timeout=10", after="fetch(url0, None")
    assert user.taken() == text.replace("None)", "None, timeout=10)")


def test_a_language_without_scopes_gets_repeats() -> None:
    user = Typist("echo $one >> log\necho $two >> log\n", "bash")
    user.replace(">> log", "| tee log")
    assert user.taken() == "echo $one | tee log\necho $two | tee log\n"


SILENT = {
    "a line that was added once": ("open(a)\nread(a)\nopen(b)\nread(b)\n", [("", "\ncheck(a)", "open(a)")]),
    "a number that was chosen": ("a = f(1, x)\nb = f(2, y)\n", [("1", "5", "f(")]),
    "a text that was chosen": ('a = f("one", x)\nb = f("two", x)\n', [("one", "uno", 'f("')]),
    "a comment": ("# get the first row\nx = 1\n# get the last row\n", [("get", "take", "# ")]),
    "blanks": ("a = f( x)\nb = f( y)\n", [(" ", "", "f(")]),
    "nothing but the same lines": ("a = 1\n\n\nb = 2\n", [("1", "10", "a = ")]),
}


@pytest.mark.parametrize("case", SILENT)
def test_nothing_is_proposed_after(case: str) -> None:
    text, edits = SILENT[case]
    user = Typist(text)
    for old, new, after in edits:
        user.replace(old, new, after=after)
    assert user.proposed() == ()


def test_the_user_is_never_undone() -> None:
    user = Typist("f(a)\nf(b)\nf(a, 1)\n")
    user.replace("", ", 1", after="f(b")
    user.replace(", 1", "", after="f(b, 1)\nf(a")
    assert "f(a, 1)" not in user.taken()


def test_an_edit_is_not_carried_over_where_it_breaks_the_syntax() -> None:
    user = Typist("def t():\n    f(a)\n    h(\n        f(b)\n    )\n    f(c)\n")
    user.replace("", "return ", after="t():\n    ")
    assert user.taken() == "def t():\n    return f(a)\n    h(\n        f(b)\n    )\n    return f(c)\n"


def test_no_two_proposals_touch_a_line() -> None:
    user = Typist(CALLS)
    user.replace("", ", timeout=10", after="fetch(url0, None")
    user.replace("", ", timeout=10", after="fetch(url1, None")
    rows = [row for one in user.proposed() for row in range(one.row, one.row + len(one.old))]
    assert len(rows) == len(set(rows)) == 4


def test_lines_that_were_edited_and_then_removed_do_no_harm() -> None:
    user = Typist("def f(n):\n    return n\n\n\na = 1\nb = 2\n")
    user.replace("2", "c", after="b = ")
    user.history.pause()
    user.paste(user.text.index("\n\na"), len(user.text), "")
    user.replace("n", "count", after="f(")
    assert user.taken() == "def f(count):\n    return count\n"


def test_a_document_far_too_long_gets_none() -> None:
    user = Typist("a = old(x)\n" * (rules.MAX_TEXT // 10))
    user.paste(4, 7, "new")
    assert user.proposed() == ()


def test_nothing_is_proposed_before_the_first_edit() -> None:
    assert Typist(CALLS).proposed() == ()
