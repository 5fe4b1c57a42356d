"""The places at the cursors of open documents, as ghost text fills them."""

import re
from dataclasses import replace
from functools import partial

from caesura.server.context.context import Context, after_closing, line_before
from caesura.server.context.project import Project
from caesura.server.infill.site import Site, budget, site
from caesura.server.options import Settings
from caesura.server.structured import edits, imports
from caesura.server.structured.offer import Offer
from caesura.server.text.workspace import OpenDocument

LEAST_WORD = 3  # letters of a word of prose that must be typed before its rest is suggested

IN_FRONT = "The cursor stands in front of a word; a manual request may give text that ends before it."

_WORD = re.compile(r"\w")
_WORD_BEGUN = re.compile(rf"\w{{{LEAST_WORD}}}\Z")


class Sites:
    """Makes the sites of ghost text, for all documents of a session."""

    def __init__(self, settings: Settings, project: Project) -> None:
        self._settings = settings
        self._project = project

    def end(self, opened: OpenDocument, at: int) -> int:
        """The end of a hole at the cursor. The editor inserted most closing brackets and quotes there: the fill decides
        about them, and the suffix stays the same while they come and go. In JSON they stay, since its grammar knows
        what follows the hole."""
        stay = self._structured(opened) and opened.language.edits != "markdown"
        return at if stay else after_closing(opened.document.text, at, opened.language)

    def site(
        self, opened: OpenDocument, start: int, end: int, fixed_start: str = "", *, invoked: bool = False
    ) -> tuple[Site, str]:
        """The hole `start:end`, or the place after `fixed_start`, which then replaces it. Next to it, the sentence on
        why there is no suggestion, whatever the model says; empty if there may be one."""
        place = self._plain(opened, start, end, fixed_start)
        if refusal := self._refusal(opened, place, start, invoked=invoked):
            return place, refusal
        return replace(place, offer=self._offer(opened, place)), ""

    def context(self, opened: OpenDocument, start: int, end: int) -> Context:
        """The context of the hole `start:end`."""
        return self._plain(opened, start, end, "").context

    def _plain(self, opened: OpenDocument, start: int, end: int, fixed_start: str) -> Site:
        """The site without an offer."""
        text, tree, options = opened.document.text, opened.tree.tree, self._settings.options
        if fixed_start:
            text, tree, start = text[:start] + fixed_start + text[end:], None, start + len(fixed_start)
            end = start
        place = site(text, start, end, opened.document.language, tree=tree, options=options, following=True)
        around = self._project.frame(opened, place.context, budget(options))
        return replace(place, context=around, finished=False)

    def _refusal(self, opened: OpenDocument, place: Site, origin: int, *, invoked: bool) -> str:
        options, scope = self._settings.options, place.context.scope
        if not invoked and _WORD.match(place.text, place.end):
            return IN_FRONT
        if opened.document.language == "markdown" and not invoked:
            line = line_before(place.text, place.start)
            prose = edits.is_prose(line) and not edits.in_code(opened.document.text, origin, opened.tree.tree)
            if prose and not _WORD_BEGUN.search(line):
                return f"In prose, suggestions begin after the first {LEAST_WORD} letters of a word."
        if scope == "comment" and not options.in_comments:
            return "The setting 'inComments' turns suggestions in comments off."
        if scope == "string" and not options.in_strings:
            return "The setting 'inStrings' turns suggestions in strings off."
        return ""

    def _offer(self, opened: OpenDocument, place: Site) -> Offer | None:
        """The offer of the document's language, or of an import line, if there is one."""
        if opened.language.names:
            if place.tree is None or place.start < place.end:  # the tree has the closing brackets, or not the text
                return None
            others = partial(self._project.others, opened)
            return imports.completion(place.text, place.start, opened.language, place.tree, others)
        if not self._structured(opened):
            return None
        text, schema = place.text[: place.start] + place.text[place.end :], self._project.schema(opened)
        return edits.completion(text, place.start, language=opened.document.language, schema=schema)

    def _structured(self, opened: OpenDocument) -> bool:
        return self._settings.options.structured and opened.document.language in edits.LANGUAGES
