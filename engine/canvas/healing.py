"""Token healing: cut a prefix where its tokens no longer depend on the text after it. A fill begins with the rest."""

import re
from collections.abc import Iterator
from itertools import takewhile

from caesura.engine.tokens.tokenizer import Tokenizer

HEALED = 48  # code points; a longer last piece (a run of blanks) is only healed from its end
# What may follow a prefix, one text for each class of characters that pre-tokenizers tell apart: a letter, those that
# end a contraction ('s, 're, 'll), a capital, a number, blanks, line breaks, signs, and a combining mark.
PROBES = ("", "x", "s", "e", "l", "X", "0", " ", "\t", "\n", "\r", "(", "'", '"', "\u0301")
# SentencePiece has no pre-tokens: it may merge anything in a run of letters, of blanks or of neither, and how many of
# the blanks before a word join it depends on both. A longer run is healed from its end.
_LAST_RUN = re.compile(r"(?:\s*(?:\w{1,24}|[^\w\s]{1,12})|\s+)\Z")


def heal(tokenizer: Tokenizer, prefix: str) -> tuple[str, str]:
    """Split a prefix into a part whose tokens do not depend on later text, and the rest, at most HEALED code points."""
    window = prefix[-HEALED:]
    at = _last_run(window) if tokenizer.sentencepiece else _last_pretoken(tokenizer, window)
    cut = len(prefix) - len(window) + at
    return prefix[:cut], prefix[cut:]


def _last_run(window: str) -> int:
    match = _LAST_RUN.search(window)
    return match.start() if match else len(window)


def _last_pretoken(tokenizer: Tokenizer, window: str) -> int:
    """The start of the last pre-token that stays in place, with all before it, whatever text follows the window, and
    also if the text ends at that start.

    Byte-level BPE never merges across pre-tokens, so cutting there is safe.
    """
    columns: Iterator[tuple[int, ...]] = zip(*(tokenizer.pretokens(window + probe) for probe in PROBES), strict=False)
    agreed = takewhile(lambda column: len(set(column)) == 1, columns)
    starts = [at for at, *_ in agreed if at < len(window)]
    while starts:
        at = starts.pop()
        if tokenizer.pretokens(window[:at]) == starts:  # what follows decides if the last of several blanks is a piece
            return at
    return 0
