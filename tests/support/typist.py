"""A user who edits one document key by key, and what the rules of the next edit propose then."""

from collections.abc import Sequence

from caesura.server.languages import language
from caesura.server.next_edit.history import EditHistory
from caesura.server.next_edit.proposals import EditProposal, proposals
from caesura.server.text import repair
from caesura.server.text.document import Document


class Typist:
    def __init__(self, text: str, name: str = "python") -> None:
        self.document = Document("file:///a", name, 1, text)
        self.history = EditHistory(self.document.text)

    @property
    def text(self) -> str:
        return self.document.text

    def replace(self, old: str, new: str, *, after: str = "") -> None:
        """Remove the first `old` after a text from its end on, and type `new` there, one key each."""
        start = self.text.index(old, self.text.index(after) + len(after))
        for at in reversed(range(start, start + len(old))):
            self.paste(at, at + 1, "")
        for at, key in enumerate(new, start):
            self.paste(at, at, key)

    def paste(self, start: int, end: int, text: str) -> None:
        """One edit of the editor."""
        place = self.document.position
        self.history.edited(self.document.edit(place(start), place(end), text))

    def proposed(self) -> Sequence[EditProposal]:
        """The proposals after a pause."""
        self.history.pause()
        name = self.document.language
        return proposals(self.text, repair.parsed(self.text, name), language(name), self.history.edits)

    def taken(self) -> str:
        """The text with all proposals in it."""
        text = self.text
        for one in sorted(self.proposed(), key=lambda one: -one.start):
            text = text[: one.start] + one.text + text[one.end :]
        return text
