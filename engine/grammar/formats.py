"""Automata of JSON Schema's string formats. Each accepts only valid texts, but some do not accept all of them:

no leap seconds, no year 0000, host names in ASCII and of at most 3 labels, or 12 labels of at most 20 characters (so
that they stay under 253), e-mail addresses without quotes or address literals.
"""

from collections.abc import Iterator, Mapping

from caesura.automata.dfa import Dfa
from caesura.automata.regex import matching

# Dates and times: RFC 3339.
_LEAP = r"(?:\d\d(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR = r"(?!0000)\d{4}"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
    rf"|02-(?:0[1-9]|1\d|2[0-8]))|{_LEAP}-02-29)"
)
_HOUR = r"(?:[01]\d|2[0-3])"
_TIME = rf"{_HOUR}:[0-5]\d:[0-5]\d(?:\.\d+)?(?:[Zz]|[+-]{_HOUR}:[0-5]\d)"
_HOURS = r"T(?:\d+H(?:\d+M(?:\d+S)?)?|\d+M(?:\d+S)?|\d+S)"
_DAYS = r"(?:\d+Y(?:\d+M(?:\d+D)?)?|\d+M(?:\d+D)?|\d+D)"

# Host names: RFC 1123. A label with hyphens in its third and fourth place would be an internationalised one.
_A, _H = "[A-Za-z0-9]", "[A-Za-z0-9-]"
_LONG, _SHORT = (
    rf"{_A}(?:{_H}?{_A}|{_H}{_H}{_A}|{_H}(?:{_A}{_H}|-{_A}){_H}{{0,{most - 5}}}{_A})?" for most in (63, 20)
)
_HOST = rf"(?:{_LONG}(?:\.{_LONG}){{0,2}}|{_SHORT}(?:\.{_SHORT}){{0,11}})"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_MAIL = rf"(?=[^@]{{1,64}}@){_ATOM}(?:\.{_ATOM})*@{_HOST}"

# Addresses: RFC 2673, RFC 4291.
_BYTE = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_TAIL = rf"(?:{_GROUP}:{_GROUP}|{_IPV4})"
_IPV6 = "(?:" + "|".join(
    [
        f"(?:{_GROUP}:){{6}}{_TAIL}",
        *(f"(?:{_GROUP}(?::{_GROUP}){{0,{n}}})?::(?:{_GROUP}:){{{4 - n}}}{_TAIL}" for n in range(5)),
        f"::(?:{_GROUP}:){{5}}{_TAIL}",
        f"(?:{_GROUP}(?::{_GROUP}){{0,5}})?::{_GROUP}",
        f"(?:{_GROUP}(?::{_GROUP}){{0,6}})?::",
    ]
) + ")"  # fmt: skip


def _reference(other: str, private: str) -> tuple[str, str]:
    """URI and relative reference of RFC 3986; `other` and `private`: characters allowed beyond ASCII (RFC 3987)."""
    free = rf"A-Za-z0-9._~!$&'()*+,;=\-{other}"
    code = "%[0-9A-Fa-f]{2}"
    char = f"(?:[{free}:@]|{code})"
    host = rf"(?:\[{_IPV6}\]|(?:[{free}]|{code})*)"
    authority = rf"//(?:(?:[{free}:]|{code})*@)?{host}(?::\d*)?(?:/{char}*)*"
    absolute = f"/(?:{char}+(?:/{char}*)*)?"
    rest = rf"(?:\?(?:{char}|[/?{private}])*)?(?:#(?:{char}|[/?])*)?"
    uri = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{authority}|{absolute}|{char}+(?:/{char}*)*|){rest}"
    relative = f"(?:{authority}|{absolute}|(?:[{free}@]|{code})+(?:/{char}*)*|){rest}"
    return uri, f"(?:{uri}|{relative})"


_URI, _URI_REFERENCE = _reference("", "")
_IRI, _IRI_REFERENCE = _reference(
    r"\u{A0}-\u{D7FF}\u{F900}-\u{FDCF}\u{FDF0}-\u{FFEF}"
    + "".join(rf"\u{{{plane:X}0000}}-\u{{{plane:X}FFFD}}" for plane in range(1, 14))
    + r"\u{E1000}-\u{EFFFD}",
    r"\u{E000}-\u{F8FF}\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}",
)

_POINTER = "(?:/(?:[^~/]|~[01])*)*"  # RFC 6901
_NAME = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*"  # of a variable: RFC 6570
_VARIABLE = rf"{_NAME}(?::[1-9]\d{{0,3}}|\*)?"

_PATTERNS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": f"P(?:{_DAYS}(?:{_HOURS})?|{_HOURS}|\\d+W)",
    "email": _MAIL,
    "hostname": _HOST,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}",
    "uri": _URI,
    "uri-reference": _URI_REFERENCE,
    "iri": _IRI,
    "iri-reference": _IRI_REFERENCE,
    "uri-template": rf"(?:[^\0-\x20\x7F-\x9F\"<>\\^`{{|}}%]|%[0-9A-Fa-f]{{2}}|\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}})*",  # noqa: E501
    "json-pointer": _POINTER,
    "relative-json-pointer": rf"(?:0|[1-9]\d*)(?:#|{_POINTER})",
}


class _Formats(Mapping[str, Dfa]):
    """Automata by name, each made on first use."""

    def __getitem__(self, name: str) -> Dfa:
        return matching(_PATTERNS[name], whole=True)

    def __iter__(self) -> Iterator[str]:
        return iter(_PATTERNS)

    def __len__(self) -> int:
        return len(_PATTERNS)


FORMATS: Mapping[str, Dfa] = _Formats()
