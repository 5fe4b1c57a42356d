"""Hides files and secrets from the model, and rejects proposals that would show the cover. Pure.

Globs hide whole files. Secrets within a file are masked with FILLER, of the same length so that offsets stay valid,
in jobs and neighbours but never in the document. A proposal that contains FILLER is not shown.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

from msgspec.structs import replace

from caesura import wire
from caesura.server.context.globs import MOST, Globs, TooMany
from caesura.server.text.document import Span

FILLER = "\u2588"  # a full block: no programming language uses it, and it costs few tokens
RULES = ".caesuraignore"  # a file of gitignore patterns in a workspace folder

# fmt: off
_SOURCES = ("py", "pyi", "js", "jsx", "ts", "tsx", "go", "rs", "java", "kt", "rb", "php", "cs", "swift", "c", "cc",
            "cpp", "h", "hpp", "md")
# Files that usually hold secrets. `config.json`, `settings.json` and the like are code in most projects: not hidden.
_HIDDEN = (
    ".env*", "!.env.example", "!.env.sample", "!.env.template", "*.env", ".envrc",
    "*.pem", "*.key", "*.p12", "*.pfx", "*.p8", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.asc", "*.gpg", "*.ovpn",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "!*.pub",
    "credentials*", "!credentials*/", "secrets.*", ".secrets*",
    *(f"!{name}.{extension}" for name in ("credentials*", "secrets") for extension in _SOURCES),
    ".netrc", "_netrc", ".pgpass", ".my.cnf", ".npmrc", ".pypirc", ".htpasswd", ".git-credentials", ".dockercfg",
    ".vault-token", ".terraformrc", "*.tfstate", "*.tfstate.*", "*.tfvars",
    ".aws/", ".ssh/", ".gnupg/", ".kube/", ".docker/config.json", ".git/",
)
# fmt: on


class Ignore:
    """The hidden files of one workspace folder: they get no proposals and are not neighbours.

    `patterns` are the user's, in gitignore syntax and case-insensitive. They follow the built-in ones and may reveal
    files again with `!`. `rules` are the lines of the folder's `.caesuraignore`, None if it cannot be read. They come
    with the project, so they can only hide more; `caseless` makes them case-insensitive. If the patterns cannot be
    used, all files are hidden. `problems` has a sentence for each invalid line and for a `file` that hides all files.
    """

    def __init__(
        self,
        patterns: Sequence[str] = (),
        rules: Sequence[str] | None = (),
        *,
        file: str = RULES,
        caseless: bool = False,
    ) -> None:
        self.problems: list[str] = []
        self._file = file
        self._caseless = caseless
        self._own = self._globs([pattern.lower() for pattern in (*_HIDDEN, *patterns)], "The setting 'ignore'")
        self._project = self._globs([line.lower() for line in rules] if rules and caseless else rules, file)

    def __repr__(self) -> str:
        return f"<Ignore {self._own} {self._project}>"

    def hides(self, path: str) -> bool:
        """True if the file at `path` is hidden. `path` is relative to the folder; for a file outside, absolute."""
        return self.rule(path) is not None

    def rule(self, path: str) -> str | None:
        """The rule that hides the file at `path`, in words; None if none does."""
        path = path.replace("\\", "/").lstrip("/")
        if self._own is None:
            return "the setting 'ignore', which cannot be used"
        if self._project is None:
            return f"{self._file}, which cannot be used"
        if not path:
            return None
        if found := self._own.match(path.lower()):
            return f"the built-in rule {found!r}" if found in _HIDDEN else f"the rule {found!r} of the setting 'ignore'"
        found = self._project.match(path.lower() if self._caseless else path)
        return f"the rule {found!r} of {self._file}" if found else None

    def _globs(self, patterns: Sequence[str] | None, origin: str) -> Globs | None:
        try:
            found = Globs(patterns) if patterns is not None else None
        except TooMany:
            found = None
        if found is None:
            self.problems.append(
                f"{origin} hides all files, because it is not UTF-8 text with at most {MOST} patterns; correct it."
            )
            return None
        self.problems += [
            f"Ignore pattern {pattern!r} is not in gitignore syntax; correct or remove it." for pattern in found.wrong
        ]
        return found


# Secrets

_TOKEN = re.compile(  # tokens of well-known services, and JSON web tokens
    r"(?<![\w-])(?:"
    r"A(?:KIA|SIA)[A-Z0-9]{16}(?!\w)"
    r"|AIza[\w-]{35}|AGE-SECRET-KEY-1[A-Z0-9]{50,}"
    r"|dop_v1_[0-9a-f]{64}|d(?:apikey_|ckr_pat_)[\w-]{20,}"
    r"|eyJ[\w-]{10,}\.eyJ[\w-]{10,}(?:\.[\w-]*)?"
    r"|g(?:h[opsur]_[A-Za-z0-9]{30,}|ithub_pat_\w{22,}|l(?:pat|dt|rt|ptt)-[\w-]{20,}|sk_[A-Za-z0-9]{40,})"
    r"|hf_[A-Za-z0-9]{30,}|hv[sb]\.[\w-]{24,}"
    r"|key-[0-9a-f]{32}|lin_api_[A-Za-z0-9]{32,}|np(?:m_[A-Za-z0-9]{36}|_[A-Za-z0-9]{40,})"
    r"|p(?:ypi-AgE[\w-]{50,}|pat_[\w-]{40,}|plx-[A-Za-z0-9]{40,}|scale_\w{3,5}_[\w.-]{32,})"
    r"|r(?:k_live_\w{16,}|dme_\w{60,})"
    r"|s(?:k_(?:live|test)_\w{16,}|k-(?:proj|ant|or|svcacct)-[\w-]{20,}|k-(?=[A-Za-z]*\d)[A-Za-z0-9]{20,}|hp(?:at|ca|pa|ss)_[0-9a-f]{32})"
    r"|S(?:G\.[\w-]{16,}\.[\w-]{30,}|K[0-9a-f]{32}(?!\w))"
    r"|whsec_[A-Za-z0-9+/]{24,}|xapp-\d-[\w-]{20,}|xox[abeprs]-[\w-]{10,}|ya29\.[\w-]{20,}"
    r")"
)
_HEADER = re.compile(r"(?:[Bb]earer|[Bb]asic|token)[ \t]+([A-Za-z0-9+/._~-]{20,}=*)")
_HOOK = re.compile(r"(?:hooks\.slack\.com/services/|discord\.com/api/webhooks/)([\w/-]{20,})")
_URL = re.compile(r"://[^\s:/@\"'`<>]{0,80}:([^\s/@\"'`<>(){}$%]{3,120})@(?=[\w\[])")
_FIELD = re.compile(
    r"(?:Password|PWD|Pwd|password|AccountKey|SharedAccessKey|SharedSecret)=([^\s;\"'`{}$<>(),\[\]]{4,200})(?=[;\"'`])"
)
_WORD = r"(?:[Pp]ass(?:word|wd|phrase)|PASS(?:WORD|WD|PHRASE)|[Pp]wd|PWD|[Ss]ecret|SECRET)"
_KEY = r"(?:[Tt]oken|TOKEN|[Kk]ey|KEY|[Cc]redentials?|CREDENTIALS?|[Ss]alt|SALT|[Ss]ignature|SIGNATURE)"
_NAMED = re.compile(  # name = "value", "name": "value", name := `value`; the closing quote may not be typed yet
    rf"(?:({_WORD})|{_KEY})(?:_?\d{{1,2}})?[\"']?\]?[ \t]*(?::[ \t]*[\w.\[\] |]{{1,40}}=|[:=]=?|=>)[ \t]*[bf]?"
    r"([\"'`])([^\s\"'`]{6,512})(?:\2|$)",
    re.MULTILINE,
)
_LINE = re.compile(  # NAME=value, export NAME=value, name: value, each on a line of its own
    rf"^[ \t]*(?:(?:export|ENV|ARG|set)[ \t]+)?[\w.-]{{0,60}}(?:({_WORD})|{_KEY})(?:=|:[ \t]+)"
    r"([^\s\"'`(){}\[\]$<>,;]{6,512})[ \t]*$",
    re.MULTILINE,
)
_PLACEHOLDER = re.compile(
    r"^[$%<]|[${%]\{|\$\(|\{\w*\}|%[sd(]|<\w+>|\.\.\.|x{4}|\*{3}|your|change.?me|example|placeholder|dummy|redacted",
    re.IGNORECASE,
)
_DRAWN = re.compile(r"[A-Za-z0-9+=~_-][A-Za-z0-9+/=._~-]*")
_WRITTEN = re.compile(r"[a-z]{9}|[A-Z]{12}")
_BREAK = re.compile(r"\r\n|[\r\n]|\\[nr]|-----(BEGIN|END) [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_LINE = re.compile(r"[\s\"'`+,()>|#*\\]*+([A-Za-z0-9+/=]*+)[\s\"'`+,();\\]*+")
_KEY_HEADER = re.compile(r"\s*[A-Z][\w-]{2,20}: .*")

MOST_KEY_LINES = 200  # lines of a private key; a long one has 100


def masked(text: str) -> str:
    """`text` with its secrets replaced by FILLER. Length and line breaks stay the same.

    Secrets are tokens of known services, private keys, passwords in URLs and connection strings, literals assigned to
    a name like `password`, and literals that look random assigned to a name like `api_key`."""
    covered = sorted(_secrets(text))
    if not covered:
        return text
    parts: list[str] = []
    at = 0
    for start, end in covered:
        if end > at:
            start = max(start, at)
            parts += text[at:start], _cover(text[start:end])
            at = end
    return "".join([*parts, text[at:]])


@lru_cache(maxsize=8)
def masked_schema(text: str) -> str:
    """`masked`, cached: a schema is part of every job of its documents."""
    return masked(text)


def concealed(
    prefix: str, segments: Sequence[wire.Text | wire.Hole], suffix: str
) -> tuple[str, tuple[wire.Text | wire.Hole, ...], str]:
    """Prefix, segments and suffix of a job, masked as one text, so that a hole inside a secret reveals neither half."""
    plain = prefix + "".join(part.text for part in segments if isinstance(part, wire.Text)) + suffix
    text, at = masked(plain), len(prefix)
    parts: list[wire.Text | wire.Hole] = []
    for part in segments:
        if isinstance(part, wire.Text):
            parts.append(wire.Text(text[at : at + len(part.text)]))
            at += len(part.text)
        else:
            parts.append(_beside(part, plain, text, at))
    return text[: len(prefix)], tuple(parts), text[at:]


def _beside(hole: wire.Hole, plain: str, text: str, at: int) -> wire.Hole:
    """The hole at `at` of `plain`, with `typed` and `then` of its grammar taken from the masked `text`."""
    grammar = hole.grammar
    if not isinstance(grammar, wire.Json) or not (grammar.typed or grammar.then):
        return hole
    start, end = at - len(grammar.typed), at + len(grammar.then)
    typed = text[start:at] if plain[max(0, start) : at] == grammar.typed else masked(grammar.typed)
    then = text[at:end] if plain[at:end] == grammar.then else masked(grammar.then)
    return replace(hole, grammar=replace(grammar, typed=typed, then=then))


def reveals(proposal: str, prefix: str, suffix: str) -> bool:
    """True if a proposal contains FILLER and the unmasked file does not: it must not be shown."""
    return FILLER in proposal and FILLER not in prefix and FILLER not in suffix


def _cover(secret: str) -> str:
    return re.sub(r"[^\r\n]", FILLER, secret)


def _secrets(text: str) -> Iterator[Span]:
    for found in _TOKEN.finditer(text):
        yield found.span()
    yield from _values(_HOOK, text, lambda value: not _PLACEHOLDER.search(value))
    yield from _values(_URL, text, lambda value: not _PLACEHOLDER.search(value))
    yield from _values(_FIELD, text, lambda value: not _PLACEHOLDER.search(value))
    yield from _values(_HEADER, text, _random)
    for pattern, value in ((_NAMED, 3), (_LINE, 2)):
        for found in pattern.finditer(text):
            if _secret(found[value], word=found[1] is not None, quoted=pattern is _NAMED):
                yield found.span(value)
    if "PRIVATE KEY" in text:
        yield from _private_keys(text)


def _values(pattern: re.Pattern[str], text: str, secret: Callable[[str], bool]) -> Iterator[Span]:
    return (found.span(1) for found in pattern.finditer(text) if secret(found[1]))


def _secret(value: str, *, word: bool, quoted: bool) -> bool:
    """True if a value assigned to a name like `password` (`word`) or `api_key` looks like a secret, not like a name, a
    template or an example."""
    if _PLACEHOLDER.search(value):
        return False
    if word and (quoted or _has_digit_and_letter(value)):
        return not re.fullmatch(r"[a-z]+(?:[_./:-][a-z]+)*|[A-Z]+(?:_[A-Z]+)*|(?:[A-Z][a-z]+)+", value)
    return _random(value)


def _random(value: str) -> bool:
    """True if a literal looks random: long, with high entropy and mixed kinds of characters."""
    if len(value) < 16 or not _DRAWN.fullmatch(value) or not _has_digit_and_letter(value) or _WRITTEN.search(value):
        return False
    counts = [value.count(c) / len(value) for c in set(value)]
    if -sum(share * math.log2(share) for share in counts) < 3.0:  # bits per character
        return False
    changes = sum(_kind(a) != _kind(b) for a, b in pairwise(value))
    return sum(map(str.isdigit, value)) >= max(2, len(value) // 16) or 2 * changes >= len(value)


def _kind(c: str) -> int:
    return 0 if c.isdigit() else 1 if c.isupper() else 2


def _has_digit_and_letter(value: str) -> bool:
    return any(c.isdigit() for c in value) and any(c.isalpha() for c in value)


def _private_keys(text: str) -> Iterator[Span]:
    """The lines after each BEGIN and before each END: a context may contain only one of them. Lines may also be
    separated by escapes."""
    breaks = list(_BREAK.finditer(text))
    bounds = [0, *(bound for found in breaks for bound in found.span()), len(text)]
    pieces = list(zip(bounds[::2], bounds[1::2], strict=True))
    for index, found in enumerate(breaks):
        if found[1]:
            near = range(index + 1, len(pieces)) if found[1] == "BEGIN" else range(index, -1, -1)
            yield from _key_lines(text, (pieces[number] for number in near[:MOST_KEY_LINES]))


def _key_lines(text: str, pieces: Iterable[Span]) -> list[Span]:
    """The key at the start of `pieces`: lines of base64, at least one of them long, up to the first other line."""
    lines: list[Span] = []
    for start, end in pieces:
        if found := _KEY_LINE.fullmatch(text, start, end):
            lines.append(found.span(1))
        elif not _KEY_HEADER.fullmatch(text, start, end):
            break
    return lines if any(end - start >= 16 for start, end in lines) else []
