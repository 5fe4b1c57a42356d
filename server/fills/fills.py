"""Fills that a person asks for: of a selection, of several holes at once, of a broken region; then another one, or the
rest of one anew. What is kept is the last fill of each document. Edits come out; nothing is applied here.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import pairwise

from caesura import wire
from caesura.client.backend import Infiller, job_id
from caesura.server.answers.finish import finish
from caesura.server.context.context import Budget, Context, context, hole
from caesura.server.context.secrets import concealed, masked
from caesura.server.fills.gaps import MARKER, Candidate, Gap, NoFill, Place, Session, Span, Task, markers, trimmed
from caesura.server.fills.result import DEADLINE_MS, Events, Newest, Progress, Result, Surround, or_else
from caesura.server.options import Options
from caesura.server.text import repair
from caesura.server.text.document import Document

MOST_HOLES = 64  # of one fill, whatever number of jobs it takes
MAX_SELECTION = 800  # code points of a selection: about what the tokens of a hole can hold
MAX_CANVAS = 512  # tokens from a job's first hole to its last: what the engine takes
TRIES = 4  # jobs, each with a new seed, before we say that there is nothing else
CANDIDATES = 4  # asked for with each job
MAX_DOCUMENTS = 16  # whose last fill is kept

Group = Mapping[Place, tuple[int, Context, wire.Hole]]  # the holes of a job: where in its text, and what they are


class Fills:
    """All documents. Each way to fill gives events, the last a Result, or raises NoFill or EngineError; leaving them
    early cancels the job. The text is read at the call. There is no result when the document has changed since, or
    when a newer fill has begun there. `surround` adds to a context what lies around its document."""

    def __init__(self, engine: Infiller, options: Callable[[], Options], surround: Surround) -> None:
        self._engine = engine
        self._options = options
        self._surround = surround
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self.newest = Newest()

    def __repr__(self) -> str:
        return f"<Fills {list(self._sessions.values())}>"

    def selection(self, document: Document, spans: Sequence[Span]) -> Events:
        """Replace what is selected; several selections are filled together."""
        inner = [trimmed(document.text, *span) for span in spans]
        if any(end - start > MAX_SELECTION for start, end in inner):
            raise NoFill(f"The selection is longer than {MAX_SELECTION} characters; select less.")
        return self._begin(document, inner)

    def holes(self, document: Document, spans: Sequence[Span] = (), marker: str = MARKER) -> Events:
        """Fill every marker in the spans, or in the whole text; in spans without one, the snippet placeholders."""
        found = markers(document.text, spans, document.language, marker)
        if not found:
            raise NoFill(f"There is no marker {marker} here; put one where something is missing.")
        return self._begin(document, found)

    def repair(self, document: Document, start: int, end: int) -> Events:
        """Fill the smallest broken region around `start:end` anew, so that the text parses better."""
        tree = repair.parsed(document.text, document.language)
        if tree is None:
            raise NoFill("There is no syntax tree of this document, so nothing in it can be found broken.")
        spans = repair.regions(tree, document.text, start, end)
        if not spans:
            raise NoFill("Nothing is broken here, as far as the grammar says.")
        tasks = [Task(document.text, document.language, (Gap(*span),), tree, repairs=True) for span in spans]
        sessions = [Session(job_id(), task) for task in tasks]
        events = self._repair(document, sessions, self.newest.begin(document))
        return or_else(events, "No repair was found that parses better; the text stays as it is.")

    def another(self, document: Document, id: str | None = None) -> Events:
        """Something else in the place of the document's last fill. Raises NoFill where that is not the fill `id`."""
        session = self._session(document, id)
        events = self._next(document, session, self.newest.begin(document), tries=TRIES)
        return or_else(events, "The model proposes nothing else here.")

    def keep(self, document: Document, kept: Sequence[Span], id: str | None = None) -> Events:
        """Keep what lies in `kept` (spans of `filled(document)`) and denoise the rest of that fill again."""
        session = self._session(document, id).keeping(kept)
        events = self._next(document, session, self.newest.begin(document), tries=TRIES)
        return or_else(events, "The model proposes nothing else beside what is kept.")

    def filled(self, document: Document, id: str | None = None) -> Document:
        """The document with its last fill in it, whether that is applied or not."""
        text, _ = self._session(document, id).applied()
        return Document(document.uri, document.language, document.version, text, document.encoding)

    def close(self, uri: str) -> None:
        """Forget a document; what is being filled in it ends."""
        self._sessions.pop(uri, None)
        self.newest.close(uri)

    # One fill

    def _begin(self, document: Document, spans: Sequence[Span]) -> Events:
        spans = sorted(spans)
        if len(spans) > MOST_HOLES:
            raise NoFill(f"There are {len(spans)} holes, and {MOST_HOLES} can be filled together; select fewer.")
        if any(later[0] < span[1] for span, later in pairwise(spans)):
            raise NoFill("The selections overlap.")
        text, language = document.text, document.language
        task = Task(text, language, tuple(Gap(*span) for span in spans), repair.parsed(text, language))
        session = Session(job_id(), task)
        events = self._next(document, session, self.newest.begin(document), tries=2)
        return or_else(events, "The model proposes nothing that fits here; the text stays as it is.")

    def _session(self, document: Document, id: str | None) -> Session:
        session = self._sessions.get(document.uri)
        if session is None or id not in (None, session.id):
            raise NoFill("That fill is no longer known; ask for a new one.")
        return session

    async def _next(self, document: Document, session: Session, check: Callable[[], None], *, tries: int) -> Events:
        """The best candidate that was not shown yet. Ends without a Result if there is none after so many jobs."""
        session.where(document.text)
        found = session.take(gate=self._options().syntax_gate)
        while found is None and tries:
            async with aclosing(self._denoise(document, session, check)) as events:
                async for event in events:
                    if isinstance(event, Progress):
                        yield event
                    else:
                        session.waiting = event
            session.seed += 1
            tries -= 1
            found = session.take(gate=self._options().syntax_gate)
        if found is not None:
            check()
            yield self._result(document, session, found)

    async def _repair(self, document: Document, sessions: Sequence[Session], check: Callable[[], None]) -> Events:
        attempts = [*sessions, *sessions]  # with another seed the second time
        for number, session in enumerate(attempts):
            yield Progress(number, len(attempts))
            async with aclosing(self._next(document, session, check, tries=1)) as events:
                async for event in events:
                    if isinstance(event, Result):
                        yield event
                        return

    def _result(self, document: Document, session: Session, candidate: Candidate) -> Result:
        """What turns the document as it is into the one with `candidate` in its gaps."""
        spans = session.where(document.text)
        now = [document.text[start:end] for start, end in spans]
        removes = session.task.repairs
        session.standing = tuple(text if text or removes else old for text, old in zip(candidate, now, strict=True))
        self._sessions[document.uri] = session
        self._sessions.move_to_end(document.uri)
        if len(self._sessions) > MAX_DOCUMENTS:
            self._sessions.popitem(last=False)
        new = zip(spans, now, session.standing, strict=True)
        return Result(
            id=session.id,
            version=document.version,
            edits=tuple((*span, text) for span, old, text in new if text != old),
            unfilled=tuple(span for span, text in zip(spans, candidate, strict=True) if not text and not removes),
            holes=len(spans),
        )

    async def _denoise(
        self, document: Document, session: Session, check: Callable[[], None]
    ) -> AsyncGenerator[Progress | list[Candidate], None]:
        """Fill all holes: those that lie far apart one group after another, each seeing the fills before it. The last
        event has the candidates, best first: several only where one job holds all holes."""
        task, filled = session.task, dict[Place, str]()
        count = len(task.places)
        while len(filled) < count:
            check()
            text, offsets = task.lay(filled)
            group = self._group(task, text, offsets)
            job = self._job(document, session, text, group)
            async with aclosing(self._engine.infill(job)) as events:
                async for event in events:
                    check()
                    yield Progress(len(filled) + sum(not fill.open for fill in event.holes), count)
            assert isinstance(event, wire.Done)  # or infill raises
            choices = [finished(text, group, fills) for fills in (event.holes, *event.alternatives)]
            if len(group) == count:
                yield [task.candidate(choice) for choice in choices]
                return
            filled |= choices[0]
        yield [task.candidate(filled)]

    def _group(self, task: Task, text: str, offsets: Mapping[Place, int]) -> Group:
        """The first open holes that fit on one canvas: a token is at least a byte."""
        budget, most = self._budget(), self._options().max_tokens
        tree = task.parsed(text)
        group: dict[Place, tuple[int, Context, wire.Hole]] = {}
        size = end = 0
        for place, at in offsets.items():
            around = context(text, at, at, language=task.language, tree=tree, budget=budget)
            around, asked = _as_large(around, task.replaced(place), most)
            size += asked.max_tokens + (len(text[end:at].encode()) if group else 0)
            if group and (size > MAX_CANVAS or len(group) == wire.MAX_HOLES):
                break
            group[place], end = (at, around, asked), at
        return group

    def _job(self, document: Document, session: Session, text: str, group: Group) -> wire.Infill:
        """The job of a group. Secrets are covered in all that the engine sees, read as one text."""
        outside, segments = laid_out(text, group)
        around, neighbours = self._surround(document, outside, self._budget())
        prefix, pieces, suffix = concealed(around.prefix, segments, around.suffix)
        warm = session.task.repairs and session.seed == 0  # a repair begins from what is broken
        return wire.Infill(
            job=job_id(),
            document=session.id,
            kind="fill",
            priority="invoked",
            deadline_ms=DEADLINE_MS,
            prefix=prefix,
            suffix=suffix,
            language=around.language,
            neighbours=neighbours,
            segments=pieces,
            candidates=CANDIDATES,
            seed=session.seed,
            draft=tuple(_draft(session.task.replaced(at), around) for at, (_, around, _) in group.items())
            if warm
            else None,
        )

    def _budget(self) -> Budget:
        options = self._options()
        return Budget(options.context_before, options.context_after)


def laid_out(text: str, group: Group) -> tuple[Context, list[wire.Text | wire.Hole]]:
    """What lies around the holes of a job in `text`, and its segments."""
    (start, first, _), *_, (_, last, _) = [*group.values(), *group.values()]
    segments: list[wire.Text | wire.Hole] = []
    for at, _, asked in group.values():
        segments += [wire.Text(text[start:at]), asked] if at > start else [asked]
        start = at
    return replace(first, suffix=last.suffix), segments


def _draft(replaced: str, around: Context) -> str:
    """What stood in a hole, its secrets covered as they are seen from around it."""
    start = len(around.prefix)
    return masked(around.prefix + replaced + around.suffix)[start : start + len(replaced)]


def _as_large(around: Context, replaced: str, most: int) -> tuple[Context, wire.Hole]:
    """The hole of a context, at least as large as the text that it takes the place of."""
    lines = replaced.count("\n") + 1
    if lines > 1 and around.kind != "span":
        around = replace(around, kind="block", lines=max(lines, around.lines))
    tokens = max(hole(around, most).max_tokens, min(wire.MAX_SLOTS, len(replaced) // 3))
    return around, wire.Hole(tokens, around.kind)


def finished(text: str, group: Group, fills: Sequence[wire.Fill]) -> dict[Place, str]:
    """What comes into each hole of `text`, each fitted in after the ones before it."""
    done: dict[Place, str] = {}
    grown = 0
    for (place, (at, around, _)), fill in zip(group.items(), fills, strict=True):
        now = context(text, at + grown, at + grown, language=around.language)
        done[place] = finish(fill.text, replace(around, prefix=now.prefix, indent=now.indent))
        text = text[: at + grown] + done[place] + text[at + grown :]
        grown += len(done[place])
    return done
