"""What the server knows of each language: one row a language, its grammar loaded when first needed.

Grammars come from single wheels; where a wheel is missing, from the optional package tree-sitter-languages.
A language without a row or a grammar gets no tree, and everything else still works.
"""

import ctypes
import importlib
import importlib.util
import re
import sys
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePosixPath

import tree_sitter

_BRACKETS = (("(", ")"), ("[", "]"), ("{", "}"))


@dataclass(frozen=True)
class Language:
    """`openers` end a line that begins a block; `offside` languages close it by indentation alone. Where `headers` has
    words, a line that opens a block begins with one of them.

    `quotes` are the marks of strings, those in `spanning` go on over line ends, and `interpolations` are code in them
    (a plain "{" in f-strings only). `dollars`: "$1" is code, not a placeholder.

    `wheel` is (module, function) of a grammar wheel; `bundled` names the grammar in tree-sitter-languages.
    """

    id: str
    wheel: tuple[str, str] | None = None
    bundled: str | None = None
    comment: str | None = None
    openers: tuple[str, ...] = ()
    headers: frozenset[str] = frozenset()
    offside: bool = False
    block_comment: tuple[str, str] | None = None
    pairs: tuple[tuple[str, str], ...] = _BRACKETS
    quotes: str = "\"'"
    long_quotes: tuple[str, ...] = ()
    spanning: str = ""
    interpolations: tuple[str, ...] = ("${",)
    dollars: bool = False
    extensions: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()


def _wheel(module: str, function: str = "language") -> tuple[str, str]:
    return f"tree_sitter_{module}", function


_C_COMMENT, _MARKUP_COMMENT = ("/*", "*/"), ("<!--", "-->")
_PYTHON_HEADERS = frozenset(
    ["async", "case", "class", "def", "elif", "else", "except", "finally", "for", "if", "match", "try", "while", "with"]
)
_ecma = partial(Language, comment="//", openers=("{", "=>"), block_comment=_C_COMMENT, quotes="\"'`", spanning="`")
_braced = partial(Language, comment="//", openers=("{",), block_comment=_C_COMMENT)
# fmt: off
_TABLE = (
    Language("python", _wheel("python"), "python", "#", (":",), _PYTHON_HEADERS, offside=True,
             long_quotes=('"""', "'''"), interpolations=(), extensions=(".py", ".pyi")),
    _ecma("javascript", _wheel("javascript"), "javascript", extensions=(".js", ".mjs", ".cjs")),
    _ecma("javascriptreact", _wheel("javascript"), "javascript", extensions=(".jsx",), aliases=("jsx",)),
    _ecma("typescript", _wheel("typescript", "language_typescript"), "typescript",
          extensions=(".ts", ".mts", ".cts")),
    _ecma("typescriptreact", _wheel("typescript", "language_tsx"), "tsx",
          extensions=(".tsx",), aliases=("tsx",)),
    Language("json", _wheel("json"), "json", None, ("{", "["), quotes='"', extensions=(".json", ".webmanifest")),
    Language("jsonc", _wheel("json"), "json", "//", ("{", "["), block_comment=_C_COMMENT, quotes='"',
             extensions=(".jsonc", ".code-workspace")),
    Language("jsonl", _wheel("json"), "json", None, ("{", "["), quotes='"', extensions=(".jsonl", ".ndjson"),
             aliases=("ndjson",)),
    Language("markdown", _wheel("markdown"), "markdown", block_comment=_MARKUP_COMMENT, quotes="",
             extensions=(".md", ".markdown")),
    _braced("go", _wheel("go"), "go", quotes="\"'`", spanning="`", extensions=(".go",)),
    Language("rust", _wheel("rust"), "rust", "//", ("{",), block_comment=_C_COMMENT, quotes='"', spanning='"',
             extensions=(".rs",)),
    _braced("c", _wheel("c"), "c", extensions=(".c", ".h")),
    _braced("cpp", _wheel("cpp"), "cpp", extensions=(".cc", ".cpp", ".cxx", ".hpp", ".hh"),
            aliases=("cuda", "cuda-cpp")),
    _braced("java", _wheel("java"), "java", extensions=(".java",)),
    Language("html", _wheel("html"), "html", block_comment=_MARKUP_COMMENT, quotes='"', extensions=(".html", ".htm")),
    Language("css", _wheel("css"), "css", None, ("{",), block_comment=_C_COMMENT, extensions=(".css",)),
    Language("yaml", _wheel("yaml"), "yaml", "#", (":",), offside=True, extensions=(".yaml", ".yml")),
    Language("toml", _wheel("toml"), "toml", "#", long_quotes=('"""', "'''"), extensions=(".toml",)),
    Language("shellscript", _wheel("bash"), "bash", "#", ("then", "do", "else", "{"), spanning="\"'",
             interpolations=("${", "$("), dollars=True, extensions=(".sh", ".bash"), aliases=("bash", "sh", "zsh")),
    _braced("csharp", None, "c_sharp", extensions=(".cs",), aliases=("cs",)),
    Language("dockerfile", None, "dockerfile", "#", extensions=(".dockerfile",)),
    Language("elixir", None, "elixir", "#", ("do", "->"), extensions=(".ex", ".exs")),
    Language("elm", None, "elm", "--", ("=", "of", "let"), offside=True, extensions=(".elm",)),
    Language("erlang", None, "erlang", "%", ("->",), extensions=(".erl", ".hrl")),
    Language("fortran", None, "fortran", "!", ("then",), extensions=(".f90", ".f95")),
    Language("go.mod", None, "gomod", "//", ("(",), extensions=(".mod",), aliases=("gomod",)),
    Language("haskell", None, "haskell", "--", ("=", "where", "do", "of"), offside=True, quotes='"',
             extensions=(".hs",)),
    Language("hcl", None, "hcl", "#", ("{",), quotes='"', extensions=(".hcl", ".tf"), aliases=("terraform",)),
    Language("julia", None, "julia", "#", quotes='"', extensions=(".jl",)),
    _braced("kotlin", None, "kotlin", extensions=(".kt", ".kts")),
    Language("lisp", None, "commonlisp", ";", quotes='"', extensions=(".lisp", ".cl"), aliases=("commonlisp",)),
    Language("lua", None, "lua", "--", ("then", "do", "else"), extensions=(".lua",)),
    Language("makefile", None, "make", "#", (":",), dollars=True, extensions=(".mk",), aliases=("make",)),
    _braced("objective-c", None, "objc", extensions=(".m",), aliases=("objc",)),
    Language("ocaml", None, "ocaml", None, ("=", "->"), quotes='"', extensions=(".ml",)),
    Language("perl", None, "perl", "#", ("{",), dollars=True, extensions=(".pl", ".pm")),
    _braced("php", None, "php", dollars=True, extensions=(".php",)),
    Language("r", None, "r", "#", ("{",), extensions=(".r",)),
    Language("restructuredtext", None, "rst", quotes="", extensions=(".rst",), aliases=("rst",)),
    Language("ruby", None, "ruby", "#", ("do", "then", "else"), extensions=(".rb",)),
    _braced("scala", None, "scala", extensions=(".scala", ".sc")),
    Language("sql", None, "sql", "--", extensions=(".sql",)),
    Language("elisp", None, "elisp", ";", quotes='"', extensions=(".el",), aliases=("emacs-lisp",)),
    Language("dot", None, "dot", "//", ("{",), quotes='"', extensions=(".dot", ".gv")),
)
# fmt: on

LANGUAGES = {language.id: language for language in _TABLE}
_ALIASES = {alias: language for language in _TABLE for alias in language.aliases}
_EXTENSIONS = {extension: language for language in _TABLE for extension in language.extensions}
UNKNOWN = Language("plaintext", quotes="")
JSON = frozenset({"json", "jsonc", "jsonl"})
_COMMENTED = re.compile(  # JSON files in which comments are usual; editors call some of them plain JSON
    r"(?:^|[\\/])(?:[jt]sconfig[\w.-]*|devcontainer|\.eslintrc|\.vscode[\\/][\w-]+)\.json$"
)


def language(name: str, path: str = "") -> Language:
    """The row for an editor's language id; an id we do not know is decided by the file's extension."""
    row = LANGUAGES.get(name) or _ALIASES.get(name) or _EXTENSIONS.get(PurePosixPath(path).suffix.lower(), UNKNOWN)
    return LANGUAGES["jsonc"] if row.id == "json" and _COMMENTED.search(path) else row


@cache
def grammar(row: Language) -> tree_sitter.Language | None:
    """The grammar, loaded on first use; None where neither its wheel nor the bundle has it."""
    if row.wheel and importlib.util.find_spec(row.wheel[0]):
        module = importlib.import_module(row.wheel[0])
        return tree_sitter.Language(getattr(module, row.wheel[1])())
    return _bundled(row.bundled) if row.bundled else None


def _bundled(name: str) -> tree_sitter.Language | None:
    """A grammar out of tree-sitter-languages, whose own loader fails with today's tree-sitter: hence the capsule."""
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
