"""The token tree of one hole: hypotheses as paths of tokens, what may stand after each, and the texts they stand for.
search.py scores them. A fill may also end inside a token that goes on into the suffix, as `"` does before `: 1`:
models know the two as one.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

from caesura.engine.canvas.canvas import HoleState
from caesura.engine.canvas.pieces import by_token, is_whole
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.grammar.solve import GrammarState
from caesura.engine.scores import Allowed

REPEATED = 4.0  # nats taken off a key that is taken so far, until a pass shows that it goes on

Origin = Literal["canvas", "lookup", "left_to_right"]


@dataclass(eq=False)
class TokenNode:
    """One token of a hypothesis. `raw` are the bytes of the whole path; `logp` is of it, given the forced text; `rank`
    orders the hypotheses: `logp`, or a perturbed one, with the tokens' rewards and less the `doubt`. `state` is the
    grammar's after it; `row` is its row in the KV. `cut`: how many of its bytes are the fill's, if the others begin the
    suffix."""

    token: int
    parent: "TokenNode | None"
    raw: bytes
    logp: float
    rank: float
    pending: bytes
    source: Origin
    depth: int
    state: GrammarState = ()
    row: int = -1
    cut: int | None = None
    doubt: float = 0.0  # nats taken off the rank until the node is run
    earned: float = 0.0  # nats of the rank that are rewards
    born: int = 0  # the pass that found it
    binds: bool = False  # the missing name
    children: dict[int, "TokenNode"] = field(default_factory=dict)

    def weigh(self, logp: float, gain: float, reward: float) -> None:
        """Take over what a pass says of its token after the parent, and its reward."""
        assert self.parent is not None
        self.logp = self.parent.logp + logp
        self.rank = self.parent.rank + gain + reward - self.doubt
        self.earned = self.parent.earned + reward

    def path(self) -> list["TokenNode"]:
        """From the first token of the hole to this one."""
        out: list[TokenNode] = []
        node: TokenNode | None = self
        while node is not None and node.depth > 0:
            out.append(node)
            node = node.parent
        return out[::-1]


@dataclass(eq=False)
class End:
    """A hypothesis that ends here. `logp` is of its path and the end; `score` is its rank and the log-probability of
    the suffix head, once that is known. The tokens `behind` it judge it; the rank includes the first one."""

    node: TokenNode
    logp: float
    bound: float  # its rank, which is an upper bound of the score
    behind: list[int]
    score: float | None = None
    sure: bool = False  # to be scored, however unlikely
    copy: bool = False  # of what is around the hole: no answer

    @property
    def row(self) -> int:
        """The row before `behind`."""
        assert self.node.parent is not None
        return self.node.row if self.node.cut is None else self.node.parent.row


class Hypotheses:
    """The hypotheses of one hole: paths below `root`, the last token of `tail`. `head` is the start of the suffix; all
    of them share the bytes `locked`."""

    def __init__(self, vocabulary: Vocabulary, hole: HoleState, tail: Sequence[int], head: Sequence[int]) -> None:
        self.vocabulary, self.hole, self.head = vocabulary, hole, list(head)
        self.root = TokenNode(tail[-1] if tail else 0, None, b"", 0.0, 0.0, hole.forced, "left_to_right", 0, hole.state)
        self.locked = b""
        self.left_of_head = cache(self._left_of_head)

    def __repr__(self) -> str:
        return f"<Hypotheses of {self.hole.forced!r} locked {self.locked!r}>"

    def child(self, parent: TokenNode, token: int, source: Origin) -> TokenNode | None:
        """A hypothesis of one token more, not scored yet; None if that token is not allowed there."""
        if token >= len(self.vocabulary.pieces) or token not in self.allowed(parent):
            return None
        return self.longer(parent, token, source)

    def longer(self, parent: TokenNode, token: int, source: Origin) -> TokenNode | None:
        """The same for a token that is allowed there: None if the grammar finds the text unsound."""
        grammar, state, piece = self.hole.grammar, parent.state, self.vocabulary.pieces[token]
        if grammar is not None:
            state = grammar.after(state, token)
        raw, pending = parent.raw + piece, parent.pending[len(piece) :]
        child = TokenNode(token, parent, raw, -math.inf, -math.inf, pending, source, parent.depth + 1, state)
        if grammar is None:
            return child
        child.doubt = REPEATED if "" in grammar.to_taken(self.own(child)) else 0.0
        return child if grammar.sound(self.own(child)) else None

    def allowed(self, node: TokenNode) -> Allowed:
        """The tokens that may stand after a node."""
        grammar, vocabulary = self.hole.grammar, self.vocabulary
        if grammar is not None:
            return grammar.allowed(node.state, vocabulary.size)
        return vocabulary.allowed(node.pending, self.hole.one_line)

    def chain(self, node: TokenNode, tokens: Sequence[int], source: Origin) -> None:
        """Add tokens after a hypothesis, up to the first that is not allowed there."""
        for token in tokens:
            if node.depth >= self.hole.max_tokens or (child := self.child(node, token, source)) is None:
                break
            node.children[token] = child
            node = child

    def cut(self, node: TokenNode, token: int, cut: int) -> TokenNode | None:
        """A fill that ends after the first `cut` bytes of a token; None if it may not."""
        grammar, state, own = self.hole.grammar, node.state, self.vocabulary.pieces[token][:cut]
        if grammar is not None:
            for part in self.vocabulary.spelled(own) if is_whole(own) else ():
                state = grammar.after(state, part)
            if not (is_whole(own) and grammar.ends(state)):
                return None
        raw, depth = node.raw + own, node.depth + 1
        leaf = TokenNode(token, node, raw, -math.inf, -math.inf, b"", "left_to_right", depth, state, cut=cut)
        own = self.own(leaf)
        return leaf if is_text(own) and (grammar is None or grammar.sound(own, whole=True)) else None

    def _left_of_head(self, taken: int) -> list[int]:
        """The head without its first bytes, in tokens."""
        pieces = [self.vocabulary.pieces[token] for token in self.head]
        starts = [0, *itertools.accumulate(len(piece) for piece in pieces)]
        if taken in starts:
            return self.head[starts.index(taken) :]
        ended = [token for token in self.head if token in self.vocabulary.ends]
        return self.vocabulary.spelled(b"".join(pieces)[taken:].decode(errors="ignore").encode()) + ended

    # Texts

    def _piece(self, node: TokenNode) -> bytes:
        return self.vocabulary.pieces[node.token][: node.cut]

    def own(self, node: TokenNode) -> bytes:
        """The bytes of a path, without the forced part."""
        return node.raw[len(self.hole.forced) :]

    def closing(self, node: TokenNode) -> bytes:
        """A short text that completes a path by the hole's grammar."""
        grammar = self.hole.grammar
        if grammar is None or (grammar.ends(node.state) and grammar.sound(self.own(node), whole=True)):
            return b""
        return grammar.closing(node.state, self.own(node))

    def answer(self, node: TokenNode) -> bytes:
        """The answer of a path: complete, and sound if possible."""
        grammar, raw = self.hole.grammar, node.raw + self.closing(node)
        if grammar is not None and not grammar.sound(raw[len(self.hole.forced) :], whole=True):
            simplest = b"".join(self.vocabulary.pieces[token] for token in self.hole.shortest)
            return simplest if simplest.startswith(self.locked) else raw
        return raw

    def text_of(self, node: TokenNode) -> str:
        """The text of an answer, whole and without the forced part."""
        raw, forced = self.answer(node), self.hole.forced
        return raw[len(forced) :].decode("utf-8", errors="ignore") if raw.startswith(forced) else ""

    def tokens(self, node: TokenNode) -> list[int]:
        """The tokens of an answer."""
        answer = self.answer(node)
        whole = node.cut is None and answer == node.raw
        return [n.token for n in node.path()] if whole else self.vocabulary.spelled(answer)

    def probabilities(self, node: TokenNode, answer: bytes | None = None) -> tuple[tuple[int, float], ...]:
        """The end of each token in the text of a path, and its probability given the text before it. The part of an
        answer that only completes the path has probability 0: no model has proposed it."""
        nodes = node.path()
        given = [n.logp - n.parent.logp for n in nodes if n.parent is not None]
        pieces = [(self._piece(n), math.exp(min(0.0, p))) for n, p in zip(nodes, given, strict=True)]
        path = node.raw
        if answer is not None and not answer.startswith(path):
            pieces, path = [], b""
        behind = b"" if answer is None else answer[len(path) :]
        return by_token([*pieces, (behind, 0.0)] if behind else pieces, len(self.hole.forced))


def is_text(raw: bytes) -> bool:
    """True if a fill may be these bytes: whole characters, and not only blanks."""
    return is_whole(raw) and bool(raw.decode().strip())


def common_prefix(texts: Sequence[bytes]) -> bytes:
    low, high = min(texts), max(texts)
    count = 0
    for a, b in zip(low, high, strict=False):
        if a != b:
            break
        count += 1
    return low[:count]
