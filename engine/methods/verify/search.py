"""Draft and verify: the token tree of one hole (tree.py), scored by causal passes of the base model.

The canvas and the lookup propose whole chains; one pass scores all of their tokens. Left-to-right steps then extend the
best hypotheses, several in each pass. The best one takes a guess along: the text that followed its tokens elsewhere, or
a drafter's. A hypothesis that reaches the suffix is scored on: the one with the highest
log p(fill) + log p(suffix head | fill) wins. In a long fill each token earns a little, or the shortest would win; a
fill that binds the missing name earns much. A copy of the lines around the hole is no answer: if it is better
than the best fill, nothing belongs there. The model's own end tokens count with the first token of the suffix, or stand
for a suffix that ends before its head does. With random numbers the search looks for another answer: perturbed
log-probabilities rank it, and it reports the model's own.

A ghost answer has to come soon and to grow steadily on the way: bytes that the near hypotheses share are locked, and
what differs is dropped. A full answer has to be the best, so nothing is locked. A hypothesis that could still win but
promises too little is put aside. It gets another chance when a better candidate is found.

Pure state: `to_draft` and `take_draft` ask a drafter, `plan` gives the rows to run, `read` asks their scores for the
few numbers that `receive` takes, and `prune` decides. (Speculative decoding: Leviathan et al. 2023; token trees:
SpecInfer, Miao et al. 2024; stochastic beam search: Kool et al. 2019.)
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from caesura.engine.canvas.canvas import HoleState
from caesura.engine.canvas.vocabulary import Vocabulary
from caesura.engine.draws import Draws
from caesura.engine.methods._forward import Pass
from caesura.engine.methods.verify.lines import NO_RULES, Rules, never
from caesura.engine.methods.verify.lookup import Repeats
from caesura.engine.methods.verify.tree import End, Hypotheses, Origin, TokenNode, common_prefix, is_text
from caesura.engine.scores import Below, Best, Bools, Known, Ranked, Reply, Scores, told

WIDTH = 4  # hypotheses scored in one pass
LONG_WIDTH = 2  # hypotheses scored in one pass of a long fill, besides its likeliest path
BRANCH = 3  # left-to-right children of a hypothesis
FIRST = 8  # the same where the fill's text begins: after an unlikely first word the base is often sure of the rest
PASSES = 40  # most passes of a hole
ENOUGH = 24  # passes of a hole that has a candidate and is not long: fills that take more are seldom right
LATE = 16  # passes without a candidate, after which the best end becomes one, however unlikely
REWARD = 0.15  # nats for each token of a long fill: without it the shortest wins; with twice as much they go on too far
HEAD = 6  # suffix tokens that judge a fill
CROSSED = 3  # likeliest tokens into the suffix that end a fill, if none is less likely than the first by CROSSED_MARGIN
CROSSED_MARGIN = 6.0  # nats
EVEN = math.log(0.5)  # log-probability
CROSSINGS = 8  # tokens into the suffix that are tried if a grammar may refuse them
BINDING = 6.0  # nats that a fill earns by binding the missing name
SPARE = 5  # children beyond BRANCH that replace taken keys, at most
DEPTH_BONUS = 0.7  # nats a token: without it, best-first never leaves the shallow nodes
END_MARGIN = 4.0  # nats below the best open hypothesis at which an end waits; see `_best_ends`
LOCK_MARGIN = 6.0  # nats below the best, from which a hypothesis no longer delays locking
LIKELY = 0.15  # joint probability of a drafter's chain, below which a row is not worth its time
TEMPERATURE = 0.8  # of the draw for another answer; 1 draws too much of a small model's unlikely tail


class Effort(NamedTuple):
    """How an answer is looked for. `locks`: lock the bytes that the near hypotheses share. A hypothesis that waits must
    promise `patience` nats more after each pass that found no better candidate. A token of the suffix head is taken to
    cost `usual` nats after a fill that fits."""

    locks: bool
    patience: float
    usual: float


GHOST = Effort(True, 1.5, 1.0)
FULL = Effort(False, 1.0, 0.5)


class NextTokens(NamedTuple):
    """What a pass says about the tokens after a hypothesis. `known` has the log-probability and the gain in rank of
    each token that was asked for. `best` are the likeliest allowed tokens, `across` the likeliest that cross into the
    suffix. `end` has both numbers of ending here."""

    known: dict[int, tuple[float, float]]
    best: list[int]
    across: list[int]
    end: tuple[float, float]


class Search:
    """The search of one hole: a pass scores `width` hypotheses; a single one ends where the end is the likeliest token.
    `start` is the position of the first tail row. `draws` draw another answer. Hypotheses less likely than
    `min_probability` are dropped. A `long` fill goes on as long as the base does; its likeliest path is followed to the
    end of the block, whatever it promises."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        hole: HoleState,
        tail: Sequence[int],
        head: Sequence[int],
        start: int,
        draws: Draws | None = None,
        width: int = WIDTH,
        repeats: Repeats | None = None,
        min_probability: float = 0.0,
        long: bool = False,
        effort: Effort = FULL,
        rules: Rules = NO_RULES,
    ) -> None:
        self.vocabulary, self.hole, self.start, self.draws = vocabulary, hole, start, draws
        self.width, self._repeats = width, repeats
        self._long, self._reward = long, REWARD if long and width > 1 else 0.0
        self._faint = math.log(min_probability) if min_probability else -math.inf
        self._effort = effort if width > 1 else GHOST  # a single hypothesis is final at each pass
        self._rules = rules
        self.tail, self.head = list(tail), list(head[: HEAD if width > 1 else 1])
        self.tree = Hypotheses(vocabulary, hole, self.tail, self.head)
        after = b"".join(vocabulary.pieces[token] for token in head)
        self._cuts = vocabulary.crossing(after, hole.one_line)  # where tokens that cross into the suffix can be cut
        ends = vocabulary.ends.difference(self.head[:1])
        self._ending = [*self.head[:1], *sorted(ends)]
        if not self.head or (width == 1 and hole.one_line and self._ending[0] in vocabulary.line_ends):
            self._ending = vocabulary.line_ends  # all that break the line: one of them alone is seldom the likeliest
        self._across = sorted(self._cuts)
        grammar = hole.grammar
        spare = SPARE if grammar and grammar.taken else 0
        self._most = (FIRST if width > 1 else 1) + spare  # likeliest tokens that are asked
        self._tried = min(CROSSED if grammar is None else CROSSINGS, len(self._across))
        self.open: list[TokenNode] = []  # known probability, not yet run
        self._dormant: list[TokenNode] = []  # could still win, but promise too little for now
        self.ends: list[End] = []
        self.passes = 0
        follows = rules.block_end is not None and width > 1 and draws is None
        self._likeliest = self.tree.root if follows else None  # the end of the likeliest path so far
        self._last = self.tree.root  # the most promising hypothesis, kept after all have been dropped
        self._best: End | None = None
        self._improved = 0  # the pass that found `_best`
        self._ancestors: list[int] = []  # per row of the tree: bit set of the rows it sees
        self._plan: list[tuple[TokenNode | None, End | None, int]] = []  # node, end, index in the head, of each row
        self._nodes: list[TokenNode] = []  # those of the plan, parents first
        # Of the first pass: where the log-probabilities and the gains of tokens after each node are.
        self._after: dict[TokenNode, tuple[Scores, Ranked, int]] = {}
        self._proposed: list[TokenNode] = []  # starts of chains that were proposed after the first pass

    def __repr__(self) -> str:
        return f"<Search pass {self.passes} {len(self.open)} open {self.text()[0]!r} locked {self.tree.locked!r}>"

    # Proposals

    def propose(self, tokens: Sequence[int], source: Origin) -> None:
        """Add a chain below the root, before or after the first pass. The next pass scores it, however unlikely."""
        node, first = self.tree.root, None
        for token in tokens[: self.hole.max_tokens]:
            child = node.children.get(token)
            if child is None and (child := self.tree.child(node, token, source)) is None:
                break
            if token not in node.children and node in self._after:
                own, gain, row = self._after[node]
                logp, gained = told(own.logp([row], [token]), gain.logp([row], [token]))
                self._weigh(child, float(logp[0]), float(gained[0]))
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
        """True if a chain that was proposed after the first pass is not scored yet."""
        return bool(self._proposed)

    # One pass

    def plan(self) -> Pass:
        """The rows of the next causal pass; call `read` with their scores, then `receive` and `prune`."""
        self._plan = []
        self._after.clear()
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
                row = add(token, row, self.start + number, (self.tree.root if last else None, None, 0))
            self.tree.root.row = row
            queue = list(self.tree.root.children.values())
        else:
            chosen = self._best_open()
            if self._likeliest and self._likeliest not in (*chosen, *self._proposed):
                chosen.insert(0, self._likeliest)
                self.open, self._dormant = (
                    [n for n in nodes if n is not self._likeliest] for nodes in (self.open, self._dormant)
                )
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
        return Pass(ids, positions, bits(self._ancestors[first:], len(self._ancestors)))

    def to_draft(self) -> Pass | None:
        """The best hypothesis as a row for a drafter; None before the first pass, or if a lookup has what follows. Call
        `take_draft` with the answer, before `plan`."""
        if not self.passes or self.width == 1 or not self.open:
            return None
        best = self._by_promise()[0]
        self._repeat(best)
        if best.children or best.depth >= self.hole.max_tokens:
            return None
        assert best.parent is not None
        columns = len(self._ancestors)
        mask = bits([self._ancestors[best.parent.row] | 1 << columns], columns + 1)
        return Pass([best.token], [self.start + len(self.tail) - 1 + best.depth], mask)

    def take_draft(self, tokens: Sequence[int], probabilities: Sequence[float]) -> None:
        """Score a drafter's tokens with the best hypothesis, up to where they are unlikely together."""
        together = itertools.accumulate(probabilities, float.__mul__)
        likely = itertools.takewhile(lambda pair: pair[1] >= LIKELY, zip(tokens, together, strict=True))
        self.tree.chain(self._by_promise()[0], [token for token, _ in likely], "canvas")

    def _repeat(self, node: TokenNode) -> None:
        """Score what follows the same tokens elsewhere with a hypothesis: each token that is right saves a pass."""
        if self._repeats is not None and not node.children:
            self.tree.chain(node, self._repeats.after([n.token for n in node.path()]), "lookup")

    def _by_promise(self) -> list[TokenNode]:
        """The open hypotheses, the most promising first."""
        self.open.sort(key=promise, reverse=True)
        return self.open

    def _best_open(self) -> list[TokenNode]:
        ordered, width = self._by_promise(), min(self.width, LONG_WIDTH) if self._long else self.width
        chosen, self.open = ordered[:width], ordered[width:]
        return chosen

    def _best_ends(self) -> list[End]:
        """The most promising unfinished ends that can still win. Ends far below the open hypotheses wait, since judging
        one costs a row for each token of the head."""
        late = self.passes >= LATE and self.best() is None
        leading = -math.inf if late else max((n.rank for n in self.open), default=-math.inf)
        least = max(self._rank_to_beat(), leading - END_MARGIN)
        waiting = [e for e in self.ends if e.score is None and (e.sure or e.bound > least)]
        return sorted(waiting, key=lambda e: (e.sure, e.bound), reverse=True)[:2]

    def read(self, scores: Scores) -> list[Reply[Any]]:
        """Ask the scores of the plan's rows, over the base's vocabulary, for what `receive` takes."""
        self._nodes = [node for node, *_ in self._plan if node is not None]
        first = next((row for row, (node, *_) in enumerate(self._plan) if node is not None), 0)
        count = len(self._nodes)
        own, behind = scores.part(first, first + count), scores.part(first + count, scores.rows)
        allowed = [self.tree.allowed(node) for node in self._nodes]
        if any(node.pending for node in self._nodes):  # the forced text is given: condition on it
            own = own.only([some if node.pending else None for node, some in zip(self._nodes, allowed, strict=True)])
        gain: Ranked = own if self.draws is None else self._perturbed(own, self.draws)
        if self.passes == 1:
            self._after = {node: (own, gain, row) for row, node in enumerate(self._nodes)}
        children = [(row, child.token) for row, node in enumerate(self._nodes) for child in node.children.values()]
        heads = [end.behind[number + 1] for _, end, number in self._plan if end is not None]
        rows, tokens = [row for row, _ in children], [token for _, token in children]
        asked: list[Reply[Any]] = [
            scores.finite(),
            behind.logp(range(len(heads)), heads),
            behind.mass(self.vocabulary.stops) if self._long else Known(None),
            gain.best(self._most, allowed),
            gain.best(self._tried, among=self._across),
        ]
        for one in (own,) if self.draws is None else (own, gain):
            asked += [one.logp(rows, tokens), one.mass(self._ending)]
        return asked

    def receive(self, answers: Sequence[Any]) -> bool:
        """Score the tree by what `read` asked for. False if the model gave NaN."""
        finite, heads, stops, best, across, *numbers = answers
        if not finite.all():
            return False
        known, ending = numbers[:2]
        gained, gained_ending = numbers[-2:]
        seen = [
            next_tokens(best, across, row, ends)
            for row, ends in enumerate(zip(ending.tolist(), gained_ending.tolist(), strict=True))
        ]
        children = [(one, token) for node, one in zip(self._nodes, seen, strict=True) for token in node.children]
        for (one, token), *scores in zip(children, known.tolist(), gained.tolist(), strict=True):
            one.known[token] = scores[0], scores[1]
        for node, one in zip(self._nodes, seen, strict=True):
            if math.isfinite(node.logp):  # else it is after a proposal that the base excludes
                node.rank, node.doubt = node.rank + node.doubt, 0.0
                self._expand(node, one)
        running = dict[End, float]()
        ends = [(end, end.behind[number + 1]) for _, end, number in self._plan if end is not None]
        for row, (end, token) in enumerate(ends):  # in a long fill, whichever token ends the text, where the head does
            score = heads if stops is None or token not in self.vocabulary.ends else stops
            running[end] = running.get(end, end.bound) + float(score[row])
        for end, score in running.items():
            end.score = score
        return True

    def _perturbed(self, own: Scores, draws: Draws) -> Ranked:
        """What each token adds to the perturbed rank of its node, rewards aside. A node after another one of this pass
        has a rank that this one gives it."""
        row = {node: number for number, node in enumerate(self._nodes)}
        tree = [
            Below(row[node.parent], node.token)
            if node.parent in row
            else Below(-1, node.token, node.logp, node.rank + node.doubt - node.earned)
            for node in self._nodes
        ]
        return own.perturbed(tree, draws, self._nodes[0].row, TEMPERATURE) if tree else own

    def _weigh(self, node: TokenNode, logp: float, gain: float) -> None:
        """Take over what a pass says of a token after its parent, and reward it unless it spells the forced text."""
        parent = node.parent
        assert parent is not None
        reward = 0.0
        if not parent.pending:
            node.binds = self._rules.binds(self._written(node)) if self._rules.binds is not never else False
            reward = self._reward + BINDING * (node.binds - parent.binds)
        node.weigh(logp, gain, reward)

    def _written(self, node: TokenNode) -> str:
        return self.tree.own(node).decode(errors="ignore")

    def _expand(self, node: TokenNode, seen: NextTokens) -> None:
        if not node.pending:
            least = seen.known[seen.best[0]][1] if self.width == 1 and seen.best else -math.inf
            self._maybe_end(node, seen, least)
            self._maybe_cross(node, seen, least)
        for child in node.children.values():
            self._weigh(child, *seen.known[child.token])
        most = self._children(node)
        for token in seen.best:
            if not most:
                break
            new = node.children.get(token)
            if new is None and (new := self.tree.longer(node, token, "left_to_right")) is not None:
                self._weigh(new, *seen.known[token])
                node.children[token] = new
                new.born = self.passes
                self.open.append(new)
            most -= new is None or not new.doubt
        if node is self._likeliest:
            self._follow(node, seen)

    def _follow(self, node: TokenNode, seen: NextTokens) -> None:
        """Go on along the likeliest path, unless the block ends there: then that end is scored."""
        assert self._rules.block_end is not None
        following = next((node.children[token] for token in seen.best if token in node.children), None)
        self._likeliest = following
        kept = self._rules.block_end(self._written(following)) if following else None
        if kept is not None:
            self._likeliest, raw = None, self.hole.forced + kept.rstrip().encode()
            for end in self.ends:
                end.sure |= end.node.raw.rstrip() == raw

    def _children(self, node: TokenNode) -> int:
        """How many left-to-right children a hypothesis gets."""
        if node.depth >= self.hole.max_tokens:
            return 0
        return 1 if self.width == 1 else BRANCH if self.tree.own(node).strip() else FIRST

    def _maybe_end(self, node: TokenNode, seen: NextTokens, least: float) -> None:
        """End the fill after this node, unless it would be empty or end inside a character, or the end adds less than
        `least` to its rank."""
        grammar, raw = self.hole.grammar, self.tree.own(node)
        if grammar is not None and not (grammar.ends(node.state) and grammar.sound(raw, whole=True)):
            return
        logp, gain = seen.end
        if gain >= least and is_text(raw):
            self._end(node, node.logp + logp, node.rank + gain, self.head)

    def _maybe_cross(self, node: TokenNode, seen: NextTokens, least: float) -> None:
        """End the fill inside the likeliest tokens that cross into the suffix, if that adds `least` to the rank. The
        rest of the suffix decides between them and their cuts. With a grammar the first that it allows is enough."""
        across = seen.across if node.depth < self.hole.max_tokens else []
        least = max(least, seen.known[across[0]][1] - CROSSED_MARGIN) if across and self.hole.grammar is None else least
        for token in across:
            if seen.known[token][1] < least:
                return
            leaves = [leaf for cut in self._cuts[token] if (leaf := self.tree.cut(node, token, cut))]
            for leaf in leaves:
                self._weigh(leaf, *seen.known[token])
                rest = self.tree.left_of_head(len(self.vocabulary.pieces[token]) - (leaf.cut or 0))
                self._end(leaf, leaf.logp, leaf.rank, [token, *rest])
            if leaves and self.hole.grammar is not None:
                return

    def _end(self, node: TokenNode, logp: float, bound: float, behind: list[int]) -> None:
        end = End(node, logp, bound, behind, None if len(behind) > 1 else bound)
        end.copy = self._rules.copies is not never and self._rules.copies(self._written(node))
        self.ends.append(end)

    # Decisions

    def best(self) -> End | None:
        """The best scored candidate."""
        return self._best_of(copies=False)

    def _best_of(self, *, copies: bool) -> End | None:
        scored = [e for e in self.ends if e.score is not None and e.copy is copies]
        return max(scored, key=lambda e: e.score or 0.0, default=None)

    @property
    def is_over(self) -> bool:
        """True if nothing belongs here: a copy of what is around the hole is better than any fill."""
        best, copy = self.best(), self._best_of(copies=True)
        if copy is None or copy.score is None or self._rules.is_needed:
            return False
        return best is None or best.score is None or copy.score > best.score

    def candidates(self) -> list[End]:
        """Scored candidates, best first, each text once."""
        known = (e for e in self.ends if e.score is not None and not e.copy)
        scored = sorted(known, key=lambda e: e.score or 0.0, reverse=True)
        seen: dict[bytes, End] = {}
        for end in scored:
            seen.setdefault(end.node.raw, end)
        return list(seen.values())

    def prune(self) -> None:
        """Drop what cannot win any more or is too unlikely, and put aside what promises too little. For a ghost answer
        that is dropped too, and the bytes that the rest shares are locked."""
        best = self.best()
        if best is not self._best:
            self._best, self._improved = best, self.passes
        least = self._rank_to_beat()
        known = [*self.open, *self._dormant]
        winning = [n for n in known if n.rank > least + self._effort.patience * self._waited(n)]
        self.open = [n for n in winning if n.logp > self._faint]
        if best is not None and best.score is not None and not self._effort.locks:
            chosen = set(winning)
            left = (n for n in known if n not in chosen and n.logp > self._faint)
            self._dormant = [n for n in left if self._most_of(n) > best.score]
        self.ends = [e for e in self.ends if self._is_likely(e)]
        best = self.best()
        if self._likeliest and best and best.score is not None and self._most_of(self._likeliest) <= best.score:
            self._likeliest = None
        leaders = [*self.open, *self._proposed, *(e.node for e in self.ends if e.score is None)]
        leaders += [e.node for e in (best, self._best_of(copies=True)) if e is not None]
        # the last dropped hypothesis shows where the likely part ends
        self._last = max(leaders or winning, key=promise, default=self._last)
        if leaders and self._effort.locks:
            self._lock(leaders, best)

    def _is_likely(self, end: End) -> bool:
        """True if an end is likely enough. The answer's probability is that of its text, so the end itself need only be
        more likely than not. Ghost text may be a start: where a grammar allows the end, the model may expect more."""
        if end.logp > self._faint:
            return True
        fair = self.hole.grammar is not None if self._effort.locks else end.logp - end.node.logp > EVEN
        return fair and end.node.logp > self._faint

    def _most_of(self, node: TokenNode) -> float:
        """The greatest score of a fill that goes on from here: all its tokens are certain and earn what they can."""
        may_bind = self._rules.binds is not never and not node.binds
        return node.rank + self._reward * (self.hole.max_tokens - node.depth) + BINDING * may_bind

    def _waited(self, node: TokenNode) -> int:
        """Passes that a hypothesis has waited for: since it was found, or the best candidate if that is later. So a
        path that grows at each pass goes on, and what is passed over again and again does not."""
        return self.passes - max(self._improved, 0 if self._effort.locks else node.born)

    def _lock(self, leaders: Sequence[TokenNode], best: End | None) -> None:
        """Lock the bytes that the best hypothesis and those near it share, and drop what differs."""
        least = promise(self._last) - LOCK_MARGIN
        near = [n for n in leaders if promise(n) > least or (best and n is best.node)]
        shared = common_prefix([n.raw for n in (*near, *self._proposed)])
        grammar, own = self.hole.grammar, shared[len(self.hole.forced) :]
        if len(shared) > len(self.tree.locked) and not (grammar and grammar.to_taken(own)):
            self.tree.locked = shared  # an open key that may become a taken one has no continuation
        held = self.tree.locked
        self.open = [n for n in self.open if n.raw.startswith(held)]
        self.ends = [e for e in self.ends if e.node.raw.startswith(held)]

    def _rank_to_beat(self) -> float:
        """The rank, end included, that a hypothesis must exceed to win: the best score less the log-probability of the
        rest of the suffix head. For that the best of the candidates counts, or a usual value if it is higher."""
        best = self.best()
        if best is None or best.score is None:
            return -math.inf
        usual = -self._effort.usual * max(0, len(self.head) - 1)
        rest = max((e.score - e.bound for e in self.ends if e.score is not None), default=usual)
        return best.score - max(rest, usual)

    def finished(self) -> bool:
        """True if nothing is left that may beat the best candidate."""
        if not self.passes:
            return False
        most = passes(self.hole, self.width, long=self._long)
        if self.hole.grammar is None and not self._long and self.width > 1 and self.best() is not None:
            most = min(most, ENOUGH)
        return self.passes >= most or not (self.open or self._proposed or self._likeliest or self._best_ends())

    def leader(self) -> TokenNode:
        """The node whose path is shown: the best candidate's, else the most promising hypothesis's."""
        best = self.best()
        if best is not None:
            return best.node
        waiting = [*self.open, *self._proposed, *(e.node for e in self.ends)]
        return max(waiting, key=promise, default=self._last)

    def text(self) -> tuple[str, int]:
        """The shown text without the forced part, and how many of its code points are locked."""
        leader, skip = self.leader(), len(self.hole.forced)
        if not leader.raw.startswith(self.hole.forced):
            return "", 0
        own = self.tree.own(leader)
        text, locked = (
            raw.decode("utf-8", errors="ignore") for raw in (own, own[: max(0, len(self.tree.locked) - skip)])
        )
        return text, len(locked)

    def confidence(self, node: TokenNode) -> float:
        """Geometric mean of the token probabilities of the path, and of ending there if it is a candidate."""
        if not node.depth:
            return 0.0
        ended = next((e for e in self.ends if e.node is node), None)
        logp, count = (ended.logp, node.depth + (node.cut is None)) if ended else (node.logp, node.depth)
        return math.exp(min(0.0, max(-50.0, logp / count)))


def promise(node: TokenNode) -> float:
    return node.rank + DEPTH_BONUS * node.depth


def passes(hole: HoleState, width: int, *, long: bool) -> int:
    """Most passes of a hole. A long fill, a grammar or a width of 1 may need one for each token of the budget."""
    return max(PASSES, hole.max_tokens) if long or hole.grammar is not None or width == 1 else PASSES


def bits(numbers: Sequence[int], columns: int) -> Bools:
    """The lowest bits of each number, the lowest first: bool [numbers, columns]."""
    text = "".join(f"{number:0{columns}b}"[::-1] for number in numbers)
    found: Bools = np.frombuffer(text.encode(), np.uint8) == ord("1")
    return found.reshape(-1, columns)


def next_tokens(best: Best, across: Best, row: int, end: tuple[float, float]) -> NextTokens:
    """What a pass says about the tokens after the hypothesis of a row: the best allowed ones, and those across."""
    known = dict[int, tuple[float, float]]()
    for ids, values, logp in (best, across):
        known |= zip(ids[row].tolist(), zip(logp[row].tolist(), values[row].tolist(), strict=True), strict=True)
    likely = best.ids[row][best.values[row] > -math.inf]
    return NextTokens(known, likely.tolist(), across.ids[row].tolist(), end)
