"""Which tokens may stand where: healed starts, lines, ends, and the grammars of holes over the bytes of all tokens."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from caesura.engine.canvas.pieces import is_whole, one_line
from caesura.engine.grammar.constraint import Grammar, load
from caesura.engine.grammar.tokens import Tree
from caesura.engine.model import Model
from caesura.engine.scores import Allowed, Bools, Scores
from caesura.recent import Recent
from caesura.wire import Impossible, Json, Pattern

SETS = 8 << 20  # bytes of sets kept, by what a device may add to each: a bias of four bytes a token
GRAMMARS = 24 << 20  # bytes of grammars kept, with what is known of them
CROSSED = 16  # bytes after a hole into which a token may cross
SUFFIXES = 32  # texts after a hole whose crossing tokens are kept, 0.2 MiB each: a job has one for each hole


class Vocabulary:
    """Which tokens may stand where, as sets over the columns of the logits."""

    def __init__(self, model: Model) -> None:
        self.pieces, self._encode = model.tokenizer.pieces, model.tokenizer.encode
        self.null_id, self.ends, self.size = model.spec.null_id, model.spec.ends, model.width
        self.expand_id = model.spec.expand_id
        self._sorted = sorted((piece, number) for number, piece in enumerate(self.pieces) if piece)
        self._numbers = dict(self._sorted)
        self._crossings = lru_cache(maxsize=SUFFIXES)(self._crossing)
        self._nothing = np.zeros(self.size, np.bool_)
        self._order = np.array([number for _, number in self._sorted], np.int64)
        # The end of the last line break in each of them, in bytes; 0 without one.
        broken = [1 + max(piece.rfind(b"\n"), piece.rfind(b"\r")) for piece, _ in self._sorted]
        self._broken = np.array(broken, np.int64)
        self._any = _but(self._nothing, self._order)
        self._any_of_line = _but(self._any, self._order[self._broken > 0], False)
        self.anything = Allowed(~self._nothing)
        for has in (self._any, self._any_of_line):
            if self.null_id is not None:
                has[self.null_id] = True
        self.allowed = lru_cache(maxsize=max(8, min(512, SETS // (4 * self.size))))(self._allowed)
        self._grammars = Recent[tuple[Json | Pattern, tuple[str, ...]], Grammar | str](GRAMMARS, _grammar_bytes)

    @cached_property
    def tree(self) -> Tree:
        return Tree(self.pieces)

    def grammar(self, spec: Json | Pattern, schemas: tuple[str, ...]) -> Grammar:
        """The grammar of a hole; the latest ones are kept, and so is the reason if there is none. Raises Impossible,
        with one sentence, if no text fits there or the grammar is too large."""
        found = self._grammars.get((spec, schemas))
        if found is None:
            try:
                found = load(spec, schemas, self.tree)
            except Impossible as error:
                found = str(error)
            self._grammars.put((spec, schemas), found)
        if isinstance(found, str):
            raise Impossible(found)
        return found

    def spelled(self, text: bytes) -> list[int]:
        """A text in tokens; of several tokens with the same bytes, always the same one."""
        return [self._numbers[self.pieces[token]] for token in self._encode(text.decode())]

    def crossing(self, after: bytes, of_line: bool) -> Mapping[int, Sequence[int]]:
        """Tokens that end a text and begin the text `after` it, such as `":` before `: 1`, or `)` and a line break;
        and how many bytes of each may belong to the first text."""
        return self._crossings(after[:CROSSED], of_line)

    def _crossing(self, after: bytes, of_line: bool) -> dict[int, list[int]]:
        blank, found = after[:1].isspace(), list[tuple[bytes, int, int]]()  # blanks alone do not end a text at a blank
        for size in range(1, len(after) + 1):
            if not is_whole(after[:size]):
                continue
            for number in self._closing(after[:size]):
                own = self.pieces[number][:-size]
                if own and not (of_line and not one_line(own)) and not (blank and own.isspace()):
                    found.append((self.pieces[number], number, len(own)))
        cuts = dict[int, list[int]]()
        for _, number, at in sorted(found):
            cuts.setdefault(number, []).append(at)
        return cuts

    def _closing(self, end: bytes) -> list[int]:
        """The tokens that end with some bytes."""
        low = bisect_left(self._by_end, end[::-1], key=self._backwards)
        high = bisect_right(self._by_end, end[::-1], low, key=lambda token: self._backwards(token)[: len(end)])
        return self._by_end[low:high]

    def _backwards(self, token: int) -> bytes:
        return self.pieces[token][::-1]

    @cached_property
    def _by_end(self) -> list[int]:
        return sorted((number for _, number in self._sorted), key=[piece[::-1] for piece in self.pieces].__getitem__)

    def ending(self, scores: Scores, after: bytes, of_line: bool) -> Scores:
        """Scores of slots for a hole that must end before the text `after` it: the probability of each token that
        crosses into that text is added to the token of its part before it."""
        crossing = self.crossing(after, of_line)
        cuts = [(n, self._numbers.get(self.pieces[n][:at])) for n, some in crossing.items() for at in some]
        pairs = [(token, own) for token, own in cuts if own is not None]
        return scores.merged(pairs) if pairs else scores

    @cached_property
    def line_ends(self) -> list[int]:
        """Ids of tokens that begin with a line break, and of the end-of-text specials."""
        return [i for i, p in enumerate(self.pieces) if p[:1] in (b"\n", b"\r", b"")]

    @cached_property
    def stops(self) -> list[int]:
        """Ids of the tokens with which a text ends."""
        return sorted(self.ends)

    @cached_property
    def may_end(self) -> Allowed:
        """The set for a hole with nothing after it: as `allowed`, and the text may end."""
        return Allowed(_but(self._any, self.stops))

    def _allowed(self, pending: bytes, of_line: bool, expands: bool = False) -> Allowed:
        """The tokens [size] for a slot that still has to produce `pending` first; `of_line` forbids line breaks after
        it. If `pending` ends with indentation, the token does not deepen it. With nothing pending a slot that `expands`
        may become two."""
        if not pending:
            free = self._any_of_line if of_line else self._any
            return Allowed(_but(free, [self.expand_id]) if expands and self.expand_id is not None else free)
        parts = [pending[:size] for size in range(1, len(pending))]
        has = _but(self._nothing, [self._numbers[part] for part in parts if part in self._numbers])
        whole = self._opening(pending)
        has[self._order[whole][self._broken[whole] <= len(pending)] if of_line else self._order[whole]] = True
        if pending.endswith((b" ", b"\t")):
            for blank in (b" ", b"\t"):
                has[self._order[self._opening(pending + blank)]] = False
        return Allowed(has)

    def _opening(self, start: bytes) -> slice:
        """The sorted tokens that begin with some bytes."""
        low = bisect_left(self._sorted, (start, -1))
        return slice(low, bisect_right(self._sorted, start, low, key=lambda pair: pair[0][: len(start)]))


def _but(has: Bools, tokens: Sequence[int] | NDArray[np.int64], value: bool = True) -> Bools:
    """The set with some tokens, or without them."""
    found = has.copy()
    found[np.asarray(tokens, np.int64)] = value
    return found


def _grammar_bytes(key: tuple[Json | Pattern, tuple[str, ...]], found: Grammar | str) -> int:
    """Bytes of a kept grammar, or of the reason why there is none; with its schemas."""
    return sum(map(len, key[1])) + (len(found) if isinstance(found, str) else found.nbytes)
