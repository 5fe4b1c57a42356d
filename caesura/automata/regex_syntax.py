"""Parser of ECMA-262 patterns (u flag).

It is more lenient than the u flag where the meaning is plain: `\\-` and `\\@` stand for themselves, and so does a brace
that is not a repetition.
"""

import unicodedata
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NoReturn

from caesura.automata.dfa import LAST, Ranges, Unsupported

DEPTH = 60  # of nested groups


@dataclass(frozen=True, slots=True)
class Characters:
    """One character from these ranges of code points, in order, both ends included."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Concatenation:
    parts: "tuple[RegexTree, ...]"


@dataclass(frozen=True, slots=True)
class Alternatives:
    parts: "tuple[RegexTree, ...]"


@dataclass(frozen=True, slots=True)
class Repeated:
    part: "RegexTree"
    least: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Anchor:
    """The start or the end of the text."""

    side: Literal["start", "end"]


@dataclass(frozen=True, slots=True)
class Lookahead:
    """The rest of the text begins with the part, or does not if `wanted` is False."""

    part: "RegexTree"
    wanted: bool


RegexTree = Characters | Concatenation | Alternatives | Repeated | Anchor | Lookahead


def union(*many: Ranges) -> Ranges:
    out: list[tuple[int, int]] = []
    for a, b in sorted(pair for ranges in many for pair in ranges):
        if out and a <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(b, out[-1][1]))
        else:
            out.append((a, b))
    return tuple(out)


def complement(ranges: Ranges) -> Ranges:
    out = []
    start = 0
    for a, b in union(ranges):
        if a > start:
            out.append((start, a - 1))
        start = b + 1
    return (*out, (start, LAST)) if start <= LAST else tuple(out)


def _each(text: str) -> Ranges:
    return union(tuple((ord(c), ord(c)) for c in text))


EVERY: Ranges = ((0, LAST),)
DIGIT: Ranges = ((0x30, 0x39),)
WORD = union(DIGIT, ((0x41, 0x5A), (0x61, 0x7A)), _each("_"))
SPACE = union(_each("\t\n\v\f\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff"), ((0x2000, 0x200A),))
DOT = complement(_each("\n\r\u2028\u2029"))
CLASSES = {"d": DIGIT, "w": WORD, "s": SPACE} | {
    name.upper(): complement(ranges) for name, ranges in (("d", DIGIT), ("w", WORD), ("s", SPACE))
}
CONTROLS = {"t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r"}

_LONG_NAMES = (  # of the general categories, from PropertyValueAliases.txt
    "C=Other L=Letter LC=Cased_Letter M=Mark M=Combining_Mark N=Number P=Punctuation P=punct S=Symbol Z=Separator "
    "Cc=Control Cc=cntrl Cf=Format Cn=Unassigned Co=Private_Use Cs=Surrogate Ll=Lowercase_Letter Lm=Modifier_Letter "
    "Lo=Other_Letter Lt=Titlecase_Letter Lu=Uppercase_Letter Mc=Spacing_Mark Me=Enclosing_Mark Mn=Nonspacing_Mark "
    "Nd=Decimal_Number Nd=digit Nl=Letter_Number No=Other_Number Pc=Connector_Punctuation Pd=Dash_Punctuation "
    "Pe=Close_Punctuation Pf=Final_Punctuation Pi=Initial_Punctuation Po=Other_Punctuation Ps=Open_Punctuation "
    "Sc=Currency_Symbol Sk=Modifier_Symbol Sm=Math_Symbol So=Other_Symbol Zl=Line_Separator Zp=Paragraph_Separator "
    "Zs=Space_Separator"
)
CATEGORY = {long: short for short, _, long in (pair.partition("=") for pair in _LONG_NAMES.split())}


@lru_cache(1)
def _categories() -> dict[str, Ranges]:
    """The code points of each two-letter general category. Takes a tenth of a second, once."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    last, start = unicodedata.category("\0"), 0
    for code in range(1, LAST + 2):
        now = unicodedata.category(chr(code)) if code <= LAST else ""
        if now != last:
            found[last].append((start, code - 1))
            last, start = now, code
    return {name: tuple(ranges) for name, ranges in found.items()}


@lru_cache(64)
def category(name: str) -> Ranges | None:
    """The code points of a general category by its short or long name; None for an unknown name."""
    short = CATEGORY.get(name, name)
    if short == "LC":
        return union(*(_categories()[part] for part in ("Lu", "Ll", "Lt")))
    found = [ranges for key, ranges in _categories().items() if short in (key, key[0])]
    return union(*found) if found else None


def parse(pattern: str) -> RegexTree:
    """The tree of a pattern. Raises `Unsupported` for an invalid pattern and for one that has no automaton."""
    return _Parser(pattern).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def whole(self) -> RegexTree:
        tree = self.alternatives()
        if self.at < len(self.text):
            self.at += 1
            self.refuse("a bracket is closed that was not opened")
        return tree

    def refuse(self, what: str) -> NoReturn:
        raise Unsupported(f"At character {max(self.at, 1)} of the pattern, {what}.")

    def sees(self, word: str) -> bool:
        return self.text.startswith(word, self.at)

    def take(self, word: str) -> bool:
        if self.sees(word):
            self.at += len(word)
            return True
        return False

    def next(self) -> str:
        if self.at == len(self.text):
            self.refuse("the pattern ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def alternatives(self) -> RegexTree:
        parts = [self.sequence()]
        while self.take("|"):
            parts.append(self.sequence())
        return parts[0] if len(parts) == 1 else Alternatives(tuple(parts))

    def sequence(self) -> RegexTree:
        parts = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            parts.append(self.repeated())
        return parts[0] if len(parts) == 1 else Concatenation(tuple(parts))

    def repeated(self) -> RegexTree:
        atom = self.atom()
        bounds = self.bounds()
        if bounds is None:
            return atom
        if isinstance(atom, Anchor):
            self.refuse("the start or end of the text is repeated")
        self.take("?")  # lazy: the same texts
        if self.at < len(self.text) and (self.text[self.at] in "*+?" or self.bounds() is not None):
            self.refuse("a repetition is repeated")
        return Repeated(atom, *bounds)

    def bounds(self) -> tuple[int, int | None] | None:
        for sign, least, most in (("*", 0, None), ("+", 1, None), ("?", 0, 1)):
            if self.take(sign):
                return least, most
        start = self.at
        if self.take("{"):
            first = self.number()
            last = self.number() if (comma := self.take(",")) else first
            if first is not None and self.take("}"):
                if comma and last is not None and last < first:
                    self.refuse("the numbers of a repetition are out of order")
                return first, last
        self.at = start
        return None

    def number(self) -> int | None:
        start = self.at
        while self.at < len(self.text) and self.text[self.at] in "0123456789":
            self.at += 1
        # Nine digits are more than any automaton can count.
        return int(self.text[start : self.at][:9]) if self.at > start else None

    def atom(self) -> RegexTree:
        sign = self.next()
        if sign == "(":
            return self.group()
        if sign == "[":
            return Characters(self.char_class())
        if sign == "\\":
            if self.text[self.at : self.at + 1] in ("b", "B"):
                self.refuse("a word boundary stands, which is not supported")
            return Characters(self.escape())
        if sign in "^$":
            return Anchor("start" if sign == "^" else "end")
        if sign in "*+?":
            self.refuse("a repetition has nothing to repeat")
        return Characters(DOT if sign == "." else _each(sign))

    def group(self) -> RegexTree:
        self.depth += 1
        if self.depth > DEPTH:
            self.refuse(f"groups nest deeper than {DEPTH}")
        wanted = None
        if self.take("?"):
            if self.sees("=") or self.sees("!"):
                wanted = self.next() == "="
            elif self.sees("<=") or self.sees("<!"):
                self.refuse("there is a lookbehind, which is not supported")
            elif self.take("<"):
                name, closed, _ = self.text[self.at :].partition(">")
                if not (closed and name.isidentifier()):
                    self.refuse("a group has no proper name")
                self.at += len(name) + 1
            elif not self.take(":"):
                self.refuse("there is a kind of group that is not supported")
        tree = self.alternatives()
        if not self.take(")"):
            self.refuse("a bracket is not closed")
        self.depth -= 1
        return tree if wanted is None else Lookahead(tree, wanted)

    def char_class(self) -> Ranges:
        negative = self.take("^")
        out: list[Ranges] = []
        while not self.take("]"):
            low, single = self.class_atom()
            if not (self.sees("-") and self.text[self.at + 1 : self.at + 2] not in ("", "]")):
                out.append(low)
                continue
            self.at += 1
            high, also_single = self.class_atom()
            if not (single and also_single):
                self.refuse("a range ends in a class of characters")
            if low[0][0] > high[0][0]:
                self.refuse("the ends of a range are out of order")
            out.append(((low[0][0], high[0][0]),))
        return complement(union(*out)) if negative else union(*out)

    def class_atom(self) -> tuple[Ranges, bool]:
        """The characters of one item of a class, and whether it is a single character."""
        sign = self.next()
        if sign != "\\":
            return _each(sign), True
        kind = self.text[self.at : self.at + 1]
        if self.take("b"):
            return _each("\b"), True
        return self.escape(), kind not in {*CLASSES, "p", "P"}

    def escape(self) -> Ranges:
        """The characters of an escape, after its backslash."""
        sign = self.next()
        if sign in CLASSES:
            return CLASSES[sign]
        if sign in CONTROLS:
            return _each(CONTROLS[sign])
        if sign in ("p", "P"):
            ranges = self.property()
            return ranges if sign == "p" else complement(ranges)
        if sign == "x":
            return self.code(self.digits(2))
        if sign == "u":
            return self.code(self.unicode())
        if sign == "c":
            letter = self.next()
            if not (letter.isascii() and letter.isalpha()):
                self.refuse("a control character has no letter")
            return self.code(ord(letter) % 32)
        if sign == "0" and self.text[self.at : self.at + 1] not in tuple("0123456789"):
            return self.code(0)
        if sign in "123456789k":
            self.refuse("there is a back reference, which is not supported")
        if sign.isalnum():
            self.refuse(f"there is no escape \\{sign}")
        return _each(sign)

    def code(self, code: int) -> Ranges:
        return ((code, code),)

    def digits(self, count: int) -> int:
        raw = self.text[self.at : self.at + count]
        if len(raw) < count or not all(c in "0123456789abcdefABCDEF" for c in raw):
            self.refuse("an escape lacks hex digits")
        self.at += count
        return int(raw, 16)

    def unicode(self) -> int:
        if self.take("{"):
            raw, closed, _ = self.text[self.at :].partition("}")
            self.at += len(raw) + 1
            if not closed or len(raw) > 16 or not raw or not all(c in "0123456789abcdefABCDEF" for c in raw):
                self.refuse("an escape lacks hex digits")
            code = int(raw, 16)
            if code > LAST:
                self.refuse("a code point is too large")
            return code
        code = self.digits(4)
        start = self.at
        if 0xD800 <= code < 0xDC00 and self.take("\\u") and not self.sees("{"):
            low = self.digits(4)
            if 0xDC00 <= low < 0xE000:
                return 0x10000 + (code - 0xD800 << 10) + (low - 0xDC00)
        self.at = start
        return code

    def property(self) -> Ranges:
        if not self.take("{"):
            self.refuse("a property has no name")
        raw, closed, _ = self.text[self.at :].partition("}")
        if not closed:
            self.refuse("a property has no end")
        key, equals, name = raw.rpartition("=")
        if key in ("General_Category", "gc") or not equals:
            found = {"Any": EVERY, "ASCII": ((0, 0x7F),)}.get(name) if not equals else None
            found = found or (complement(category("Cn") or ()) if name == "Assigned" and not equals else category(name))
            if found is not None:
                self.at += len(raw) + 1
                return found
        self.refuse(f"the property {raw[:40]} is not supported")
