"""The popup item: what ghost text would say, as an ordinary completion item for editors that draw no ghost text.

The item stands for the word before the cursor and more, since that is what popups replace and filter by. Its list is
always incomplete, so that the editor asks again at each key, which costs no forward while the item is typed.
"""

import asyncio
import re
import unicodedata
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import takewhile

from lsprotocol import types

from caesura.server.context.context import line_before
from caesura.server.ghost.requests import NothingNew
from caesura.server.ghost.typed import Proposal
from caesura.server.options import MODES
from caesura.server.session import Session
from caesura.server.text.document import Document

ACCEPTED = "caesura.accepted"  # the command of an item: the editor has inserted it
TRIGGERS = (".", "=")  # lines seldom end behind these: where Enter takes the popup's item it is not in the way
LAST = "~"  # behind what a language server knows: Enter by habit never takes a guess
LABEL = 60  # code points
WORD = 200  # code points of the word before the cursor; of a longer one its end
GRACE_S = 0.05  # what there is at the deadline is answered then; this is for its way
NOTHING = types.CompletionList(is_incomplete=True, items=[])

_TICKS = re.compile("`{3,}")

Answering = Callable[[], Awaitable[Proposal | NothingNew]]


class Popup:
    """The handler of `textDocument/completion` for one editor."""

    def __init__(self, session: Session, can: types.ClientCapabilities) -> None:
        document = can.text_document
        self.ghost = bool(document and document.inline_completion)  # or the editor has asked for ghost text
        item = document.completion.completion_item if document and document.completion else None
        formats = item and item.documentation_format
        self._markdown = not formats or types.MarkupKind.Markdown in formats  # Helix says nothing and draws it
        self._session = session

    def __repr__(self) -> str:
        return f"<Popup {'off' if self._off else 'on'}>"

    def register(self, on: Callable[..., None]) -> None:
        """Offer completion, unless it is certain that the editor needs none."""
        if not self._off:
            on(types.TEXT_DOCUMENT_COMPLETION, self.complete, types.CompletionOptions(trigger_characters=TRIGGERS))

    @property
    def _off(self) -> bool:
        wanted = self._session.settings.options.popup
        return wanted == "off" or (wanted == "auto" and self.ghost)

    def complete(self, params: types.CompletionParams) -> types.CompletionList | Awaitable[types.CompletionList]:
        """One item or none, by the deadline; none where a newer edit or request came first."""
        opened = self._session.workspace.get(params.text_document.uri)
        if opened is None or self._off:
            return NOTHING
        cursor = opened.document.offset((params.position.line, params.position.character))
        # Editors call it invoked when a word is typed, too: where nothing comes by itself it was a key for this.
        called = params.context is None or params.context.trigger_kind == types.CompletionTriggerKind.Invoked
        invoked = called and not MODES[self._session.settings.options.mode].automatic
        return self._answer(opened.document, cursor, self._session.panes.propose(opened, cursor, invoked=invoked))

    async def _answer(self, document: Document, cursor: int, answering: Answering) -> types.CompletionList:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._session.settings.options.deadline_ms / 1000 + GRACE_S):
                answer = await answering()
                if isinstance(answer, Proposal) and answer.insert.strip():
                    found = item(document, cursor, answer, markdown=self._markdown)
                    return types.CompletionList(is_incomplete=True, items=[found])
        return NOTHING


def item(document: Document, cursor: int, proposal: Proposal, *, markdown: bool) -> types.CompletionItem:
    """A proposal for the cursor, with the word that it goes on from."""
    before = line_before(document.text, cursor)[-WORD:]
    word = "".join(takewhile(_of_a_word, reversed(before)))[::-1]
    text = word + proposal.insert
    first, _, more = text.strip().partition("\n")
    first = first.rstrip()
    start, end = map(document.position, (cursor - len(word), cursor + proposal.eat))
    where = types.Range(types.Position(*start), types.Position(*end))
    return types.CompletionItem(
        label=label(first, more=bool(more)),
        kind=types.CompletionItemKind.Text,
        detail="Caesura",
        documentation=fenced(text, document.language) if markdown else text,
        sort_text=LAST,
        filter_text=first,
        insert_text_format=types.InsertTextFormat.PlainText,
        insert_text_mode=types.InsertTextMode.AsIs,
        text_edit=types.TextEdit(where, text),
        command=types.Command("Accepted", ACCEPTED, arguments=[proposal.id]),
    )


def _of_a_word(character: str) -> bool:
    return character == "_" or unicodedata.category(character)[0] in "LMN"  # with the marks that combine


def label(first: str, *, more: bool) -> str:
    """The first line that says something, short, with a mark that there is more."""
    return first[: LABEL - 1] + "…" if len(first) > LABEL else first + "…" * more


def fenced(text: str, language: str) -> types.MarkupContent:
    fence = max(["``", *_TICKS.findall(text)], key=len) + "`"
    return types.MarkupContent(types.MarkupKind.Markdown, f"{fence}{language}\n{text}\n{fence}")
