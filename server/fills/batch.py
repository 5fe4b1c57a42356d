"""The holes of a task that one job fills. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from caesura import wire
from caesura.server.context.context import Budget, Context, hole, line_before, window_before
from caesura.server.fills.task import HoleIndex, Task
from caesura.server.infill.members import lacking
from caesura.server.infill.site import Site, site
from caesura.server.options import Options
from caesura.server.structured.markdown.patterns import either
from caesura.server.text.lexer import indent_of

MAX_CANVAS = 512  # most tokens from a job's first hole to its last, as the engine allows


@dataclass(frozen=True)
class Batch:
    """`sites` are open holes of a task in `text`, which has the fills that are known."""

    text: str
    sites: Mapping[HoleIndex, Site]

    @property
    def around(self) -> Context:
        """The context around all of the holes."""
        first, *_, last = [site.context for site in (*self.sites.values(), *self.sites.values())]
        return replace(first, suffix=last.suffix)

    def segments(self, avoided: Sequence[str] = ()) -> list[wire.Text | wire.Hole]:
        """The holes and the text between them. Their fills read none of the members `avoided`."""
        segments, at = list[wire.Text | wire.Hole](), -1
        for one in self.sites.values():
            segments += [wire.Text(self.text[at : one.start])] if -1 < at < one.start else []
            segments += one.segments
            at = one.start
        return without(avoided, segments)

    def fills(self, holes: Sequence[wire.Fill]) -> Sequence[wire.Fill]:
        """A fill for each site. A site with an offer is alone, and all holes of the job are its own."""
        first, *others = self.sites.values()
        return holes if others else [first.fill(holes)]

    def fitted(self, fills: Sequence[wire.Fill]) -> dict[HoleIndex, str]:
        """The text to insert into each hole, fitted in after the fills before it."""
        text, done, grown = self.text, dict[HoleIndex, str](), 0
        for (index, one), fill in zip(self.sites.items(), fills, strict=True):
            at = one.start + grown
            prefix, indent = window_before(text, Budget().before, at), indent_of(line_before(text, at))
            around = replace(one.context, prefix=prefix, indent=indent)
            done[index] = replace(one, context=around).fitted(fill.text)
            text = text[:at] + done[index] + text[at:]
            grown += len(done[index])
        return done


def next_batch(task: Task, filled: Mapping[HoleIndex, str], options: Options) -> Batch:
    """The first open holes that fit on a canvas, counting a token for each byte between them."""
    text, offsets = task.lay(filled)
    tree, size, end = task.parsed(text), 0, 0
    sites: dict[HoleIndex, Site] = {}
    for index, at in offsets.items():
        place = _enlarged(site(text, at, at, task.language, tree=tree, options=options), task, index, options)
        size += place.hole.max_tokens + (len(text[end:at].encode()) if sites else 0)
        if sites and (size > MAX_CANVAS or len(sites) == wire.MAX_HOLES):
            break
        sites[index], end = place, at
    return Batch(text, sites)


def without(members: Sequence[str], segments: Sequence[wire.Text | wire.Hole]) -> list[wire.Text | wire.Hole]:
    """The segments of a job whose fills read none of these members."""
    if not members:
        return list(segments)
    pattern = wire.Pattern(lacking(members))
    free = (isinstance(one, wire.Hole) and one.grammar is None for one in segments)
    return [structs.replace(one, grammar=pattern) if at else one for one, at in zip(segments, free, strict=True)]


def _enlarged(place: Site, task: Task, index: HoleIndex, options: Options) -> Site:
    """The site, enlarged to hold at least as much as the replaced text."""
    replaced, choices = task.replaced(index), task.choices(index)
    lines = replaced.count("\n") + 1
    gap = task.gaps[index[0]]
    around = replace(place.context, joins=gap.start < gap.end)  # a selected part of a word is replaced by another part
    if lines > 1 and around.kind != "span":
        around = replace(around, kind="block", lines=max(lines, around.lines))
    tokens = max(hole(around, options.max_tokens).max_tokens, min(wire.MAX_SLOTS, len(replaced) // 3))
    asked = wire.Hole(tokens, "span", wire.Pattern(either(choices))) if choices else wire.Hole(tokens, around.kind)
    return replace(place, context=around, hole=asked, offer=task.offer)
