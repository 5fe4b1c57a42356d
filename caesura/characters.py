"""Which characters belong to words, and those that a person does not see: escaped in errors and logs, refused in names,
removed from proposals.

A terminal obeys control characters, a line break forges a line of a log, marks of direction reorder what is read, and
some characters show nothing at all. Pure.
"""

import re

MAX_SHOWN = 2000  # characters of a sentence
# Unicode's Default_Ignorable_Code_Point (DerivedCoreProperties.txt, version 17), and the blank pattern of Braille.
IGNORABLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff\u2800"
)  # the inside of a character class of `re`
_IGNORABLE = re.compile(f"[{IGNORABLE}]")
_CONTROLS = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufff9-\ufffb\ufffe\uffff"  # and separators, noncharacters
PRINTABLE = rf"^[^\t\n\r{_CONTROLS}{IGNORABLE}]*\Z"  # the pattern of a name that comes from elsewhere

_EMOJI = (
    "\u00a9\u00ae\u203c\u2049\u2122\u2139\u2194-\u21aa\u231a-\u23ff\u24c2\u25aa-\u25fe\u2600-\u27bf\u2934\u2935"
    "\u2b05-\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001faff"
)
_WRITTEN = (  # what a person sees in emoji: their selectors, keycaps, joined ones; flags of England, Scotland and Wales
    rf"(?<=[{_EMOJI}])[\ufe0e\ufe0f]|(?<=[0-9#*])\ufe0f(?=\u20e3)"
    rf"|(?:(?<=[{_EMOJI}])|(?<=[{_EMOJI}]\ufe0f))\u200d(?=[{_EMOJI}])"
    "|(?<=\U0001f3f4)\U000e0067\U000e0062"
    "(?:\U000e0065\U000e006e\U000e0067|\U000e0073\U000e0063\U000e0074|\U000e0077\U000e006c\U000e0073)\U000e007f"
)
# Joiners and selectors of scripts change the letter before them: one at a time, and none after an alphabet of Europe.
_JOINERS = "\u180b-\u180d\u180f\u200c\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef"
_JOINED = rf"(?<=[\u0600-\U0003ffff])(?<![{IGNORABLE}])[{_JOINERS}]"
_NEVER = "\ufeff\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"  # mark of byte order, tags: could spell hidden text
_UNSEEN = f"[{_CONTROLS}\ufffc\ufffd{IGNORABLE}]"  # and the stand-ins for what cannot be read
_ANY_UNSEEN = re.compile(_UNSEEN)
_EACH_UNSEEN = f"(?P<written>{_WRITTEN})|(?P<own>{_JOINED}|(?![{_JOINERS}{_NEVER}]){_UNSEEN})|{_UNSEEN}"


def shown(text: object, limit: int = MAX_SHOWN) -> str:
    """`text` on one line, of at most `limit` characters: hidden and control characters as their escapes."""
    said = str(text)
    cut = said[: limit + 1]
    safe = cut if cut.isprintable() and not _IGNORABLE.search(cut) else "".join(map(_safe, cut))
    return safe if len(safe) <= limit and len(said) <= limit else safe[: limit - 1] + "…"


def is_word(character: str) -> bool:
    """True if a character belongs to a word or a name."""
    return character.isalnum() or character == "_"


def visible(text: str, prefix: str, suffix: str) -> str:
    """The proposal `text` without characters that nobody sees, so that none hides text or reorders it.

    It keeps the invisible characters of emoji and, if the file uses them too, the invisible ones of its scripts.
    `visible` of a start of `text` is a start of `visible` of the text: what is shown while it grows never shrinks.
    """
    if not _ANY_UNSEEN.search(text):
        return text
    near = prefix[-2:]  # a sequence may begin before the proposal

    def kept(found: re.Match[str]) -> str:
        own = found.start() < len(near) or (found["own"] and (found[0] in prefix or found[0] in suffix))
        return found[0] if own or found["written"] else ""

    return re.sub(_EACH_UNSEEN, kept, near + text)[len(near) :]


def _safe(character: str) -> str:
    if character.isprintable() and not _IGNORABLE.match(character):
        return character
    return character.encode("unicode_escape").decode()
