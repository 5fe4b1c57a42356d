"""Next edits with the shipped model as the judge: three chores of a programmer, each to its end by Tab alone."""

import pytest

from caesura.client.shared import Engine

from ...lsp.test_next_edit import Editor

pytestmark = pytest.mark.real

READY_S = 300.0
CALLS = """import shop


def report(orders):
    total = shop.price(orders[0], "EUR")
    rest = shop.price(orders[1], "EUR")
    print(total, rest)
    for order in orders[2:]:
        total += shop.price(order, "EUR")
    return total


def summary(orders, extra):
    first = shop.price(extra, "EUR")
    second = shop.price(orders[-1], "EUR")
    return first + second
"""
CASES = """export function label(kind: string): string {
  switch (kind) {
    case "open": return names.open;
    case "closed": return names.closed;
    case "draft": return names.draft;
    case "merged": return names.merged;
  }
}
"""
AREA = """def area(width, high):
    if width < 0 or high < 0:
        raise ValueError(f"negative: {width} x {high}")
    return width * high
"""


@pytest.mark.parametrize(
    ("language", "text", "edit", "wanted", "tabs"),
    [
        ("python", CALLS, ('orders[0], "EUR")', 'orders[0], "EUR", tax=True)'), ('"EUR")', '"EUR", tax=True)'), 4),
        ("typescript", CASES, ("return names.open;", "return t(names.open);"), ("", ""), 3),
        ("python", AREA, ("high", "height"), ("high", "height"), 1),
    ],
    ids=["an argument added to five calls", "a list of cases", "a parameter renamed"],
)
async def test_a_chore_is_done_by_tab_after_its_first_edit(
    language: str, text: str, edit: tuple[str, str], wanted: tuple[str, str], tabs: int
) -> None:
    engine = Engine(client="test")
    await engine.start()
    try:
        await engine.ready(READY_S)
        editor = Editor(text, language=language, engine=engine)
        editor.change(*edit)
        taken = 0
        while found := await editor.next():
            editor.take(found[0])
            taken += 1
            assert taken <= tabs
    finally:
        await engine.close()
    if language == "typescript":
        expected = "".join(
            f"    case {kind!r}: return t(names.{kind});\n".replace("'", '"') for kind in ("open", "closed", "draft")
        )
        assert expected in editor.text
    else:
        assert editor.text == text.replace(*wanted)
    assert taken == tabs
