"""The languages that the server knows: a row for each; its grammar is loaded on first use.

To add a language, add a row, and its grammar's wheel to pyproject.toml. A grammar comes from its own wheel or, if that
is missing, from the optional package tree-sitter-languages. A language without a row or a grammar gets no tree;
everything else still works.
"""

import ctypes
import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath
from typing import Literal

import tree_sitter

from caesura.server.names import CPP, GO, JAVA, JAVASCRIPT, PYTHON, RUST, TSX, TYPESCRIPT, C, NameRules
from caesura.server.words import CMAKE, ELIXIR, HTML, JULIA, LUA, RUBY, SHELL, SQL, XML, Tags, Words

_BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))


@dataclass(frozen=True)
class Import:
    """An import of a document: the paths to try, with no ending if the language omits it."""

    paths: tuple[str, ...]
    relative: bool = False  # to the document, not to a folder


def _none(text: str, name: str) -> Iterator[Import]:
    return iter(())


@dataclass(frozen=True, eq=False)  # rows are keys of caches: comparing by identity is faster than by all fields
class Language:
    """`openers` end a line that begins a block; in an `offside` language, indentation alone closes it. If there are
    `headers`, a line that opens a block begins with one of these words. `words` open and close blocks too.

    `apart` is a statement that no line above it can take as its rest. `directives`: lines with "#if" and "#endif" pair.

    `step` is the usual indentation of a body, for a file that shows none; if `tabs`, no other one works.

    `quotes` are the marks of strings, `prefixes` the letters that may precede one. Strings with a mark in `spanning`
    continue over line ends. `interpolations` begin code in a string; after a prefix in `formats`, a plain "{" does.
    `raw` are two patterns for each kind of strings or comments over several lines without escapes: for the start, and
    for all after it up to the `end`, in which `\\1` is the first group of the start.
    `heredoc` is a pattern for the start of a here-document; its last group is the word that ends it. If it has a group
    `tabs`, only tabs may precede that word.

    `dollars`: "${1:x}" is code, not a placeholder. `prose`: most of the text is natural language.

    Languages of the same `kin` are laid out alike. `imports` maps a text and its file's name to its imports from the
    workspace; `endings` are tried after an imported path.

    `edits` names the format of the language's structured edits; `lines`: each line is a document. `names` says how the
    language binds names. `wheel` is (module, function) of a grammar wheel; `bundled` is the grammar's name in
    tree-sitter-languages.
    """

    id: str
    wheel: tuple[str, str] | None = None
    bundled: str | None = None
    comment: str | None = None
    openers: tuple[str, ...] = ()
    headers: frozenset[str] = frozenset()
    offside: bool = False
    words: Words | Tags | None = None
    apart: str = ""
    directives: bool = False
    step: str = "    "
    tabs: bool = False
    block_comment: tuple[str, str] | None = None
    pairs: tuple[tuple[str, str], ...] = _BRACKETS
    quotes: str = "\"'"
    long_quotes: tuple[str, ...] = ()
    spanning: str = ""
    prefixes: str = ""
    formats: str = ""
    interpolations: tuple[str, ...] = ("${",)
    raw: tuple[tuple[str, str], ...] = ()
    heredoc: str = ""
    dollars: bool = False
    prose: bool = False
    kin: str = ""
    imports: Callable[[str, str], Iterator[Import]] = _none
    endings: tuple[str, ...] = ("",)
    edits: Literal["json", "markdown", "yaml", "toml", ""] = ""
    lines: bool = False
    names: NameRules | None = None
    extensions: tuple[str, ...] = ()
    files: tuple[str, ...] = ()  # names in lower case
    aliases: tuple[str, ...] = ()

    @property
    def blocks(self) -> bool:
        """True if the language has blocks that we know."""
        return bool(self.openers or self.words)


# Imports


_PYTHON_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\.*)([\w.]*)[ \t]+import[ \t]+(\([^)]{0,2000}\)|[^\n#;]+)|import[ \t]+([^\n#;]+))",
    re.MULTILINE,
)


def _python_imports(text: str, name: str) -> Iterator[Import]:
    for dots, module, names, modules in _PYTHON_IMPORT.findall(text):
        for module_name in _imported(modules):
            yield Import((module_name.replace(".", "/"),))
        if not names:
            continue
        base = "../" * (len(dots) - 1) + module.replace(".", "/")
        for member in _imported(names.strip("()")):  # it may be a module of the package
            yield Import((f"{base}/{member}" if base else member,), relative=bool(dots))
        if module:
            yield Import((base,), relative=bool(dots))


def _imported(names: str) -> Iterator[str]:
    """`a.b as c, d` is a.b and d."""
    for part in names.split(","):
        words = part.split("#")[0].split()
        if words and re.fullmatch(r"[\w.]+", words[0]):
            yield words[0]


_ECMA_IMPORT = re.compile(
    r"(?:^|[;\s])(?:import|export)\b[^'\"`;()=]{0,1000}?(?:\bfrom\b)?\s*['\"]([^'\"\n]{1,300})['\"]"
    r"|\b(?:const|let|var)[ \t]+[\w$]+[ \t]*=[ \t]*require\([ \t]*['\"]([^'\"\n]{1,300})['\"]"
)


def _ecma_imports(text: str, name: str) -> Iterator[Import]:
    for path, required in _ECMA_IMPORT.findall(text):
        path = path or required
        stem = re.sub(r"\.[cm]?jsx?$", "", path)  # `./a.js` may be `./a.ts` before it is compiled
        paths = (path, stem) if stem != path else (path,)
        if path.startswith("."):
            yield Import(paths, relative=True)
        elif path.startswith(("@/", "~/")):  # bundlers' usual alias of a project's sources
            yield Import(tuple(each[2:] for each in paths))
        elif "/" in path and not path.startswith("@"):
            yield Import(paths)


_C_INCLUDE = re.compile(r"^[ \t]*#[ \t]*(?:include|import)[ \t]*\"([^\"\n]{1,300})\"", re.MULTILINE)


def _c_imports(text: str, name: str) -> Iterator[Import]:
    for found in _C_INCLUDE.finditer(text):
        yield Import((found[1],), relative=True)
        yield Import((found[1],))
    if not name.endswith((".h", ".hh", ".hpp")):
        header = PurePosixPath(name).stem
        yield Import((f"{header}.h", f"{header}.hpp", f"{header}.hh"), relative=True)


_RUST_USE = re.compile(
    r"^[ \t]*(?:pub(?:\([^)\n]*\))?[ \t]+)?(?:mod[ \t]+(\w+)[ \t]*;|use[ \t]+((?:crate|super|self)(?:::\w+)+))",
    re.MULTILINE,
)


def _rust_imports(text: str, name: str) -> Iterator[Import]:
    stem = PurePosixPath(name).stem
    inner = "" if stem in ("mod", "lib", "main") else f"{stem}/"
    for module, path in _RUST_USE.findall(text):
        if module:
            yield Import((f"{inner}{module}",), relative=True)
            continue
        root, *parts = path.split("::")
        paths = tuple("/".join(parts[:size]) for size in range(len(parts), 0, -1))
        if root == "super":
            up = "../" if stem == "mod" else ""
            paths = tuple(up + each for each in paths)
        elif root == "self":
            paths = tuple(inner + each for each in paths)
        yield Import(paths, relative=root != "crate")


# The rows


def _wheel(module: str, function: str = "language") -> tuple[str, str]:
    return f"tree_sitter_{module}", function


_C_COMMENT, _MARKUP_COMMENT = ("/*", "*/"), ("<!--", "-->")
_PYTHON_HEADERS = frozenset(
    ["async", "case", "class", "def", "elif", "else", "except", "finally", "for", "if", "match", "try", "while", "with"]
)
_braced = partial(Language, comment="//", openers=("{",), apart="for (;;) {}", block_comment=_C_COMMENT)
_ecma = partial(
    Language,
    comment="//",
    openers=("{", "=>"),
    apart="for (;;) {}",
    step="  ",
    block_comment=_C_COMMENT,
    quotes="\"'`",
    spanning="`",
    imports=_ecma_imports,
    endings=("", ".ts", ".tsx", ".d.ts", ".js", ".jsx", ".mjs", "/index.ts", "/index.tsx", "/index.js", ".mts", ".cts"),
)
_c = partial(
    _braced,
    directives=True,
    prefixes="LuUR",
    raw=((r"(?<=R)\"(\w*)\(", r".*?(?P<end>\)\1\")"),),
    kin="c",
    imports=_c_imports,
)
_json = partial(Language, wheel=_wheel("json"), bundled="json", openers=("{", "["), step="  ", quotes='"', edits="json")

# fmt: off
_TABLE = (
    Language("python", _wheel("python"), "python", "#", (":",), _PYTHON_HEADERS, offside=True,
             long_quotes=('"""', "'''"), prefixes="rbfuRBFU", formats="fF", interpolations=(),
             imports=_python_imports, endings=(".py", "/__init__.py", ".pyi"), names=PYTHON,
             extensions=(".py", ".pyi")),
    _ecma("javascript", _wheel("javascript"), "javascript", names=JAVASCRIPT,
          extensions=(".js", ".mjs", ".cjs")),
    _ecma("javascriptreact", _wheel("javascript"), "javascript", names=JAVASCRIPT,
          extensions=(".jsx",), aliases=("jsx",)),
    _ecma("typescript", _wheel("typescript", "language_typescript"), "typescript", names=TYPESCRIPT,
          extensions=(".ts", ".mts", ".cts")),
    _ecma("typescriptreact", _wheel("typescript", "language_tsx"), "tsx", names=TSX,
          extensions=(".tsx",), aliases=("tsx",)),
    _json("json", extensions=(".json", ".webmanifest")),
    _json("jsonc", comment="//", block_comment=_C_COMMENT, extensions=(".jsonc", ".code-workspace", ".code-snippets")),
    _json("jsonl", lines=True, extensions=(".jsonl", ".ndjson"), aliases=("ndjson",)),
    Language("markdown", _wheel("markdown"), "markdown", block_comment=_MARKUP_COMMENT, quotes="", prose=True,
             edits="markdown", extensions=(".md", ".markdown")),
    _braced("go", _wheel("go"), "go", apart="if (a) {}", step="\t", quotes="\"'`", spanning="`", names=GO,
            extensions=(".go",)),
    Language("rust", _wheel("rust"), "rust", "//", ("{",), apart="if (a) {}", block_comment=_C_COMMENT,
             quotes='"', spanning='"', prefixes="br", raw=((r"(?<=r)(#+)\"", r".*?(?P<end>\"\1)"),),
             imports=_rust_imports, endings=(".rs", "/mod.rs"), names=RUST, extensions=(".rs",)),
    _c("c", _wheel("c"), "c", names=C, extensions=(".c", ".h")),
    _c("cpp", _wheel("cpp"), "cpp", names=CPP, extensions=(".cc", ".cpp", ".cxx", ".hpp", ".hh"),
       aliases=("cuda", "cuda-cpp")),
    _braced("java", _wheel("java"), "java", long_quotes=('"""',), names=JAVA, extensions=(".java",)),
    Language("html", _wheel("html"), "html", words=HTML, step="  ", block_comment=_MARKUP_COMMENT, quotes='"',
             extensions=(".html", ".htm")),
    Language("css", _wheel("css"), "css", None, ("{",), step="  ", block_comment=_C_COMMENT, extensions=(".css",)),
    Language("yaml", _wheel("yaml"), "yaml", "#", (":",), offside=True, step="  ", edits="yaml",
             extensions=(".yaml", ".yml")),
    Language("toml", _wheel("toml"), "toml", "#", step="  ", long_quotes=('"""', "'''"), edits="toml",
             extensions=(".toml",)),
    Language("shellscript", _wheel("bash"), "bash", "#", ("then", "do", "{"), words=SHELL,
             heredoc=r"(?<![<\w])<<(?P<tabs>-)?[ \t]*(['\"]?)([A-Za-z_]\w*)\2", spanning="\"'",
             interpolations=("${", "$("), dollars=True, extensions=(".sh", ".bash", ".zsh"),
             files=(".bashrc", ".bash_profile", ".profile", ".zshrc", "pkgbuild"), aliases=("bash", "sh", "zsh")),
    _braced("csharp", _wheel("c_sharp"), "c_sharp", directives=True, long_quotes=('"""',),
            raw=((r"(?:@\$?|\$@)\"", r"(?:\"\"|[^\"])*(?P<end>\")(?!\")"),), extensions=(".cs",), aliases=("cs",)),
    Language("dockerfile", None, "dockerfile", "#", extensions=(".dockerfile",), files=("dockerfile", "containerfile")),
    Language("elixir", None, "elixir", "#", ("->",), words=ELIXIR, step="  ", extensions=(".ex", ".exs")),
    Language("elm", None, "elm", "--", ("=", "of", "let"), offside=True, extensions=(".elm",)),
    Language("erlang", None, "erlang", "%", ("->",), extensions=(".erl", ".hrl")),
    Language("fortran", None, "fortran", "!", ("then",), extensions=(".f90", ".f95")),
    Language("go.mod", None, "gomod", "//", ("(",), extensions=(".mod",), aliases=("gomod",)),
    Language("haskell", None, "haskell", "--", ("=", "where", "do", "of"), offside=True, quotes='"',
             extensions=(".hs",)),
    Language("hcl", _wheel("hcl"), "hcl", "#", ("{",), step="  ", quotes='"', heredoc=r"<<-?([A-Za-z_]\w*)$",
             extensions=(".hcl", ".tf"), aliases=("terraform",)),
    Language("julia", None, "julia", "#", words=JULIA, quotes='"', extensions=(".jl",)),
    _braced("kotlin", _wheel("kotlin"), "kotlin", openers=("{", "->"), apart="if (a) {}", long_quotes=('"""',),
            extensions=(".kt", ".kts")),
    Language("lisp", None, "commonlisp", ";", step="  ", quotes='"',
             extensions=(".lisp", ".cl"), aliases=("commonlisp",)),
    Language("lua", _wheel("lua"), "lua", "--", words=LUA, apart="if a then end", step="  ",
             raw=((r"(?:--)?\[(=*)\[", r".*?(?P<end>\]\1\])"),), extensions=(".lua",)),
    Language("makefile", None, "make", "#", (":",), step="\t", tabs=True, dollars=True,
             extensions=(".mk",), files=("makefile", "gnumakefile", "bsdmakefile"), aliases=("make",)),
    _c("objective-c", None, "objc", extensions=(".m",), aliases=("objc",)),
    Language("ocaml", None, "ocaml", None, ("=", "->"), quotes='"', extensions=(".ml",)),
    Language("perl", None, "perl", "#", ("{",), dollars=True, extensions=(".pl", ".pm")),
    _braced("php", _wheel("php", "language_php"), "php", dollars=True,
            heredoc=r"<<<(['\"]?)([A-Za-z_]\w*)\1", extensions=(".php",)),
    Language("r", None, "r", "#", ("{",), step="  ", extensions=(".r",)),
    Language("restructuredtext", None, "rst", quotes="", prose=True, extensions=(".rst",), aliases=("rst",)),
    Language("ruby", _wheel("ruby"), "ruby", "#", words=RUBY, apart="alias a b", step="  ",
             raw=((r"(?<![^\n])=begin\b", r".*?\n(?P<end>=end\b)"),),
             heredoc=r"<<[-~](['\"]?)([A-Z_]\w*)\1", extensions=(".rb", ".rake", ".gemspec"),
             files=("gemfile", "rakefile")),
    _braced("scala", None, "scala", step="  ", long_quotes=('"""',), extensions=(".scala", ".sc")),
    Language("sql", _wheel("sql"), "sql", "--", ("(",), words=SQL, extensions=(".sql",)),
    _braced("swift", _wheel("swift"), None, openers=("{", "in"), apart="if (a) {}", directives=True,
            long_quotes=('"""',), extensions=(".swift",)),
    _braced("dart", None, None, step="  ", long_quotes=('"""', "'''"), extensions=(".dart",)),
    _braced("groovy", None, None, long_quotes=('"""', "'''"), extensions=(".groovy", ".gradle")),
    _braced("zig", None, None, block_comment=None, extensions=(".zig",)),
    _braced("proto3", None, None, step="  ", extensions=(".proto",), aliases=("proto", "protobuf")),
    _braced("scss", _wheel("scss"), None, step="  ", extensions=(".scss",)),
    _braced("less", None, None, step="  ", extensions=(".less",)),
    Language("graphql", None, None, "#", ("{",), step="  ", quotes='"', extensions=(".graphql", ".gql")),
    Language("powershell", None, None, "#", ("{",), block_comment=("<#", "#>"), dollars=True,
             extensions=(".ps1", ".psm1", ".psd1")),
    Language("nix", _wheel("nix"), None, "#", ("{", "(", "[", "let"), step="  ", quotes='"', extensions=(".nix",)),
    Language("cmake", None, None, "#", words=CMAKE, step="  ", dollars=True, extensions=(".cmake",),
             files=("cmakelists.txt",)),
    Language("xml", None, None, words=XML, step="  ", block_comment=_MARKUP_COMMENT,
             extensions=(".xml", ".svg", ".xsd", ".csproj")),
    Language("vue", None, None, words=HTML, step="  ", block_comment=_MARKUP_COMMENT, extensions=(".vue",)),
    Language("svelte", None, None, words=HTML, step="  ", block_comment=_MARKUP_COMMENT, extensions=(".svelte",)),
    Language("elisp", None, "elisp", ";", step="  ", quotes='"', extensions=(".el",), aliases=("emacs-lisp",)),
    Language("dot", None, "dot", "//", ("{",), step="  ", quotes='"', extensions=(".dot", ".gv")),
)
# fmt: on

COMMON = frozenset(  # keywords and common names, which do not tell related code from other code
    name
    for line in (
        "abstract and as assert async await bool boolean break case catch char class const continue def default del do",
        "elif else enum except export extends extern false False final finally float fn for from func function global",
        "go if impl implements import in include instanceof int interface is lambda let long loop match mod mut",
        "namespace new nil None not null number or override package pass private protected pub public raise readonly",
        "ref return self Self short signed sizeof static str string struct super switch template this This throw",
        "throws trait true True try type typedef typeof undefined union unsafe unsigned use using var virtual void",
        "while with yield",
    )
    for name in line.split()
)

LANGUAGES = {language.id: language for language in _TABLE}
_ALIASES = {alias: language for language in _TABLE for alias in language.aliases}
_FILES = {file: language for language in _TABLE for file in language.files}
_EXTENSIONS = {extension: language for language in _TABLE for extension in language.extensions}
UNKNOWN = Language("plaintext", quotes="")
JSON = frozenset(row.id for row in _TABLE if row.edits == "json")
_COMMENTED = re.compile(  # paths of JSON files that may have comments; editors call some of them plain JSON or text
    r"(?:^|[\\/])(?:"
    r"\.(?:babel|eslint|hint|jscs|jsfmt|jshint|jslint|swc)rc(?:\.json)?"
    r"|(?:[jt]sconfig[\w.-]*|\.?devcontainer|\.luarc|api-extractor|babel\.config|deno|keybindings|language-configuration"
    r"|nx|pyrightconfig|rush|tslint|turbo|(?:\.vscode|\.zed|User)[\\/][\w-]+)\.json"
    r")$"
)


def language(name: str, path: str = "") -> Language:
    """The row of an editor's language id or, if the id is unknown, of the file's name or extension; that of JSON with
    comments for a file that is known for them."""
    row = LANGUAGES.get(name) or _ALIASES.get(name) or _by_path(PurePosixPath(path.lower()))
    return LANGUAGES["jsonc"] if (row.id == "json" or row is UNKNOWN) and _COMMENTED.search(path) else row


def _by_path(path: PurePosixPath) -> Language:
    return _FILES.get(path.name) or _EXTENSIONS.get(path.suffix, UNKNOWN)


@cache
def grammar(row: Language) -> tree_sitter.Language | None:
    """The grammar, loaded on first use; None if neither its wheel nor the bundle has it."""
    if row.wheel and importlib.util.find_spec(row.wheel[0]):
        module = importlib.import_module(row.wheel[0])
        return tree_sitter.Language(getattr(module, row.wheel[1])())
    return _bundled(row.bundled) if row.bundled else None


@cache
def query(row: Language, *without: str) -> tree_sitter.Query | None:
    """The query that finds a language's names, `without` some captures, loaded on first use. None if the row has no
    `names`, or the grammar is missing or has other nodes."""
    found = _query(row, row.names.queries) if row.names else None
    if found:
        for capture in without:
            found.disable_capture(capture)
    return found


@cache
def members_query(row: Language) -> tree_sitter.Query | None:
    """The query that finds a language's members; None as for `query`."""
    return _query(row, row.names.members.queries) if row.names and row.names.members else None


def _query(row: Language, names: Sequence[str]) -> tree_sitter.Query | None:
    known, folder = grammar(row), Path(__file__).with_name("queries")
    if known is None:
        return None
    try:
        return tree_sitter.Query(known, "\n".join((folder / f"{name}.scm").read_text("utf-8") for name in names))
    except tree_sitter.QueryError:
        return None


def _bundled(name: str) -> tree_sitter.Language | None:
    """A grammar from tree-sitter-languages. Its own loader fails with current tree-sitter, so this makes the
    capsule."""
    library = _bundle()
    if library is None or not hasattr(library, f"tree_sitter_{name}"):
        return None
    function = getattr(library, f"tree_sitter_{name}")
    function.restype = ctypes.c_void_p
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype = ctypes.py_object
    capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return tree_sitter.Language(capsule(function(), b"tree_sitter.Language", None))


@cache
def _bundle() -> ctypes.CDLL | None:
    spec = importlib.util.find_spec("tree_sitter_languages")
    if spec is None or spec.origin is None:
        return None
    suffix = {"win32": "dll", "darwin": "dylib"}.get(sys.platform, "so")
    path = Path(spec.origin).with_name(f"languages.{suffix}")
    return ctypes.CDLL(str(path)) if path.exists() else None
