"""Bodies that are begun and not finished. The fill stands between `«` and `»`."""

import pytest

from caesura.server.infill.begun import is_begun
from caesura.server.text import repair

PRIME = "def is_prime(n):\n    «if n < 2:\n        return False{}»\n"
ECMA = "function f(n) {{\n  «if (n < 2) return false;{}»\n}}\n"


def begun(name: str, marked: str) -> bool:
    start, end = marked.index("«"), marked.index("»") - 1
    text = marked.replace("«", "").replace("»", "")
    return is_begun(repair.parsed(text, name), text, start, end)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("python", PRIME.format("")),
        ("python", PRIME.format("\n    for i in range(2, n):\n        if n % i == 0:\n            return False")),
        ("python", PRIME.format("\n    elif n == 2:\n        return True")),
        ("python", PRIME.format("\n    else:\n        limit = n")),
        ("python", "def f(xs) -> int:\n    «total = 0»\n"),
        ("python", 'def f(xs) -> int:\n    """Add."""\n    «total = 0\n    for x in xs:\n        total += x»\n'),
        ("python", "class A:\n    def f(self) -> int:\n        «self.x = 1»\n\n    def g(self):\n        return 1\n"),
        ("javascript", ECMA.format("")),
        ("javascript", ECMA.format("\n  const limit = Math.sqrt(n);")),
        ("typescript", "function f(n: number): boolean {\n  «if (n < 2) { return false; }»\n}\n"),
        ("go", "package a\n\nfunc f(n int) bool {\n\t«if n < 2 {\n\t\treturn false\n\t}»\n}\n"),
    ],
)
def test_a_body_without_its_end_is_begun(name: str, text: str) -> None:
    assert begun(name, text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("python", PRIME.format("\n    return True")),
        ("python", PRIME.format("\n    else:\n        return True")),
        ("python", PRIME.format("\n    raise ValueError(n)")),
        ("python", PRIME.format("\n    while True:\n        n -= 1")),
        ("python", PRIME.format("") + "    return True\n"),  # the user wrote the end
        ("python", "def f(n):\n    «if n < 2:\n        return\n    print(n)»\n"),
        ("python", "def f(n):\n    «if n < 2:\n        return None\n    print(n)»\n"),
        ("python", "def f(n):\n    «if n < 2:\n        return log(n)\n    print(n)»\n"),
        ("python", "def f(n) -> None:\n    «print(n)»\n"),
        ("python", "def f(n) -> Iterator[int]:\n    «yield n»\n"),
        ("python", "def f(n) -> int:\n    «...»\n"),
        ("python", "def f(n):\n    «return f'{n}'»\n"),
        ("python", "def f(n):\n    «def g():\n        return 1\n    print(g())»\n"),
        ("python", "def f(n):\n    x = «g(n)»\n    return x\n"),
        ("python", "«x = 1»\n"),
        ("javascript", ECMA.format("\n  return true;")),
        ("javascript", "function f(n) {\n  «if (n) return next(n);\n  send();»\n}\n"),
        ("typescript", "async function f(): Promise<void> {\n  «await g();»\n}\n"),
        ("go", "package a\n\nfunc f() {\n\t«g()»\n}\n"),
        ("plaintext", "«a»\n"),
    ],
)
def test_other_fills_are_not(name: str, text: str) -> None:
    assert not begun(name, text)
