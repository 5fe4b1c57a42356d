"""Characters that a person does not see, and text from elsewhere as a person may see it: in an error, a log, a status.

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


def shown(text: object, limit: int = MAX_SHOWN) -> str:
    """`text` on one line, of at most `limit` characters: hidden and control characters as their escapes."""
    said = str(text)
    cut = said[: limit + 1]
    safe = cut if cut.isprintable() and not _IGNORABLE.search(cut) else "".join(map(_safe, cut))
    return safe if len(safe) <= limit and len(said) <= limit else safe[: limit - 1] + "…"


def _safe(character: str) -> str:
    if character.isprintable() and not _IGNORABLE.match(character):
        return character
    return character.encode("unicode_escape").decode()
