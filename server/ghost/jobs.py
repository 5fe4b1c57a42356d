"""The contexts and jobs of ghost text."""

import re
from dataclasses import replace

from caesura import wire
from caesura.server.context.context import Context, after_closing, hole, line_before
from caesura.server.context.project import Project
from caesura.server.ghost.canvas import WarmCanvas
from caesura.server.infill.check import DocumentGate
from caesura.server.infill.job import Ask, Priority, infill
from caesura.server.infill.site import budget, context_of
from caesura.server.options import Settings
from caesura.server.structured import edits, imports
from caesura.server.structured.offer import Offer
from caesura.server.text.workspace import OpenDocument

LEAST_WORD = 3  # letters of a word of prose that must be typed before its rest is suggested

_WORD = re.compile(rf"\w{{{LEAST_WORD}}}\Z")


class Jobs:
    """Makes the contexts, jobs and gates of canvases, for all documents of a session."""

    def __init__(self, settings: Settings, project: Project) -> None:
        self._settings = settings
        self._project = project

    def end(self, opened: OpenDocument, at: int) -> int:
        """The end of a hole at the cursor. The editor inserted most closing brackets and quotes there: the fill decides
        about them, and the suffix stays the same while they come and go. In JSON they stay, since its grammar knows
        what follows the hole."""
        stay = self._structured(opened) and opened.language.edits != "markdown"
        return at if stay else after_closing(opened.document.text, at, opened.language)

    def context(self, opened: OpenDocument, start: int, end: int, lead: str = "") -> Context:
        """The context of the hole after `lead`, as if `lead` replaced `start:end`."""
        text, tree, options = opened.document.text, opened.tree.tree, self._settings.options
        if lead:
            text, tree, start = text[:start] + lead + text[end:], None, start + len(lead)
            end = start
        language = opened.document.language
        found = context_of(text, start, end, options=options, language=language, tree=tree, following=True)
        return self._project.frame(opened, found, budget(options))

    def refusal(self, opened: OpenDocument, canvas: WarmCanvas, *, invoked: bool) -> str:
        """The sentence on why a canvas gets no suggestion, whatever the model says; empty if it may get one."""
        options, start, scope = self._settings.options, canvas.typed.origin, canvas.context.scope
        if opened.document.language == "markdown" and not invoked:
            text = opened.document.text
            before = line_before(text, start) + (canvas.lead or canvas.typed.written)
            line = line_before(before, len(before))
            prose = edits.is_prose(line) and not edits.in_code(text, start, opened.tree.tree)
            if prose and not _WORD.search(line):
                return f"In prose, suggestions begin after the first {LEAST_WORD} letters of a word."
        if scope == "comment" and not options.in_comments:
            return "The setting 'inComments' turns suggestions in comments off."
        if scope == "string" and not options.in_strings:
            return "The setting 'inStrings' turns suggestions in strings off."
        return ""

    def offer(self, opened: OpenDocument, canvas: WarmCanvas) -> Offer | None:
        """The offer of the document's language after the lead of a canvas, or an import line, if there is one."""
        document = opened.document
        start, typed = canvas.typed.origin, canvas.typed.text
        before, after = document.text[:start] + canvas.lead, document.text[start + len(typed) :]
        if opened.language.names and not (canvas.lead or typed):
            return imports.completion(
                document.text, start, opened.language, opened.tree.tree, *self._project.others(opened)
            )
        if not self._structured(opened):
            return None
        schema = self._project.schema(opened)
        return edits.completion(before + after, len(before), language=document.language, schema=schema)

    def job(
        self,
        canvas: WarmCanvas,
        neighbours: tuple[wire.Neighbour, ...],
        priority: Priority,
        document: str,
        draft: tuple[str] | None = None,
    ) -> wire.Infill:
        options, offer = self._settings.options, canvas.offer
        segments = offer.segments if offer else (hole(canvas.context, options.max_tokens),)
        ask = Ask(
            priority,
            document=document,
            candidates=options.candidates,
            seed=canvas.seed,
            min_probability=canvas.faint,
            effort="full" if canvas.asked else "ghost",
        )
        return infill(
            canvas.context,
            segments,
            ask,
            neighbours=neighbours,
            draft=draft if len(segments) == 1 else None,
            schemas=offer.schemas if offer else (),
        )

    def gate(self, opened: OpenDocument, canvas: WarmCanvas) -> DocumentGate:
        """The gate for the texts of a canvas in the current document."""
        around = replace(canvas.context, prefix=canvas.context.prefix.removesuffix(canvas.lead))
        syntax, text, tree = self._settings.options.syntax_gate, opened.document.text, opened.tree.tree
        return DocumentGate(text, tree, canvas.typed.origin, around, canvas.offer, syntax=syntax)

    def _structured(self, opened: OpenDocument) -> bool:
        return self._settings.options.structured and opened.document.language in edits.LANGUAGES
