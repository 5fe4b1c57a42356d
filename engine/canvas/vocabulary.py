"""Which tokens may stand where: healed starts, lines, ends, and the grammars of holes over the bytes of all tokens."""

import bisect
import itertools
from collections.abc import Sequence
from functools import cached_property, lru_cache

import torch
from torch import Tensor

from caesura.engine.canvas.pieces import is_whole, one_line
from caesura.engine.grammar.constraint import Grammar, load
from caesura.engine.grammar.tokens import Tree
from caesura.engine.models import Model
from caesura.engine.noise import Uniform
from caesura.recent import Recent
from caesura.wire import Impossible, Json, Pattern

BIASES = 8 << 20  # bytes of biases kept
GRAMMARS = 24 << 20  # bytes of grammars kept, with what is known of them
CROSSED = 16  # bytes after a hole into which a token may cross
SUFFIXES = 32  # texts after a hole whose crossing tokens are kept, 0.1 MiB each: a job has one for each hole


class Vocabulary:
    """Which tokens may stand where, as additive float biases over the columns of the logits (0 or -inf)."""

    def __init__(self, model: Model) -> None:
        self.pieces, self._encode = model.tokenizer.pieces, model.tokenizer.encode
        self.null_id, self.ends, self.size = model.null_id, model.ends, model.width
        self.expand_id = model.expand_id
        self._sorted = sorted((piece, number) for number, piece in enumerate(self.pieces) if piece)
        self._numbers = dict(self._sorted)
        self._crossings = lru_cache(maxsize=SUFFIXES)(self._crossing)
        # Uniform noise is decided where the model is, everything else on the CPU (methods/_forward.py).
        self.device = model.device if isinstance(model.noise, Uniform) else "cpu"
        self._nothing = torch.full((self.size,), -torch.inf, device=self.device)
        self._any = self._but([number for _, number in self._sorted], self._nothing)
        breaks = [number for piece, number in self._sorted if not one_line(piece)]
        self._any_of_line = self._but(breaks, self._any, -torch.inf)
        self.anything = torch.zeros_like(self._nothing)
        for bias in (self._any, self._any_of_line):
            if self.null_id is not None:
                bias[self.null_id] = 0.0
        self.allowed = lru_cache(maxsize=max(8, min(512, BIASES // (4 * self.size))))(self._allowed)
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

    def crossing(self, behind: bytes, of_line: bool) -> list[tuple[int, int]]:
        """Tokens that end a text and begin the text `behind` it, such as `":` before `: 1`, or `)` and a line break;
        and how many bytes of each belong to the first text."""
        return self._crossings(behind[:CROSSED], of_line)

    def _crossing(self, behind: bytes, of_line: bool) -> list[tuple[int, int]]:
        if not behind:
            return []
        blank = behind[:1].isspace()  # then blanks alone do not end a text
        return [
            (number, at)
            for piece, number in self._sorted
            if behind[:1] in piece[1:]
            for at in range(1, len(piece))
            if behind.startswith(piece[at:]) and is_whole(piece[at:])
            if not (of_line and not one_line(piece[:at])) and not (blank and piece[:at].isspace())
        ]

    def ending(self, logits: Tensor, behind: bytes, of_line: bool) -> Tensor:
        """Logits [slots, width] for a hole that must end before the text `behind` it: the probability of each token
        that crosses into that text is added to the token of its part before it."""
        cuts = [(n, self._numbers.get(self.pieces[n][:at])) for n, at in self.crossing(behind, of_line)]
        across = torch.tensor([cut for cut in cuts if cut[1] is not None], dtype=torch.int64, device=logits.device)
        if not len(across):
            return logits
        chances = logits.softmax(-1)
        return chances.index_add(1, across[:, 1], chances[:, across[:, 0]]).log()

    @cached_property
    def line_ends(self) -> Tensor:
        """Ids of tokens that begin with a line break, and of the end-of-text specials."""
        return torch.tensor([i for i, p in enumerate(self.pieces) if p[:1] in (b"\n", b"\r", b"")])

    @cached_property
    def stops(self) -> Tensor:
        """Ids of the tokens with which a text ends."""
        return torch.tensor(sorted(self.ends), dtype=torch.int64, device=self.anything.device)

    @cached_property
    def may_end(self) -> Tensor:
        """The bias for a hole with nothing after it: as `allowed`, and the text may end."""
        return self._but(sorted(self.ends), self._any)

    def _allowed(self, pending: bytes, of_line: bool, expands: bool = False) -> Tensor:
        """Bias [size] for a slot that still has to produce `pending` first; `of_line` forbids line breaks after it. If
        `pending` ends with indentation, the token does not deepen it. With nothing pending a slot that `expands` may
        become two."""
        if not pending:
            free = self._any_of_line if of_line else self._any
            return self._but([self.expand_id], free) if expands and self.expand_id is not None else free
        fits = [n for k in range(1, len(pending)) if (n := self._numbers.get(pending[:k])) is not None]
        indented = pending.endswith((b" ", b"\t"))
        for piece, number in itertools.islice(self._sorted, bisect.bisect_left(self._sorted, (pending, -1)), None):
            if not piece.startswith(pending):
                break
            rest = piece[len(pending) :]
            if not (of_line and not one_line(rest)) and not (indented and rest[:1] in (b" ", b"\t")):
                fits.append(number)
        return self._but(fits, self._nothing)

    def _but(self, tokens: Sequence[int], bias: Tensor, value: float = 0.0) -> Tensor:
        """The bias with another value for some tokens."""
        return bias.index_fill(0, torch.tensor(tokens, dtype=torch.int64, device=bias.device), value)


def _grammar_bytes(key: tuple[Json | Pattern, tuple[str, ...]], found: Grammar | str) -> int:
    """Bytes of a kept grammar, or of the reason why there is none; with its schemas."""
    return sum(map(len, key[1])) + (len(found) if isinstance(found, str) else found.nbytes)
