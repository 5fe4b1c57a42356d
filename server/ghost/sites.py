"""The places at the cursors of open documents, as ghost text fills them."""

import re
from dataclasses import replace

from caesura.server.context.context import Context, after_closing, line_before
from caesura.server.context.project import Project
from caesura.server.infill.site import ALONE, Site, budget, offer_at, site
from caesura.server.options import Settings
from caesura.server.structured import edits
from caesura.server.structured.offer import Offer
from caesura.server.text.workspace import OpenDocument

LEAST_WORD = 3  # letters of a word of prose that must be typed before its rest is suggested

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
        self, opened: OpenDocument, start: int, end: int, lead: str = "", *, invoked: bool = False
    ) -> tuple[Site, str]:
        """The hole `start:end`, or the place after `lead` if `lead` replaces it. Then the sentence on why there is no
        suggestion, whatever the model says; empty if there may be one."""
        found = self._plain(opened, start, end, lead)
        if refusal := self._refusal(opened, found, start, invoked=invoked):
            return found, refusal
        return replace(found, offer=self._offer(opened, found)), ""

    def context(self, opened: OpenDocument, start: int, end: int) -> Context:
        """The context of the hole `start:end`."""
        return self._plain(opened, start, end, "").context

    def _plain(self, opened: OpenDocument, start: int, end: int, lead: str) -> Site:
        """The site without an offer."""
        text, tree, options = opened.document.text, opened.tree.tree, self._settings.options
        if lead:
            text, tree, start = text[:start] + lead + text[end:], None, start + len(lead)
            end = start
        found = site(text, start, end, opened.document.language, tree=tree, options=options, following=True)
        around = self._project.frame(opened, found.context, budget(options))
        return replace(found, context=around, finished=False)

    def _refusal(self, opened: OpenDocument, found: Site, origin: int, *, invoked: bool) -> str:
        options, scope = self._settings.options, found.context.scope
        if opened.document.language == "markdown" and not invoked:
            line = line_before(found.text, found.start)
            prose = edits.is_prose(line) and not edits.in_code(opened.document.text, origin, opened.tree.tree)
            if prose and not _WORD_BEGUN.search(line):
                return f"In prose, suggestions begin after the first {LEAST_WORD} letters of a word."
        if scope == "comment" and not options.in_comments:
            return "The setting 'inComments' turns suggestions in comments off."
        if scope == "string" and not options.in_strings:
            return "The setting 'inStrings' turns suggestions in strings off."
        return ""

    def _offer(self, opened: OpenDocument, found: Site) -> Offer | None:
        """The offer of the document's language, or of an import line, if there is one."""
        name, names = opened.document.language, bool(opened.language.names)
        if not (names or self._structured(opened)):
            return None
        text, schema = found.text[: found.start] + found.text[found.end :], self._project.schema(opened)
        tree = found.tree if found.start == found.end else None  # else it has the closing brackets too
        return offer_at(text, found.start, name, tree, schema, self._project.others(opened) if names else ALONE)

    def _structured(self, opened: OpenDocument) -> bool:
        return self._settings.options.structured and opened.document.language in edits.LANGUAGES
