"""Members that an insertion invents, in a class that is whole in the file. A case has `¦` where the insertion is."""

import pytest

from caesura.automata.regex import matching
from caesura.server.infill.members import MAX_SOURCE, ClassMembers, lacking
from caesura.server.languages import LANGUAGES, language, members_query

from .test_check import gate

STACK = """
class Stack:
    limit = 3

    def __init__(self, items):
        self.items = list(items)

    @property
    def top(self):
        return self.items[-1]

    def pop(self):
        ¦
        return self.items.pop()
"""
QUEUE = """
class Queue {
  #size = 0;
  name = "q";
  constructor(items) { this.items = items; }
  get first() { return this.items[0]; }
  async pop() {
    ¦
  }
}
"""
TYPED = """
class Queue {
  private size = 0;
  constructor(private readonly items: string[]) {}
  abstract clear(): void;
  pop(): void {
    ¦
  }
}
"""
EMPTY = "if not self.is_empty():"
POINT = "@dataclass\nclass P:\n    x: int\n    y: int = 0\n\n    def f(self):\n        ¦\n"


def known(name: str, case: str, insert: str) -> str:
    before, _, after = case.partition("¦")
    source = (before + after).encode()
    at = len(before.encode())
    return ClassMembers(language(name), source, at, at, None).known_lines(insert)


@pytest.mark.parametrize(
    ("name", "case", "insert"),
    [
        ("python", STACK, EMPTY),
        ("python", STACK, "return self.item"),
        ("python", STACK, "self.helper(self.items)"),
        ("python", STACK.replace("class Stack:", "class Base:\n    pass\n\nclass Stack(Base):"), EMPTY),
        ("python", STACK.replace("Stack:", "Stack(list):"), EMPTY),
        ("python", POINT, "return self.z"),
        ("python", STACK.replace("def pop(self):", "def pop(self):\n        items = is_empty = 1"), EMPTY),
        ("javascript", QUEUE, "if (this.isEmpty()) {"),
        ("javascript", QUEUE, "return this.#count;"),
        ("javascript", QUEUE, "this.items.map(item => this.clean(item));"),
        ("typescript", TYPED, "if (this.isEmpty()) {"),
        ("typescriptreact", TYPED.replace("class", "export default class"), "return this.count;"),
    ],
)
def test_an_invented_member_is_not_inserted(name: str, case: str, insert: str) -> None:
    assert known(name, case, insert) == ""
    assert gate(case, name).shortened(insert) == ""


@pytest.mark.parametrize(
    ("name", "case", "line", "insert"),
    [
        ("javascript", QUEUE, "if (this.¦", "isEmpty()"),
        ("javascript", QUEUE, "if (this.¦)", "isEmpty()"),
        ("javascript", QUEUE, "if (this.¦) {}", "isEmpty()"),
        ("javascript", QUEUE, "if (this.¦", "isEmpty()) return;"),
        ("javascript", QUEUE, "if (this.¦", "isEmpty()) {\n      return null;"),
        ("javascript", QUEUE, "while (!this.¦", "isEmpty()"),
        ("javascript", QUEUE, "while (!this.¦)", "isEmpty()"),
        ("javascript", QUEUE, "for (const one of this.¦", "isEmpty()"),
        ("javascript", QUEUE, "if (x) {} else if (this.¦)", "isEmpty()"),
        ("javascript", QUEUE, "switch (this.¦", "state"),
        ("javascript", QUEUE, "for (let i = 0; i < this.¦", "length"),
        ("javascript", QUEUE, "const one = { a: this.¦", "isEmpty()"),
        ("javascript", QUEUE, "items.forEach(one => { this.¦", "clean(one)"),
        ("typescript", TYPED, "if (!this.¦", "isEmpty()"),
        ("typescriptreact", TYPED, "while (this.¦)", "isEmpty()"),
        ("python", STACK, "if self.¦", "is_empty()"),
        ("python", STACK, "while not self.¦", "is_empty()"),
        ("python", STACK.replace("\n        return self.items.pop()", ""), "if self.¦", "is_empty()"),
        ("python", STACK, "for item in self.¦", "values"),
        ("python", STACK, "with self.¦", "lock"),
    ],
)
def test_so_is_one_in_a_line_without_its_body(name: str, case: str, line: str, insert: str) -> None:
    assert known(name, case.replace("¦", line), insert) == ""
    assert gate(case.replace("¦", line), name).shortened(insert) == ""


@pytest.mark.parametrize(
    ("name", "case", "insert"),
    [
        ("javascript", QUEUE.replace("¦", "if (this.¦"), "items.length"),
        ("javascript", QUEUE.replace("¦", "if (this.¦") + "// isEmpty", "isEmpty()"),  # a broken tree may not show it
        ("javascript", QUEUE.replace("¦", "items.forEach(function () { this.¦"), "isEmpty()"),
        ("javascript", QUEUE.replace("¦", "const one = { f() { return this.¦"), "isEmpty()"),
        ("javascript", QUEUE.replace("Queue {", "Queue extends Base {").replace("¦", "if (this.¦"), "isEmpty()"),
        ("typescript", TYPED.replace("¦", "if (!this.¦"), "size"),
        ("python", STACK.replace("¦", "if self.¦"), "items"),
        ("python", STACK.replace("Stack:", "Stack(Base):").replace("¦", "if self.¦"), "is_empty()"),
    ],
)
def test_what_may_exist_is_inserted_in_a_line_without_its_body(name: str, case: str, insert: str) -> None:
    assert known(name, case, insert) == insert


@pytest.mark.parametrize(
    ("name", "case", "insert"),
    [
        ("python", STACK, "if not self.items: self.top, self.limit, self.pop(), self.__class__"),
        ("python", STACK, "self.seen = True\n        return self.seen"),
        ("python", STACK, "other.is_empty()"),
        ("python", POINT, "return self.x + self.y"),
        ("python", STACK.replace("Stack:", "Stack(Base):"), EMPTY),  # which may have it
        ("python", STACK.replace("Stack:", "Stack(list):"), "self.append(1)"),
        ("python", STACK.replace("Stack:", "Stack(metaclass=Meta):"), EMPTY),
        ("python", "@register\n" + STACK.lstrip(), EMPTY),  # a decorator may add it
        ("python", STACK + "\n    def __getattr__(self, name):\n        return 1\n", EMPTY),
        ("python", STACK + "\nsetattr(Stack, 'is_empty', 1)\n", EMPTY),
        ("python", STACK + "\nStack.is_empty = lambda self: True\n", EMPTY),
        ("python", STACK + "\n    def more(self):\n        return self.is_empty()\n", EMPTY),  # so it exists
        ("python", "def f(self):\n    ¦\n", EMPTY),
        ("python", "class A:\n    def f(self):\n        def g(self):\n            ¦\n", EMPTY),  # of another object
        ("javascript", QUEUE, "this.name + this.first + this.pop() + this.items + this.#size + this.toString()"),
        ("javascript", QUEUE.replace("Queue {", "Queue extends Base {"), "this.isEmpty();"),
        ("javascript", QUEUE, "items.forEach(function () { this.isEmpty(); });"),
        ("javascript", QUEUE + "Object.assign(Queue.prototype, more);\n", "this.isEmpty();"),
        ("javascript", "const o = { f() {\n¦\n} };\n", "this.isEmpty();"),
        ("typescript", TYPED, "this.size + this.items.length; this.clear();"),
        ("typescript", TYPED.replace("private size", "[key: string]: number;\n  private size"), "this.isEmpty();"),
        ("typescript", "@Component\n" + TYPED.lstrip(), "this.isEmpty();"),
        ("typescript", "interface Queue { isEmpty(): boolean }\n" + TYPED.lstrip(), "this.isEmpty();"),
        ("ruby", "class A\n  def f\n    ¦\n  end\nend\n", "self.empty"),  # a language without such rules
    ],
)
def test_what_may_exist_is_inserted(name: str, case: str, insert: str) -> None:
    assert known(name, case, insert) == insert


def test_the_lines_before_an_invented_member_stay() -> None:
    assert known("python", STACK, "last = self.top\n        self.notify(last)") == "last = self.top"


def test_the_rest_of_a_begun_name_counts() -> None:
    assert known("python", STACK.replace("¦", "return self.is_em¦"), "pty()") == ""
    assert known("python", STACK.replace("¦", "return self.is_empty¦"), "()") == "()"  # the user wrote it


def test_a_pattern_lets_through_what_reads_none_of_the_members() -> None:
    dfa = matching(lacking(["is_empty", "$key", "#count"]), whole=True)
    for text in ("self.is_emptyish", "is_empty", "this.key\n", "a\n"):
        assert dfa.accepts(text), text
    for text in ("self.is_empty", "a\n  self.is_empty()\n", "this.$key", "this.#count + 1", ""):
        assert not dfa.accepts(text), text


def test_a_large_file_is_not_parsed_for_it() -> None:
    assert known("python", "#" * MAX_SOURCE + "\n" + STACK, EMPTY) == EMPTY


@pytest.mark.parametrize("name", [row.id for row in LANGUAGES.values() if row.names and row.names.members])
def test_the_query_of_a_language_fits_its_grammar(name: str) -> None:
    assert members_query(language(name)) is not None
