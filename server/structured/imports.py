"""The lines at the head of a file that bring a name which the file uses and nothing in it brings. Pure.

A line is offered only if its path is known: from the standard library, or from another file of the project that is open
or imported. The model chooses among the lines."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice

import tree_sitter

from caesura import wire
from caesura.server.context.context import Snapshot
from caesura.server.context.scopes import READS, Code, Extent
from caesura.server.languages import Language, grammar, query
from caesura.server.languages import language as language_of
from caesura.server.libraries import ImportRules
from caesura.server.structured.markdown.patterns import either, few
from caesura.server.structured.offer import Offer
from caesura.server.text.lexer import indent_of

MAX_FILE = 100_000  # most code points of a file whose names are read
MOST_NAMES = 200  # most names without a binding that lines are searched for
MOST_LINES = 24  # most lines that the model chooses from
HEAD = 10_000  # code points of another file that are searched for imports
KEPT = 48  # other files whose imports are kept
LONGEST = 120  # characters of a line, about 32 tokens

InFolder = tuple[str, Sequence[Snapshot]]  # a file's path within its folder, and other files of its project

_WORD = re.compile(r"[\w$]+")
_HOLDS = re.compile(r"#\[|.*\\$")  # an attribute of Rust, a line that continues: the next line belongs to it
_AROUND = re.compile(r"preproc_\w+|import_declaration|import_spec_list")  # nodes that may have imports in them
_ECMA_LINE = re.compile(
    r"(?:const|let|var|import)\s+(?P<name>[\w$]+)(?:\s*=\s*require\(|\s+from\s+)['\"](?P<path>[^'\"]+)['\"]\)?;?"
)


def completion(
    text: str,
    at: int,
    language: Language,
    tree: tree_sitter.Tree | None,
    others: Callable[[], InFolder] = lambda: ("", ()),
) -> Offer | None:
    """The line at a cursor that brings a name, after the part of it that stands there. None unless the cursor is at the
    end of a line next to an import, at the top level, and a line is known for a name that nothing brings. `others` is
    asked for the file's path and other files of its project, only next to an import."""
    rules = language.names.import_rules if language.names else None
    if rules is None or tree is None or query(language) is None or len(text) > MAX_FILE:
        return None
    above, below = text[:at].split("\n"), text[at:].split("\n")
    begun = above.pop()
    near = None if below[0].strip() else _next_to(tree.root_node, above, begun, below[1:], rules)
    code = Code(text.encode(), tree, language)
    if near is None or re.search(rules.first, text[at:]) or code.has_wildcard or re.search(rules.unseen, text):
        return None
    known = _known(code, rules, near, *others())
    rests = (line[len(begun) :] for line in known if line.startswith(begun))
    fit = few(islice((rest for rest in rests if 0 < len(rest) <= LONGEST), MOST_LINES))
    if not fit:
        return None
    hole = wire.Hole(kind="line", grammar=wire.Pattern(either(fit)))
    return Offer("Import", at, at, (hole,), is_known=True, check=lambda new: None)


def _next_to(
    root: tree_sitter.Node, above: Sequence[str], begun: str, below: Sequence[str], rules: ImportRules
) -> str | None:
    """The import next to a line that is `begun`, or the line at the head of the file after which the imports begin.
    None if no import may stand in the line."""
    row = len(above)
    lines = [(row - 1 - n, line.rstrip()) for n, line in enumerate(above[:-3:-1])]
    upper = next((one for one in lines if one[1]), (0, ""))
    lower = next(((row + 1 + n, line.rstrip()) for n, line in enumerate(below[:2]) if line.strip()), (0, ""))
    found = [one for one in (upper, lower) if re.match(rules.line, one[1].strip())]
    found += [upper] if re.match(rules.head, upper[1]) else []
    if not found or _HOLDS.match(upper[1]) or lower[1].endswith("("):  # a line above a list of imports
        return None
    (place, near), indent = found[0], indent_of(begun)
    begins = (row, len(indent if begun.strip() else begun))
    fits = indent in ("", _indent(near, rules)) and _is_outside(root, (place, len(indent_of(near))))
    return near if fits and _is_outside(root, begins, broken=bool(begun.strip())) else None


def _indent(near: str, rules: ImportRules) -> str:
    """The indentation of a line next to an import."""
    return indent_of(near) or ("\t" if rules.listed and near.endswith("(") else "")


def _is_outside(root: tree_sitter.Node, point: tuple[int, int], *, broken: bool = False) -> bool:
    """True if nothing but the file, a list of imports or a condition of the C preprocessor is around a point; `broken`:
    or code that the grammar does not know."""
    node = root.descendant_for_point_range(point, point)
    while node and node.parent:
        inside = node.start_point < point < node.end_point
        if inside and not _AROUND.fullmatch(node.type) and not (broken and node.type == "ERROR"):
            return False
        node = node.parent
    return True


def _known(code: Code, rules: ImportRules, near: str, name: str, others: Sequence[Snapshot]) -> Iterator[str]:
    """The known lines, each indented as the import that is `near`."""
    indent = _indent(near, rules)
    needed, known = _free_names(code), {*rules.known.split(), *_of_package(code.language, rules, name, others)}
    names = [one for one in needed if one not in known][:MOST_NAMES]
    written = rules.listed if indent and rules.listed else rules.written
    yield from (indent + line for line in _lines(code, rules, names, near, written) if line)
    for line in _copied(code, rules, names, name, others):
        line = line.removeprefix("import").lstrip() if rules.listed else line
        if ("require(" in line) == ("require(" in near):
            yield f"import {line}" if rules.listed and not indent else indent + line


def _lines(code: Code, rules: ImportRules, names: Sequence[str], near: str, written: str) -> Iterator[str]:
    """The lines that bring names of the standard library, in the order of the names; some may be empty."""
    text = code.source.decode()
    paths = {re.split(r"[/.:]", path)[-1]: path for path in rules.paths.split()}
    for path, name in ((paths[name], name) for name in names if name in paths):
        yield written.replace("PATH", path) if written else _as_near(near, name, path, text)
    read = [name for name in names if rules.before + name in text] if rules.headers else []
    for header, pattern in rules.headers.items():
        if any(re.fullmatch(pattern, name) for name in read) and f"<{header}>" not in text:
            yield written.replace("PATH", header)


def _copied(
    code: Code, rules: ImportRules, names: Sequence[str], name: str, others: Sequence[Snapshot]
) -> Iterator[str]:
    """The lines of other files of the language that bring some of the `names` to the file `name`."""
    package = re.search(rules.package, code.source.decode())
    seen = set[str]()
    for other in _alike(code.language, others):
        head, here = other.text[:HEAD], _folder(other) == _folder(name)
        brought = _brought(head, rules)
        for used, row, line in ((each, *one) for each in names for one in brought.get(each, ())):
            bare = line.strip()
            own = package and bare == f"import {package[1]}.{used};"
            local = not here and re.match(rules.relative, bare)
            if bare in seen or own or local:
                continue
            if _is_outside(_root(head, code.language, rules), (row, len(indent_of(line)))):
                seen.add(bare)
                yield bare


def _alike(language: Language, others: Sequence[Snapshot]) -> Iterator[Snapshot]:
    """The other files whose imports are written as those of a language."""
    name = language.id.removesuffix("react")
    return (other for other in others if language_of(other.language, other.name).id.removesuffix("react") == name)


def _folder(file: Snapshot | str) -> str:
    return (file if isinstance(file, str) else file.name).rpartition("/")[0]


def _of_package(language: Language, rules: ImportRules, name: str, others: Sequence[Snapshot]) -> Iterator[str]:
    """The names that other files of the same package declare."""
    for other in _alike(language, others) if rules.declared else ():
        if _folder(other) == _folder(name):
            yield from _declared(other.text[:MAX_FILE], rules.declared)


@lru_cache(KEPT)
def _declared(text: str, pattern: str) -> frozenset[str]:
    return frozenset(re.findall(pattern, text))


@lru_cache(KEPT)
def _brought(text: str, rules: ImportRules) -> dict[str, list[tuple[int, str]]]:
    """The lines of a text that look like one import and no more, with their rows, by the names that they bring."""
    found: dict[str, list[tuple[int, str]]] = {}
    brings = re.compile(rules.brings)
    for row, line in enumerate(text.split("\n")):
        if not line or len(line) > LONGEST or (line[0].isspace() and not rules.listed):
            continue
        import_ = brings.fullmatch(line.strip())
        for part in next(filter(None, import_.groups()), "").strip("{ }").split(",") if import_ else ():
            for name in _WORD.findall(part)[-1:]:  # the last word of `* as name`, `{ other as name }`
                found.setdefault(name, []).append((row, line.rstrip()))
    return found


@lru_cache(KEPT)
def _root(text: str, language: Language, rules: ImportRules) -> tree_sitter.Node:
    """The tree of a text up to the last line that looks like an import, or of all if that part alone has errors."""
    known = grammar(language)
    assert known is not None
    parser, rows = tree_sitter.Parser(known), (row for lines in _brought(text, rules).values() for row, _ in lines)
    part = "\n".join([*text.split("\n")[: max(rows, default=0) + 1], ""])
    root = parser.parse(part.encode()).root_node
    return parser.parse(text.encode()).root_node if root.has_error else root


def _free_names(code: Code) -> Iterator[str]:
    """The names that the file reads as an import may bring them, and that nothing in it binds, in their order."""
    found = code.captures(Extent(0, len(code.source)), *READS)
    reads = sorted(found.get("import.read", ()), key=lambda node: node.start_byte)
    binding = (nodes for capture, nodes in found.items() if capture.startswith(("local.definition", "import.bound")))
    bound = {word for nodes in binding for node in nodes for word in _WORD.findall(code.text(node))}
    yield from (name for name in dict.fromkeys(map(code.text, reads)) if name not in bound)


def _as_near(near: str, name: str, path: str, text: str) -> str:
    """The import of a module of Node.js, written as the import next to it is; empty if that has another form."""
    found = _ECMA_LINE.fullmatch(near.strip())
    if found is None:
        return ""
    path = f"node:{path}" if re.search(r"['\"]node:", text) else path
    line, (start, end) = near.strip(), found.span("path")
    return line[: found.start("name")] + name + line[found.end("name") : start] + path + line[end:]
