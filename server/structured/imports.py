"""The lines at the head of a file that bring a name which the file uses and nothing in it brings. Pure.

A line is offered only if its path is known: from the standard library, or from another file of the project. The model
chooses among the lines."""

import re
from collections.abc import Iterator, Sequence

import tree_sitter

from caesura import wire
from caesura.server.context.neighbours import Snapshot
from caesura.server.context.scopes import Code, Extent
from caesura.server.languages import Language, query
from caesura.server.libraries import ImportRules
from caesura.server.structured.markdown.patterns import either, few
from caesura.server.structured.offer import Offer
from caesura.server.text.lexer import indent_of

MAX_FILE = 100_000  # most code points of a file whose names are read
MOST_LINES = 24  # most lines that the model chooses from
HEAD = 10_000  # code points of another file that are searched for imports
LONGEST = 120  # characters of a line, about 32 tokens

_WORD = re.compile(r"[\w$]+")
_ECMA_LINE = re.compile(
    r"(?:const|let|var|import)\s+(?P<name>[\w$]+)(?:\s*=\s*require\(|\s+from\s+)['\"](?P<path>[^'\"]+)['\"]\)?;?"
)


def completion(
    text: str,
    at: int,
    language: Language,
    tree: tree_sitter.Tree | None,
    name: str = "",
    others: Sequence[Snapshot] = (),
) -> Offer | None:
    """The line at a cursor that brings a name, after the part of it that stands there. None unless the cursor is at the
    end of a line next to an import, and a line is known for a name that nothing brings. `name` is the file's path, and
    `others` are other files of its project."""
    rules = language.names.imports if language.names else None
    if rules is None or tree is None or query(language) is None or len(text) > MAX_FILE:
        return None
    above, below = text[:at].splitlines() or [""], text[at:].split("\n")
    begun = "" if text[:at].endswith(("\n", "\r")) else above.pop()
    near = _next_to(above, below[1:], rules)
    if below[0].strip() or near is None or re.search(rules.unseen, text):
        return None
    code = Code(text.encode(), tree, language)
    rests = [line[len(begun) :] for line in _known(code, rules, near, begun, name, others) if line.startswith(begun)]
    rests = [rest for rest in rests if 0 < len(rest) <= LONGEST]
    if not rests:
        return None
    grammar = wire.Pattern(either(few(rests, MOST_LINES)))
    return Offer("Import", at, at, (wire.Hole(kind="line", grammar=grammar),), is_known=True, check=lambda new: None)


def _known(
    code: Code, rules: ImportRules, near: str, begun: str, name: str, others: Sequence[Snapshot]
) -> Iterator[str]:
    """The known lines, each indented as the line that is `begun`, or as the import that is `near`."""
    listed = bool(rules.listed) and (near.endswith("(") or bool(indent_of(near)))
    indent = indent_of(begun) or indent_of(near) or ("\t" if listed else "")
    yield from (indent + line for line in _lines(code, rules, near, rules.listed if listed else rules.written) if line)
    for line in _copied(code, rules, name, others):
        if not rules.listed or listed != line.startswith("import"):
            yield indent + line


def _next_to(above: Sequence[str], below: Sequence[str], rules: ImportRules) -> str | None:
    """The import next to a line, or the line at the head of the file after which the imports begin."""
    nearest = [next(filter(str.strip, lines), "").rstrip() for lines in (reversed(above), below)]
    found = [line for line in nearest if re.match(rules.line, line.strip())]
    return next(iter(found), nearest[0] if re.match(rules.head, nearest[0]) else None)


def _lines(code: Code, rules: ImportRules, near: str, written: str) -> Iterator[str]:
    """The lines that bring names of the standard library, in the order of the names; some may be empty."""
    text, unbound = code.source.decode(), list(_unbound(code))
    paths = {re.split(r"[/.:]", path)[-1]: path for path in rules.paths.split()}
    for path, name in ((paths[name], name) for name in unbound if name in paths):
        yield written.replace("PATH", path) if written else _as_near(near, name, path, text)
    read = [name for name in unbound if rules.before + name in text] if rules.headers else []
    for header, names in rules.headers.items():
        if any(re.fullmatch(names, name) for name in read) and f"<{header}>" not in text:
            yield written.replace("PATH", header)


def _copied(code: Code, rules: ImportRules, name: str, others: Sequence[Snapshot]) -> Iterator[str]:
    """The lines of other files that bring names which nothing in the file `name` brings."""
    package = re.search(rules.package, code.source.decode())
    for used in _unbound(code):
        brings = re.compile(rules.pattern.replace("NAME", re.escape(used)))
        for other in others:
            here = other.name.rpartition("/")[0] == name.rpartition("/")[0]
            for line in map(str.strip, other.text[:HEAD].split("\n") if used in other.text[:HEAD] else ()):
                own = package and line == f"import {package[1]}.{used};"
                local = not here and re.match(rules.relative, line)
                if re.match(rules.line, line) and brings.search(line) and not own and not local:
                    yield line


def _unbound(code: Code) -> Iterator[str]:
    """The names that the file reads as an import may bring them, and that nothing in it binds, in their order."""
    found = code.captures(Extent(0, len(code.source)))
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
