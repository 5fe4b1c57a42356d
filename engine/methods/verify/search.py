"""Draft and verify: a token tree over one hole, scored by causal passes of the base.

The canvas and the lookup propose whole chains; one pass scores all of their tokens at once, and left-to-right steps go
on from the best places (best first, several a pass; the best one takes along what followed its tokens elsewhere, or
what a drafter expects there). A chain that reaches the suffix is scored on: the candidate with the highest
log p(fill) + log p(suffix head | fill) wins.
A fill may also end inside a token that goes on into the suffix, as `"` does before `: 1`: models know the two as one.
The model's own end tokens count with the first token of the suffix. What all surviving hypotheses share is locked. With
a generator another answer is looked for: it is ranked by perturbed log-probabilities, and reports the model's own. Pure
state: `to_draft` and `take_draft` ask a drafter, `plan` says which rows to run, `receive` takes their
log-probabilities, `prune` decides. (Speculative decoding:
Leviathan et al. 2023; token trees: SpecInfer, Miao et al. 2024; stochastic beam search: Kool et al. 2019.)
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from caesura.engine.canvas.canvas import HoleState
from caesura.engine.canvas.pieces import by_token, is_whole, spans
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.grammar.solve import GrammarState
from caesura.engine.methods._forward import Pass
from caesura.engine.methods.verify.lookup import Repeats

WIDTH = 4  # hypotheses scored in one pass
BRANCH = 3  # left-to-right children of a hypothesis
PASSES = 40  # of a hole, at most
LATE = 16  # passes without a candidate, after which the best end becomes one, however far it is behind
PATIENCE = 1.0  # nats a hypothesis must promise more for every pass that found no better candidate
HEAD = 6  # suffix tokens that judge a fill
CROSSINGS = 8  # such tokens, by their cuts, that are tried where a grammar may refuse them
SPARE = 5  # keys among them, at most, that are taken and make room for others
REPEATED = 4.0  # nats; a taken key has to go on and seldom does, so it ranks so much lower until a pass tells
DEPTH_BONUS = 0.7  # nats a token: best-first would else never leave the shallow nodes
USUAL_NATS = 2.0  # a token of the suffix head under a fill that fits
END_MARGIN = 4.0  # nats; see `_best_ends`
LOCK_MARGIN = 2.5  # nats; hypotheses this far behind the best do not keep text from being locked
LIKELY = 0.15  # joint probability of a drafter's chain, below which a row is not worth its time
TEMPERATURE = 0.8  # of the draw for another answer; at 1 the unlikely tail of a small model shows

Origin = Literal["canvas", "lookup", "left_to_right"]


@dataclass(eq=False)
class TokenNode:
    """One token of a hypothesis. `logp` is of the whole path, given the forced text; `rank` is what it is chosen by:
    the same, or perturbed, less the `doubt`. `state` is of the hole's grammar behind it. `row` is its place in the KV.
    `cut`: how many bytes of it are the fill's, where the rest begins the suffix."""

    token: int
    parent: "TokenNode | None"
    logp: float
    rank: float
    pending: bytes
    source: Origin
    depth: int
    state: GrammarState = ()
    row: int = -1
    cut: int | None = None
    doubt: float = 0.0  # nats that the rank lacks until the node is run
    children: dict[int, "TokenNode"] = field(default_factory=dict)

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
    the suffix head, once that is known. `behind` are the tokens that judge it; the first is in the rank already."""

    node: TokenNode
    logp: float
    bound: float  # its rank, which is an upper bound of the score
    behind: list[int]
    score: float | None = None

    @property
    def row(self) -> int:
        """Of what stands before `behind`."""
        assert self.node.parent is not None
        return self.node.row if self.node.cut is None else self.node.parent.row


class Search:
    """The hypotheses of one hole, `width` of them scored in a pass; a single one ends where nothing is as likely as the
    end. `start` is the position of the first tail row. With a `generator` another answer is looked for: as likely a one
    as it draws. A hypothesis less likely than `least` is given up."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        hole: HoleState,
        tail: Sequence[int],
        head: Sequence[int],
        start: int,
        generator: torch.Generator | None = None,
        width: int = WIDTH,
        repeats: Repeats | None = None,
        least: float = 0.0,
    ) -> None:
        self.vocabulary, self.hole, self.start, self.generator = vocabulary, hole, start, generator
        self.width, self._repeats = width, repeats
        self._faint = math.log(least) if least else -math.inf
        self.tail, self.head = list(tail), list(head[: HEAD if width > 1 else 1])
        behind = b"".join(vocabulary.pieces[token] for token in head)
        self._cuts = dict[int, list[int]]()  # by the tokens that go on into the suffix
        for token, cut in vocabulary.crossing(behind, hole.one_line):
            self._cuts.setdefault(token, []).append(cut)
        self._ending = torch.tensor([*self.head[:1], *sorted(vocabulary.ends)], dtype=torch.int64)
        self._across = torch.tensor(list(self._cuts), dtype=torch.int64)
        self.root = TokenNode(
            self.tail[-1] if self.tail else 0, None, 0.0, 0.0, hole.forced, "left_to_right", 0, hole.state
        )
        self.open: list[TokenNode] = []  # known probability, not yet run
        self.ends: list[End] = []
        self.passes = 0
        self._last = self.root  # the most promising hypothesis; it stays when every one has been given up
        self._best: End | None = None
        self._improved = 0  # the pass that found it
        self.locked = b""
        self._ancestors: list[int] = []  # per row of the tree: bit set of the rows it sees
        self._plan: list[tuple[TokenNode | None, End | None, int]] = []  # node, end, index in the head, of each row
        self._behind: dict[TokenNode, tuple[Tensor, Tensor]] = {}  # what the first pass says of tokens behind its nodes
        self._proposed: list[TokenNode] = []  # where chains begin that came behind it

    def __repr__(self) -> str:
        return f"<Search pass {self.passes} {len(self.open)} open {self.text()[0]!r} locked {self.locked!r}>"

    # Proposals

    def propose(self, tokens: Sequence[int], source: Origin) -> None:
        """Add a chain below the root, before the first pass or behind it; it is scored by the next one, whatever it is
        worth."""
        node, first = self.root, None
        for token in tokens[: self.hole.max_tokens]:
            child = node.children.get(token)
            if child is None and (child := self._child(node, token, source)) is None:
                break
            if token not in node.children and node in self._behind:
                logp, gain = self._behind[node]
                child.logp, child.rank = node.logp + float(logp[token]), node.rank + float(gain[token]) - child.doubt
            node.children[token] = child
            if child.row < 0:
                first = first or child
                child.source = source if child.source == "left_to_right" else child.source
            node = child
        if self.passes and first is not None and first not in self._proposed and math.isfinite(first.rank):
            self._proposed.append(first)
            self.open = [n for n in self.open if n is not first]

    @property
    def drafted(self) -> bool:
        """Whether a chain is still to be scored that came behind the first pass."""
        return bool(self._proposed)

    def _child(self, parent: TokenNode, token: int, source: Origin) -> TokenNode | None:
        """A hypothesis of one token more, not scored yet; None where that token must not stand."""
        grammar, state = self.hole.grammar, parent.state
        if not self._fits(parent, token):
            return None
        pending = parent.pending[len(self.vocabulary.pieces[token]) :]
        if grammar is not None:
            state = grammar.after(state, token)
        child = TokenNode(token, parent, -math.inf, -math.inf, pending, source, parent.depth + 1, state)
        if grammar is None:
            return child
        child.doubt = REPEATED if "" in grammar.to_taken(self._own(child)) else 0.0
        return child if grammar.sound(self._own(child)) else None

    def _fits(self, node: TokenNode, token: int) -> bool:
        return token < len(self.vocabulary.pieces) and bool(self._bias(node)[token] == 0)

    def _bias(self, node: TokenNode) -> Tensor:
        """Of the tokens behind a node: [width], 0 or -inf."""
        if self.hole.grammar is not None:
            return self.hole.grammar.bias(node.state, self.vocabulary.size)
        return self.vocabulary.allowed(node.pending, self.hole.one_line)

    # One pass

    def plan(self) -> Pass:
        """The rows of the next causal pass; call `receive` with their log-probabilities, and then `prune`."""
        self._plan = []
        self._behind.clear()
        ids: list[int] = []
        positions: list[int] = []
        first = len(self._ancestors)

        def add(token: int, parent_row: int, position: int, what: tuple[TokenNode | None, End | None, int]) -> int:
            row = len(self._ancestors)
            self._ancestors.append((self._ancestors[parent_row] if parent_row >= 0 else 0) | 1 << row)
            ids.append(token)
            positions.append(position)
            self._plan.append(what)
            return row

        if not self.passes:
            row = -1
            for number, token in enumerate(self.tail):
                last = number == len(self.tail) - 1
                row = add(token, row, self.start + number, (self.root if last else None, None, 0))
            self.root.row = row
            base = self.root
            queue = list(base.children.values())
        else:
            chosen = self._best_open()
            if chosen:
                self._repeat(chosen[0])
            queue = self._proposed + chosen
            self._proposed = []
        depth0 = self.start + len(self.tail) - 1
        while queue:
            node = queue.pop(0)
            assert node.parent is not None
            node.row = add(node.token, node.parent.row, depth0 + node.depth, (node, None, 0))
            queue += node.children.values()
        for end in self._best_ends():
            row, place = end.row, depth0 + end.node.depth + (end.node.cut is None)
            for number, token in enumerate(end.behind[:-1]):
                row = add(token, row, place + number, (None, end, number))
        self.passes += 1
        columns = len(self._ancestors)
        mask = torch.tensor([[bool(seen >> c & 1) for c in range(columns)] for seen in self._ancestors[first:]])
        return Pass(ids, positions, mask)

    def to_draft(self) -> Pass | None:
        """Return the best hypothesis as a row for a drafter: None before the first pass, or where the buffer already
        repeats what follows. Then call `take_draft` with its answer, before `plan`."""
        if not self.passes or self.width == 1 or not self.open:
            return None
        best = self._by_promise()[0]
        self._repeat(best)
        if best.children or best.depth >= self.hole.max_tokens:
            return None
        assert best.parent is not None
        seen, columns = self._ancestors[best.parent.row], len(self._ancestors)
        mask = torch.tensor([[*(bool(seen >> c & 1) for c in range(columns)), True]])
        return Pass([best.token], [self.start + len(self.tail) - 1 + best.depth], mask)

    def take_draft(self, tokens: Sequence[int], probabilities: Sequence[float]) -> None:
        """Have a drafter's tokens scored with the best hypothesis, as far as all of them together are likely."""
        together = itertools.accumulate(probabilities, float.__mul__)
        likely = itertools.takewhile(lambda pair: pair[1] >= LIKELY, zip(tokens, together, strict=True))
        self._chain(self._by_promise()[0], [token for token, _ in likely], "canvas")

    def _repeat(self, node: TokenNode) -> None:
        """Have what follows the same tokens elsewhere scored with a hypothesis: what is right of it saves a pass."""
        if self._repeats is not None and not node.children:
            self._chain(node, self._repeats.after([n.token for n in node.path()]), "lookup")

    def _chain(self, node: TokenNode, tokens: Sequence[int], source: Origin) -> None:
        """Add tokens after a hypothesis, up to the first that must not stand there."""
        for token in tokens:
            if node.depth >= self.hole.max_tokens or (child := self._child(node, token, source)) is None:
                break
            node.children[token] = child
            node = child

    def _by_promise(self) -> list[TokenNode]:
        """The open hypotheses, the most promising first."""
        self.open.sort(key=lambda n: n.rank + DEPTH_BONUS * n.depth, reverse=True)
        return self.open

    def _best_open(self) -> list[TokenNode]:
        ordered = self._by_promise()
        chosen, self.open = ordered[: self.width], ordered[self.width :]
        return chosen

    def _best_ends(self) -> list[End]:
        """The most promising unfinished ends, if they can still win. Ends far behind the open hypotheses wait: judging
        one costs a row for every token of the head."""
        late = self.passes >= LATE and self.best() is None
        leading = -math.inf if late else max((n.rank for n in self.open), default=-math.inf)
        least = max(self._least(), leading - END_MARGIN)
        waiting = [e for e in self.ends if e.score is None and e.bound > least]
        return sorted(waiting, key=lambda e: e.bound, reverse=True)[:2]

    def receive(self, logp: Tensor) -> None:
        """Log-probabilities [rows of the plan, base vocabulary] of what follows each row."""
        running: dict[End, float] = {}
        for row, (node, end, number) in zip(logp, self._plan, strict=True):
            if node is not None:
                self._expand(node, row)
            elif end is not None:
                running[end] = running.get(end, end.bound) + float(row[end.behind[number + 1]])
        for end, score in running.items():
            end.score = score

    def _expand(self, node: TokenNode, logp: Tensor) -> None:
        if not math.isfinite(node.logp):
            return  # below a proposal that the base gives no chance
        node.rank, node.doubt = node.rank + node.doubt, 0.0
        bias = self._bias(node)[: len(self.vocabulary.pieces)]
        if node.pending:  # the forced text is given: condition on it
            logp = (logp + bias).log_softmax(-1)
        gain = self._gain(node, logp)
        if self.passes == 1:
            self._behind[node] = logp, gain
        most, spare = min(BRANCH, self.width), SPARE if self.hole.grammar and self.hole.grammar.taken else 0
        best = (gain + bias).topk(most + spare)
        if not node.pending:
            least = -math.inf if self.width > 1 else float(best.values[0])
            self._maybe_end(node, logp, gain, least)
            self._maybe_cross(node, logp, gain, least)
        for token, child in node.children.items():
            child.logp, child.rank = node.logp + float(logp[token]), node.rank + float(gain[token]) - child.doubt
        if node.depth >= self.hole.max_tokens:
            return
        for value, token in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            if not most or not math.isfinite(value):
                break
            new = node.children.get(token)
            if new is None and (new := self._child(node, token, "left_to_right")) is not None:
                new.logp, new.rank = node.logp + float(logp[token]), node.rank + value - new.doubt
                node.children[token] = new
                self.open.append(new)
            most -= new is None or not new.doubt

    def _gain(self, node: TokenNode, logp: Tensor) -> Tensor:
        """What each token behind the node adds to its rank."""
        if self.generator is None:
            return logp
        return perturbed(node.logp + logp, node.rank, self.generator) - node.rank

    def _maybe_end(self, node: TokenNode, logp: Tensor, gain: Tensor, least: float) -> None:
        """A fill may end behind this node, unless it would be empty or end inside a character, or the end adds less
        than `least` to its rank."""
        grammar, raw = self.hole.grammar, self._own(node)
        if grammar is not None and not (grammar.ends(node.state) and grammar.sound(raw, whole=True)):
            return
        if not is_text(raw):
            return
        ends = self._ending if self.head else self.vocabulary.line_ends
        if self.width == 1 and self.hole.one_line and ends[0] in self.vocabulary.line_ends:
            ends = self.vocabulary.line_ends  # whatever breaks the line: nothing else would be as likely
        together = logp[ends].logsumexp(0)
        rank = together if self.generator is None else gain[ends].max()  # a Gumbel of a sum is the greatest of it
        if rank < least:
            return
        self._end(node, node.logp + float(together), node.rank + float(rank), self.head)

    def _maybe_cross(self, node: TokenNode, logp: Tensor, gain: Tensor, least: float) -> None:
        """A fill may end inside the likeliest token that goes on into the suffix, if it adds `least` to the rank. Where
        that can be cut in more than one place, the suffix behind it decides. A grammar may refuse the likeliest."""
        if not self._cuts or node.depth >= self.hole.max_tokens:
            return
        tried = min(CROSSINGS if self.hole.grammar is not None else 1, len(self._across))
        for token in self._across[gain[self._across].topk(tried).indices].tolist():
            if gain[token] < least:
                return
            leaves = [leaf for cut in self._cuts[token] if (leaf := self._cut(node, token, cut))]
            for leaf in leaves:
                leaf.logp, leaf.rank = node.logp + float(logp[token]), node.rank + float(gain[token])
                rest = self._left_of_head(len(self.vocabulary.pieces[token]) - (leaf.cut or 0))
                self._end(leaf, leaf.logp, leaf.rank, [token, *rest])
            if leaves:
                return

    def _cut(self, node: TokenNode, token: int, cut: int) -> TokenNode | None:
        """A fill that ends behind the first `cut` bytes of a token; None where it must not."""
        grammar, state, own = self.hole.grammar, node.state, self.vocabulary.pieces[token][:cut]
        if grammar is not None:
            for part in self.vocabulary.spelled(own) if is_whole(own) else ():
                state = grammar.after(state, part)
            if not (is_whole(own) and grammar.ends(state)):
                return None
        leaf = TokenNode(token, node, -math.inf, -math.inf, b"", "left_to_right", node.depth + 1, state, cut=cut)
        raw = self._own(leaf)
        return leaf if is_text(raw) and (grammar is None or grammar.sound(raw, whole=True)) else None

    def _left_of_head(self, taken: int) -> list[int]:
        """The head without its first bytes, in tokens."""
        pieces = [self.vocabulary.pieces[token] for token in self.head]
        starts = [0, *itertools.accumulate(len(piece) for piece in pieces)]
        if taken in starts:
            return self.head[starts.index(taken) :]
        return self.vocabulary.spelled(b"".join(pieces)[taken:].decode(errors="ignore").encode())

    def _end(self, node: TokenNode, logp: float, bound: float, behind: list[int]) -> None:
        self.ends.append(End(node, logp, bound, behind, None if len(behind) > 1 else bound))

    # Decisions

    def best(self) -> End | None:
        """The best scored candidate."""
        scored = [e for e in self.ends if e.score is not None]
        return max(scored, key=lambda e: e.score or 0.0, default=None)

    def candidates(self) -> list[End]:
        """Scored candidates, best first, each text once."""
        scored = sorted((e for e in self.ends if e.score is not None), key=lambda e: e.score or 0.0, reverse=True)
        seen: dict[bytes, End] = {}
        for end in scored:
            seen.setdefault(self._bytes(end.node), end)
        return list(seen.values())

    def prune(self) -> None:
        """Drop what cannot win any more or is too unlikely, then lock what the rest shares."""
        best = self.best()
        if best is not self._best:
            self._best, self._improved = best, self.passes
        least = self._least() + PATIENCE * (self.passes - self._improved)
        winning = [n for n in self.open if n.rank > least]
        self.open = [n for n in winning if n.logp > self._faint]
        certain = self.hole.grammar is not None  # where the text may end, whatever the model expects after it
        self.ends = [e for e in self.ends if (e.node.logp if certain else e.logp) > self._faint]
        best = self.best()
        leaders = [(n.rank + DEPTH_BONUS * n.depth, n) for n in (*self.open, *self._proposed)]
        leaders += [(e.node.rank + DEPTH_BONUS * e.node.depth, e.node) for e in self.ends if e.score is None]
        if best is not None:
            leaders.append((best.node.rank + DEPTH_BONUS * best.node.depth, best.node))
        if not leaders:  # what was given up last shows where the likely part of it ends
            self._last = max(winning, key=lambda n: n.rank + DEPTH_BONUS * n.depth, default=self._last)
            return
        top, self._last = max(leaders, key=lambda leader: leader[0])
        texts = [self._bytes(n) for value, n in leaders if value > top - LOCK_MARGIN or (best and n is best.node)]
        texts += [self._bytes(n) for n in self._proposed]
        shared = common_prefix(texts)
        if len(shared) > len(self.locked) and not self._leads_to_taken(shared):
            self.locked = shared
        held = self.locked
        self.open = [n for n in self.open if self._bytes(n).startswith(held)]
        self.ends = [e for e in self.ends if self._bytes(e.node).startswith(held)]

    def _leads_to_taken(self, text: bytes) -> bool:
        """Whether a key is open behind a text that may become a taken one, and then leads nowhere."""
        return self.hole.grammar is not None and bool(self.hole.grammar.to_taken(text[len(self.hole.forced) :]))

    def _least(self) -> float:
        """What a hypothesis, its end included, must exceed to win yet: the best score less what the rest of the suffix
        head may bring, which is what it brought the candidates so far or, where those spoil it, a usual value."""
        best = self.best()
        if best is None or best.score is None:
            return -math.inf
        usual = -USUAL_NATS * max(0, len(self.head) - 1)
        rest = max((e.score - e.bound for e in self.ends if e.score is not None), default=usual)
        return best.score - max(rest, usual)

    def finished(self) -> bool:
        """Nothing left that is likely to beat the best candidate."""
        if not self.passes:
            return False
        return self.passes >= passes(self.hole, self.width) or not (self.open or self._proposed or self._best_ends())

    def _piece(self, node: TokenNode) -> bytes:
        return self.vocabulary.pieces[node.token][: node.cut]

    def _bytes(self, node: TokenNode) -> bytes:
        return b"".join(self._piece(n) for n in node.path())

    def _own(self, node: TokenNode) -> bytes:
        """The bytes of a path, without the forced part."""
        return self._bytes(node)[len(self.hole.forced) :]

    def closing(self, node: TokenNode) -> bytes:
        """What a path still lacks to be whole, where the hole has a grammar: a short text."""
        grammar = self.hole.grammar
        if grammar is None or (grammar.ends(node.state) and grammar.sound(self._own(node), whole=True)):
            return b""
        return grammar.closing(node.state, self._own(node))

    def answer(self, node: TokenNode) -> bytes:
        """A path as it is answered: whole, and sound where that can be."""
        grammar, raw = self.hole.grammar, self._bytes(node) + self.closing(node)
        if grammar is not None and not grammar.sound(raw[len(self.hole.forced) :], whole=True):
            simplest = b"".join(self.vocabulary.pieces[token] for token in self.hole.shortest)
            return simplest if simplest.startswith(self.locked) else raw
        return raw

    def leader(self) -> TokenNode:
        """The node whose path is shown: the best candidate's, else the most promising hypothesis'."""
        best = self.best()
        if best is not None:
            return best.node
        waiting = [*self.open, *self._proposed, *(e.node for e in self.ends)]
        return max(waiting, key=lambda n: n.rank + DEPTH_BONUS * n.depth, default=self._last)

    def text(self) -> tuple[str, int]:
        """The shown text without the forced part, and how many of its code points are locked."""
        raw, skip = self._bytes(self.leader()), len(self.hole.forced)
        if not raw.startswith(self.hole.forced):
            return "", 0
        flags = bytes([1] * max(0, len(self.locked) - skip)).ljust(len(raw) - skip, b"\0")
        text, locked = spans(raw[skip:], flags)
        return text, locked[0][1] if locked and locked[0][0] == 0 else 0

    def text_of(self, node: TokenNode) -> str:
        """The text of an answer, whole and without the forced part."""
        raw, forced = self.answer(node), self.hole.forced
        return raw[len(forced) :].decode("utf-8", errors="ignore") if raw.startswith(forced) else ""

    def tokens(self, node: TokenNode) -> list[int]:
        """Of an answer."""
        answer = self.answer(node)
        whole = node.cut is None and answer == self._bytes(node)
        return [n.token for n in node.path()] if whole else self.vocabulary.spelled(answer)

    def confidence(self, node: TokenNode) -> float:
        """Geometric mean of the token probabilities of the path, and of ending there if it is a candidate."""
        if not node.depth:
            return 0.0
        ended = next((e for e in self.ends if e.node is node), None)
        logp, count = (ended.logp, node.depth + (node.cut is None)) if ended else (node.logp, node.depth)
        return math.exp(min(0.0, max(-50.0, logp / count)))

    def probabilities(self, node: TokenNode, answer: bytes | None = None) -> tuple[tuple[int, float], ...]:
        """The end of each token in the text of a path, and its probability given what stands before it. Of an answer,
        that of what closes the path, which no model has proposed, is 0."""
        nodes = node.path()
        given = [n.logp - n.parent.logp for n in nodes if n.parent is not None]
        pieces = [(self._piece(n), math.exp(min(0.0, p))) for n, p in zip(nodes, given, strict=True)]
        path = self._bytes(node)
        if answer is not None and not answer.startswith(path):
            pieces, path = [], b""
        behind = b"" if answer is None else answer[len(path) :]
        return by_token([*pieces, (behind, 0.0)] if behind else pieces, len(self.hole.forced))

    def sources(self, node: TokenNode) -> list[Origin]:
        return [n.source for n in node.path()]


def is_text(raw: bytes) -> bool:
    """Whether a fill may be these bytes: whole characters, not blanks alone."""
    return is_whole(raw) and bool(raw.decode().strip())


def passes(hole: HoleState, width: int) -> int:
    """Of a hole at most. Its whole budget may be written where a pass writes one token, and where a grammar closes what
    is cut short without the model."""
    return max(PASSES, hole.max_tokens) if hole.grammar is not None or width == 1 else PASSES


def perturbed(logp: Tensor, greatest: float, generator: torch.Generator) -> Tensor:
    """Log-probabilities [n] of paths that share all but their last token, with Gumbel noise of `TEMPERATURE` given that
    `greatest` is the greatest of them (Kool et al. 2019, appendix B.3): the best k of a tree of such ranks are k paths
    drawn without replacement."""
    noisy = logp / TEMPERATURE - torch.empty_like(logp).exponential_(generator=generator).log()
    top = greatest / TEMPERATURE
    below = top - noisy + torch.log1p(-torch.exp(noisy - noisy.max()))
    return TEMPERATURE * (top - below.relu() - torch.log1p(torch.exp(-below.abs())))


def common_prefix(texts: Sequence[bytes]) -> bytes:
    low, high = min(texts), max(texts)
    count = 0
    for a, b in zip(low, high, strict=False):
        if a != b:
            break
        count += 1
    return low[:count]
