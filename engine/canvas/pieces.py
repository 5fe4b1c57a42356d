"""Bytes of tokens to text. A token may end inside a character, so text is cut only between whole characters."""

import codecs
from collections.abc import Iterable


def one_line(piece: bytes) -> bool:
    return b"\n" not in piece and b"\r" not in piece


def is_whole(raw: bytes) -> bool:
    """True if no character is cut."""
    return raw.decode("utf-8", errors="ignore").encode() == raw


def cut_character(raw: bytes | bytearray) -> bool:
    """True if the bytes end inside a UTF-8 character."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
    decoder.decode(bytes(raw[-4:]))
    return bool(decoder.getstate()[0])


def spans(raw: bytes, flags: bytes) -> tuple[str, tuple[tuple[int, int], ...]]:
    """UTF-8 bytes and a flag per byte -> text and the spans of it, in code points, whose bytes are all flagged.

    Incomplete characters are left out. One that is not flagged may still become text: a span ends there, and if the
    bytes begin with one, no span begins at 0.
    """
    text, found, start, at = raw.decode("utf-8", errors="ignore"), [], None, 0
    for number, character in enumerate(text):
        encoded = character.encode()
        begin = raw.index(encoded, at)
        settled = all(flags[at:begin])
        if start is not None and not settled:
            found.append((start, number))
            start = None
        at = begin + len(encoded)
        whole = all(flags[begin:at]) and (settled or number > 0)
        if whole and start is None:
            start = number
        if not whole and start is not None:
            found.append((start, number))
            start = None
    if start is not None:
        found.append((start, len(text)))
    return text, tuple(found)


def by_token(pieces: Iterable[tuple[bytes, float]], skip: int) -> tuple[tuple[int, float], ...]:
    """Bytes and probability of each token -> its end in the text after the first `skip` bytes, in code points, and its
    probability. A token that ends inside a character, or before the text begins, counts with the next one."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
    found, end, last, together = list[tuple[int, float]](), 0, 0, 1.0
    for piece, probability in pieces:
        if not piece:
            continue  # null
        end += len(decoder.decode(piece[skip:]))
        skip = max(0, skip - len(piece))
        together *= min(1.0, probability)
        if end > last and not decoder.getstate()[0]:
            found.append((end, together))
            last, together = end, 1.0
    if end > last:  # the character that the last token begins is not shown
        found.append((end, together))
    return tuple(found)
