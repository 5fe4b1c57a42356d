"""The name that the lines after an empty line read and nothing binds. A case has `¦` where the cursor is."""

import pytest
import re2

from caesura import wire
from caesura.server.context.unbound import AFTER, BEFORE, missing
from caesura.server.languages import LANGUAGES, language, query
from caesura.server.names import VERBS
from caesura.server.text.document import Document
from caesura.server.text.trees import SyntaxTree

NAMED = [row.id for row in LANGUAGES.values() if row.names]


def found(name: str, case: str) -> wire.Missing | None:
    before, _, after = case.partition("¦")
    row = language(name)
    tree = SyntaxTree(row)
    tree.parse(before + after)
    return missing(before + after, len(before), row, tree.tree)


def named(name: str, case: str) -> str | None:
    answer = found(name, case)
    return answer and answer.name


def inside(head: str, *lines: str) -> str:
    return "\n".join([head, *(f"    {line}" for line in lines)]) + "\n"


PYTHON = {
    "total = 0\n¦\nprint(rate)\n": "rate",
    inside("def f():", "¦", "", "return rate"): "rate",
    inside("def f():", "¦", "print(first, second)"): "first",
    inside("def f():", "¦", "for item in items:", "    print(item)"): "items",
    inside("def f():", "¦", "return f'{rate:.2f}'"): "rate",
    inside("def f():", "rate = 1", "¦", "return rate"): None,
    inside("def f(rate):", "¦", "return rate"): None,
    inside("def f(rate: int = 1, *more, **rest):", "¦", "return rate, more, rest"): None,
    inside("def f():", "for i, (key, rate) in zip():", "    ¦", "    print(i, key, rate)").replace(
        "pairs", "zip"
    ): None,
    inside("def f():", "with open('a') as file, open('b') as (one, *two):", "    ¦", "    print(file, one, two)"): None,
    inside("def f():", "try:", "    pass", "except OSError as error:", "    ¦", "    print(error)"): None,
    inside("def f(m):", "match m:", "    case {'a': rate, **rest}:", "        ¦", "        print(rate, rest)"): None,
    inside("def f(rows):", "¦", "return [row for row in rows if (n := len(row))], n"): None,
    inside("def f():", "¦", "return lambda row: row"): None,
    inside("def f():", "global rate", "¦", "print(rate)"): None,
    inside("def f():", "¦", "return rate", "") + "\nrate = 1\n": None,  # bound before f runs
    "¦\nprint(rate)\nrate = 1\n": "rate",
    inside("def f():", "¦", "return helper") + "\ndef helper(): pass\n": None,
    inside("def g():", "rate = 1") + inside("def f():", "¦", "return rate"): "rate",
    inside("def f(self):", "self.rate = 1", "¦", "return self.rate"): None,
    inside("def f():", "¦", "return dict(rate=1)"): None,
    inside("def f():", "¦", "x: Rate = 1", "return x"): None,
    "import a.b as c, d\nfrom e import (g,\n    h as i)\n" + inside("def f():", "¦", "return c, d, g, i"): None,
    "from a import *\n" + inside("def f():", "¦", "return rate"): None,
    inside("def f():", "if True:", "    ¦", "return rate"): None,  # a dedent
    inside("def f():", "¦", "    return rate"): None,  # a header
    inside("def f():", "x = ¦", "return rate"): None,
    inside("def f():", "¦ + 1", "return rate"): None,
    inside("def f():", "use(", "¦", "rate", ")"): None,
    inside("def f():", '"""', "¦", "rate", '"""'): None,
    inside("class A:", "¦", "def f(self):", "    return rate"): None,  # which sees no name of the class
    inside("class A:", "¦", "more = rate + 1"): "rate",
    inside("def f():", "print(np)", "¦", "return np"): None,  # something unseen bound it before
    inside("def f(rate:", "¦", "return rate"): None,
    inside("def f():", "¦", "return größe"): None,
    "x = 1\r\n¦\r\nprint(rate)\r\n": "rate",
    "text = 'ä€😀'\n¦\nprint(rate)\n": "rate",
}
RATE = {inside("function f() {", "¦", "return rate") + "}\n": "rate"}
ECMA = RATE | {
    inside("function f() {", "if (1) {", "    var rate = 1", "}", "¦", "return rate") + "}\n": None,
    inside("function f() {", "¦", "return rate$ + 1") + "}\n": "rate$",
    inside("function f() {", "¦", "// The rate.", "return rate") + "}\n": "rate",
    inside("function f() {", "/*", "¦", "The rate.", "*/", "return rate") + "}\n": None,
    inside("function f() {", "¦", "rate += 1") + "}\n": "rate",
    inside("function f() {", "¦", "use({ rate, other: 1 })") + "}\nfunction use() {}\n": "rate",
    inside("function f({ a, b: c, ...rest }, [d = 1]) {", "¦", "return a + c + rest + d") + "}\n": None,
    inside("function f() {", "const { a = 1, b: [c] } = g()", "¦", "return a + c") + "}\n": None,
    inside("function f() {", "¦", "return xs.map(x => x * rate)") + "}\n": "xs",
    inside("function f() {", "¦", "return [1].map(x => x)") + "}\n": None,
    inside("function f() {", "for (const x of [1]) {", "    ¦", "    use(x)", "}") + "}\nimport use from 'u'\n": None,
    inside("function f() {", "try {} catch (error) {", "    ¦", "    throw error", "}") + "}\n": None,
    inside("function f() {", "if (1) {", "    const rate = 1", "}", "¦", "return rate") + "}\n": "rate",
    inside("function f() {", "¦", "return helper") + "}\nfunction helper() {}\n": None,
    inside("function f() {", "¦", "return rate") + "}\nconst rate = 1\n": None,
    inside("function f() {", "¦", "return { rate: 1 }.rate") + "}\n": None,
    inside("function f() {", "¦", "console.log(window, new Map())") + "}\n": None,
    inside("function f() {", "¦", "}", "return rate") + "}\n": None,
}
TYPESCRIPT = {
    inside("function f(a: number, b?: string) {", "¦", "return a + b") + "}\n": None,
    inside("function f() {", "¦", "const x: Rate = 1 as Rate", "return g<Rate>(x)") + "}\nfunction g() {}\n": None,
    inside("function f() {", "¦", "return Colour.Red") + "}\nenum Colour { Red }\n": None,
}
JSX = {
    inside("function F() {", "¦", "return <div title={title}><Box.Item /></div>") + "}\n": "title",
    inside("function F() {", "¦", "return <Box size='1'><b>rate</b></Box>") + "}\n": None,
}
GO = {
    inside("package a\nfunc f() int {", "¦", "return rate") + "}\n": "rate",
    inside('package a\nimport "net/http"\nfunc f() {', "¦", "http.Get()") + "}\n": None,
    inside('package a\nimport y "gopkg.in/yaml.v3"\nfunc f() {', "¦", "y.Get()", "yaml.Get()") + "}\n": None,
    inside("package a\nfunc f() {", "¦", "client.Get(Exported, other(1))") + "}\n": "client",
    inside("package a\nfunc f() {", "¦", "use(T{rate: 1})") + "}\n": None,
    inside("package a\nfunc (t *T) f(a, b int) (err error) {", "¦", "return t.c(a, b, err)") + "}\n": None,
    inside("package a\nfunc f() {", "if v, err := g(); err != nil {", "    ¦", "    use(v, err)", "}") + "}\n": None,
    inside("package a\nfunc f() int {", "¦", "return rate") + "}\nvar (\n    rate = 1\n)\n": None,
    inside("package a\nfunc f() {", "switch v := g().(type) {", "case int:", "    ¦", "    use(v)", "}") + "}\n": None,
}
RUST = {
    inside("fn f() -> i32 {", "¦", "rate") + "}\n": "rate",
    inside("fn f() {", "¦", 'println!("{}", rate)') + "}\n": "rate",
    inside("fn f(a: i32, (b, c): P) {", "¦", "a + b + c") + "}\n": None,
    inside("fn f() {", "if let Some(x) = g() {", "    ¦", "    h(x);", "}") + "}\n": None,
    inside("fn f() {", "match g() {", "    Some(A { x, y: z }) => {", "        ¦", "        h(x, z)", "    }", "}")
    + "}\n": None,
    inside("fn f() {", "¦", "g(|x| x, a::b, C, self.d)") + "}\n": None,
    inside("use a::{b, c as d};\nfn f() {", "¦", "g(b, d)") + "}\n": None,
}
C = {
    inside("int f(void) {", "¦", "return rate;") + "}\n": "rate",
    inside("int f(int a, char *b, int c[]) {", "¦", "return g(a, b, c, MAX);") + "}\n": None,
    inside("int f(void) {", "int i, *p = 0;", "¦", "return p[i];") + "}\n": None,
    inside("int f(void) {", "for (int i = 0; i < 3; i++) {", "    ¦", "    g(i);", "}") + "}\n": None,
    inside("static int rate;\nint f(T *t) {", "¦", "return rate + t->other;") + "}\n": None,
}
CPP = {
    inside("void f() {", "auto [x, y] = g();", "¦", "h(x, y, std::move, kMost, size_);") + "}\n": None,
    inside("void f(const T& t, auto&& u) {", "for (auto& v : t) {", "    ¦", "    g(u, v);", "}") + "}\n": None,
    inside("void f() {", "¦", "g([&h](int i) { return i + rate; });") + "}\n": "rate",
}
JAVA = {
    inside("class A {", "int f() {", "    ¦", "    return rate;", "}") + "}\n": "rate",
    inside("class A {", "int f(int a, String... b) {", "    ¦", "    return a + b.length + this.c;", "}") + "}\n": None,
    inside("class A {", "int f() {", "    ¦", "    return rate;", "}", "int rate = 1;") + "}\n": None,
    inside("class A {", "void f() {", "    ¦", "    List.of(1).forEach(x -> g(x, Type.LIMIT));", "}") + "}\n": None,
}
CASES = [
    (name, case, expected)
    for name, cases in {
        "python": PYTHON,
        "javascript": ECMA,
        "javascriptreact": RATE | JSX,
        "typescript": RATE | TYPESCRIPT,
        "typescriptreact": RATE | TYPESCRIPT | JSX,
        "go": GO,
        "rust": RUST,
        "c": C,
        "cpp": C | CPP,
        "java": JAVA,
        "ruby": {"¦\nputs rate\n": None},
    }.items()
    for case, expected in cases.items()
]


@pytest.mark.parametrize(("name", "case", "expected"), CASES)
def test_the_first_name_that_nothing_binds_is_missing(name: str, case: str, expected: str | None) -> None:
    assert named(name, case) == expected


@pytest.mark.parametrize("name", NAMED)
def test_the_query_of_a_language_fits_its_grammar(name: str) -> None:
    assert query(language(name)) is not None


@pytest.mark.parametrize("name", NAMED)
def test_a_start_binds_the_name_and_a_read_does_not(name: str) -> None:
    case = next(case for of, case, expected in CASES if of == name and expected == "rate")
    answer = found(name, case)
    assert answer is not None
    assert all(re2.search(answer.pattern, f"{start} 1") for start in answer.starts)
    for line in ("return rate", "return rate;", "use(rate)", "x = rate + 1", "if (rate == 1) {", "other.rate = 1"):
        assert not re2.search(answer.pattern, line), line


@pytest.mark.parametrize("name", ["c", "cpp", "java"])
@pytest.mark.parametrize("verb", VERBS.split())
def test_what_follows_a_verb_is_read(name: str, verb: str) -> None:
    case = next(case for of, case, expected in CASES if of == name and expected == "rate")
    answer = found(name, case)
    assert answer is not None
    assert not re2.search(answer.pattern, f"    {verb} rate;")
    assert re2.search(answer.pattern, f"    {verb}r rate;"), "a type whose name begins so"
    assert re2.search(answer.pattern, f"    {verb[:2]} rate;"), "a type whose name is shorter"


BINDINGS = {
    "python": ["a, (b, *rate) = 1, 2", "for _, rate in x:", "with a as rate:", "rate: int = 1", "if (rate := 1):"],
    "javascript": ["const { a = 1, ...rate } = x", "let [b, rate] = x", "function rate() {", "} catch (rate) {"],
    "go": ["a, rate := f()", "var rate int", "for _, rate := range x {", "if rate, err := f(); err != nil {"],
    "rust": ["let (a, mut rate) = x;", "for (i, rate) in x {", "if let Some(rate) = x {"],
    "c": [
        "int a, *rate;",
        "const char *rate = x;",
        "unsigned long rate[3];",
        "for (int rate = 0;;) {",
        "int a = 1, rate = 2;",
    ],
    "cpp": ["std::map<int, T> rate;", "auto [a, rate] = x;", "T rate(1);", "for (auto& rate : x) {", "T rate{1};"],
    "java": ["final List<int[]> rate = x;", "for (var rate : x) {", "} catch (E | F rate) {", "String[] rate;"],
}


@pytest.mark.parametrize(("name", "line"), [(name, line) for name, lines in BINDINGS.items() for line in lines])
def test_a_line_that_binds_the_name_matches(name: str, line: str) -> None:
    case = next(case for of, case, expected in CASES if of == name and expected == "rate")
    answer = found(name, case)
    assert answer is not None
    assert re2.search(answer.pattern, line)


def test_a_name_in_text_that_is_not_searched_is_not_missing() -> None:
    far = f"# {'-' * max(BEFORE, AFTER)}\n"
    assert named("python", f"{far}¦\nprint(rate)\n{far}") == "rate"
    assert named("python", f"rate = 1\n{far}¦\nprint(rate)\n") is None
    assert named("python", f"¦\nprint(rate)\n{far}rate = 1\n") is None


def test_what_the_hole_replaces_binds_nothing() -> None:
    text, row = "def f():\n    rate = 1\n    return rate\n", language("python")
    tree = SyntaxTree(row)
    tree.parse(text)
    answer = missing(text, start := text.index("rate"), row, tree.tree, start + len("rate = 1"))
    assert answer is not None
    assert answer.name == "rate"


def test_a_new_line_has_its_answer_before_the_next_parse() -> None:
    document = Document("a.py", "python", 0, "def f():\n    x = 1\n    return rate\n")
    tree, row = SyntaxTree(language("python")), language("python")
    tree.parse(document.text)
    tree.edit(document.edit((1, 9), (1, 9), "\n    "))
    answer = missing(document.text, document.offset((2, 4)), row, tree.tree)
    assert answer is not None
    assert answer.name == "rate"


def test_without_a_tree_nothing_is_missing() -> None:
    assert missing("\nprint(rate)\n", 0, language("python"), None) is None
