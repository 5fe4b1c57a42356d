"""How languages bind names: a row for each language in which the server looks for a name that nothing binds."""

import builtins
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from caesura.server.libraries import (
    C_IMPORTS,
    CPP_IMPORTS,
    ECMA_IMPORTS,
    GO_IMPORTS,
    JAVA_IMPORTS,
    PYTHON_IMPORTS,
    RUST_IMPORTS,
    ImportRules,
)


@dataclass(frozen=True, eq=False)
class MemberRules:
    """`queries` are files in the folder of that name; together they are the query that infill/members.py describes.
    `reads` finds the members that a text reads; a text that matches `unseen` may have members which it does not show.
    `functions` are the nodes that have a receiver of their own. Every object has the `known` members. A base or a
    decorator that matches `plain` adds none, and a base from `builtins` only those of that class."""

    queries: tuple[str, ...]
    reads: str
    unseen: str
    functions: str
    known: str
    plain: str
    builtins: Mapping[str, str]


@dataclass(frozen=True, eq=False)
class NameRules:
    """`queries` are files in the folder of that name; together they are the query that context/scopes.py describes.

    A fill that binds NAME may begin with one of `starts`, and matches the RE2 `pattern` somewhere. A variable has a
    name of this `shape`, and none of the `known` words, which the language or its usual tools define. If a language
    `hoists`, a function, a type or an import holds in its whole scope, also before its own place. A text that matches
    the RE2 `wildcard` imports names which it does not show. `members` says how a class binds its members,
    `import_rules` how a file brings the names of others."""

    queries: tuple[str, ...]
    starts: tuple[str, ...]
    pattern: str
    known: str = ""
    shape: str = r"[a-z]\w*"
    hoists: bool = True
    wildcard: str = ""
    members: MemberRules | None = None
    import_rules: ImportRules | None = None

    def is_variable(self, name: str) -> bool:
        return name not in self.known.split() and re.fullmatch(self.shape, name) is not None


_PYTHON_MEMBERS = MemberRules(
    ("members_python",),
    r"\bself\.(\w+)",
    r"\b(?:setattr|vars|locals|__getattr\w*|__setattr__|__dict__)\b",
    "function_definition",
    " ".join([*dir(object), "__dict__", "__name__", "__qualname__", "mro"]),
    r"object|(?:abc\.)?ABC|(?:typing\.)?Generic\[.*\]|metaclass\s*=\s*(?:abc\.)?ABCMeta"
    r"|@(?:dataclasses\.)?dataclass(?:\(.*\))?|@(?:typing\.)?final|@(?:functools\.)?total_ordering",
    {name: " ".join(dir(each)) for name, each in vars(builtins).items() if isinstance(each, type)},
)
PYTHON = NameRules(
    ("python",),
    ("NAME =",),
    r"(?:^|\n)\s*(?:[\w.]+\s*[,=]\s*|[*(\[]\s*)*NAME\s*(?:[,)\]][\s\w.,*()\[\]]*)?(?::[^=\n]+)?=(?:[^=]|$)"
    r"|(?:^|\n)[^#\n]*\b(?:"  # not in a comment
    r"for\s[^:\n]*\bNAME\b[^:\n]*\sin\b|as\s+\(?[^:\n]*\bNAME\b|(?:def|class)\s+NAME\b|import\s[^\n]*\bNAME\b"
    r"|NAME\s*:=)",
    known=" ".join([*dir(builtins), "self", "cls"]),
    shape=r"(?!_$)[^\W\d]\w*(?<!__)",
    hoists=False,
    wildcard=r"(?m)^[ \t]*from\s[^\n#]*\simport\s*\(?\s*\*",
    members=_PYTHON_MEMBERS,
    import_rules=PYTHON_IMPORTS,
)
_ECMA_KNOWN = """
AbortController AbortSignal Array ArrayBuffer BigInt Blob Boolean Buffer DOMException Date Error Event EventTarget
FormData Function Headers Infinity Intl JSON Map Math NaN Number Object Promise Proxy RangeError Reflect RegExp
Request Response Set String Symbol SyntaxError TextDecoder TextEncoder TypeError URL URLSearchParams Uint8Array
WeakMap WeakRef WeakSet WebSocket Worker XMLHttpRequest __dirname __filename
after afterAll afterEach alert arguments assert atob await before beforeAll beforeEach btoa cancelAnimationFrame
clearImmediate clearInterval clearTimeout confirm console crypto decodeURI decodeURIComponent define describe
document encodeURI encodeURIComponent escape eval event expect exports fetch global globalThis history isFinite
isNaN it jQuery jest localStorage location module name navigator parent parseFloat parseInt performance process
prompt queueMicrotask requestAnimationFrame require screen self sessionStorage setImmediate setInterval setTimeout
structuredClone suite test top undefined unescape vi window
"""
_ECMA = (  # a name may begin or end with `$`, where `\b` does not hold
    ("const NAME =", "let NAME ="),
    r"\b(?:const|let|var|function\*?|class)\s(?:[^=;]*[^=;\w$.])?NAME(?:[^\w$]|$)"
    r"|\b(?:const|let|var)\s+[{\[][^;]*[{\[,:.]\s*NAME\s*[=,}\]]"
    r"|(?:^|[^.\w$])NAME\s*=(?:[^=>]|$)"
    r"|\bcatch\s*\(\s*NAME(?:[^\w$]|$)",
    _ECMA_KNOWN,
    r"(?![A-Z_\d]+$|[$_]+$)[\w$]+",
)
_ECMA_MEMBERS = MemberRules(
    (),
    r"\bthis\s*\??\.\s*(#?[\w$]+)",
    r"\bObject\s*\.\s*(?:assign|define)|\bReflect\b|\bProxy\b|\bprototype\b|\b[mM]ixins?\b|\bthis\s*\[",
    "function_declaration function_expression generator_function generator_function_declaration method_definition "
    "class_static_block field_definition public_field_definition",
    "constructor hasOwnProperty isPrototypeOf propertyIsEnumerable toLocaleString toString valueOf __proto__",
    r"(?!)",
    {},
)
_JAVASCRIPT_MEMBERS = replace(_ECMA_MEMBERS, queries=("members_ecma", "members_javascript"))
_TYPESCRIPT_MEMBERS = replace(_ECMA_MEMBERS, queries=("members_ecma", "members_typescript"))
JAVASCRIPT = NameRules(("ecma", "javascript", "jsx"), *_ECMA, members=_JAVASCRIPT_MEMBERS, import_rules=ECMA_IMPORTS)
TYPESCRIPT = NameRules(("ecma", "typescript"), *_ECMA, members=_TYPESCRIPT_MEMBERS, import_rules=ECMA_IMPORTS)
TSX = NameRules(("ecma", "typescript", "jsx"), *_ECMA, members=_TYPESCRIPT_MEMBERS, import_rules=ECMA_IMPORTS)
GO = NameRules(
    ("go",),
    ("NAME :=",),
    r"(?:^|\n|;|\bfor\s|\bif\s|\bswitch\s|\bcase\s)\s*(?:[\w.]+\s*,\s*)*NAME\s*(?:,\s*[\w.]+\s*)*:?=(?:[^=]|$)"
    r"|\b(?:var|const|func)\s+(?:\w+\s*,\s*)*NAME\b",
    "any append bool byte cap clear close complex copy delete error false float32 float64 imag int int16 int32 int64 "
    "int8 iota len make max min new nil panic print println real recover rune string true uint uint16 uint32 uint64 "
    "uint8 uintptr",
    wildcard=r"(?m)^[ \t]*(?:import[ \t]+)?\.[ \t]+\"",
    import_rules=GO_IMPORTS,
)
RUST = NameRules(
    ("rust",),
    ("let NAME =", "let mut NAME ="),
    r"\blet\s[^=;]*\bNAME\b"
    r"|\bfor\s[^\n]*\bNAME\b[^\n]*\sin\b"
    r"|\b(?:fn|const|static)\s+NAME\b",
    # also words in the text of a macro
    "as box dyn else feature for if impl in let loop match move mut ref return target_os test unix while windows",
    wildcard=r"(?m)^(?:pub[^\n]*\s)?use\s[^;\n]*::\*",  # of the file, not of its tests
    import_rules=RUST_IMPORTS,
)


def _other_than(words: str, begun: str = "") -> str:
    """A pattern of any word but these; `begun` is the part that is matched already. RE2 has no negative lookahead, so
    the pattern branches at each letter in which a word may differ."""
    listed = words.split()
    following = "".join(sorted({word[len(begun)] for word in listed if word.startswith(begun) and word != begun}))
    ways = [rf"[^\W{following if begun else following + '0-9'}]\w*"]
    ways += [letter + _other_than(words, begun + letter) for letter in following]
    return f"(?:{'|'.join(ways)}){'?' if begun and begun not in listed else ''}"


VERBS = (
    "assert case co_await co_return co_yield delete else goto new not return sizeof throw yield"  # reads follow them
)
_TYPE = (
    r"(?:(?:static|const|final|struct|enum|unsigned)\s+)*"
    rf"{_other_than(VERBS)}\b(?:(?:::|\.)\w+)*(?:<[^;\n]*>)?(?:\[\])*"
)
_TYPED = (  # the name follows a type, and perhaps other names
    rf"(?:^|[;({{\n])\s*{_TYPE}[\s*&]"
    r"(?:(?:[\w\s*&,:\[\]]*[\s*&,])?NAME\s*(?:$|[=;,:\[({])|[^;\n]*,[\s*&]*NAME\s*(?:;|=[^=]))"
    r"|\bcatch\s*\([^)\n]*\bNAME\s*\)"
)
_C_KNOWN = "asm bool environ errno false nullptr optarg optind stderr stdin stdout this timezone true"
C = NameRules(("c",), (), _TYPED, _C_KNOWN, import_rules=C_IMPORTS)
CPP = NameRules(
    ("c", "cpp"),
    (),
    _TYPED + r"|\bauto\b[^=;\n]*\[[^\]\n]*\bNAME\b",
    _C_KNOWN,
    r"(?!k[A-Z])[a-z]\w*(?<!_)",  # neither a constant nor a member
    wildcard=r"(?m)^[ \t]*using\s+namespace\s",
    import_rules=CPP_IMPORTS,
)
JAVA = NameRules(
    ("java",),
    (),
    _TYPED + r"|\binstanceof\s[^)\n]*\bNAME\b",
    wildcard=r"(?m)^[ \t]*import\s+static\s[^;\n]*\.\*",
    import_rules=JAVA_IMPORTS,
)
