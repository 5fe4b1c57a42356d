"""The popup item: the proposal as an ordinary completion item, for editors that draw no ghost text.

The item begins with the word before the cursor, since popups replace that word and filter by it. The list is always
incomplete, so that the editor asks again at each key; typing along with the item costs no forward.
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

ACCEPTED = "caesura.accepted"  # the command that an editor sends when it has inserted an item
TRIGGERS = (".", "=")  # lines seldom end after these, so Enter seldom accepts an item by mistake
LAST = "~"  # sort key after the items of language servers, so that Enter by habit accepts no guess
LABEL = 60  # most code points of a label
WORD = 200  # most code points of the word before the cursor; a longer one is cut at its start
GRACE_S = 0.05  # time for the answer at the deadline to get here
NOTHING = types.CompletionList(is_incomplete=True, items=[])

_TICKS = re.compile("`{3,}")

Answering = Callable[[], Awaitable[Proposal | NothingNew]]


class Popup:
    """The handler of `textDocument/completion` for one editor."""

    def __init__(self, session: Session, can: types.ClientCapabilities) -> None:
        document = can.text_document
        self.ghost = bool(document and document.inline_completion)  # set later too, by a request for ghost text
        item = document.completion.completion_item if document and document.completion else None
        formats = item and item.documentation_format
        self._markdown = not formats or types.MarkupKind.Markdown in formats  # Helix declares nothing and draws it
        self._session = session

    def __repr__(self) -> str:
        return f"<Popup {'off' if self._off else 'on'}>"

    def register(self, on: Callable[..., None]) -> None:
        """Offer completion, unless the editor draws ghost text or the popup is off."""
        if not self._off:
            on(types.TEXT_DOCUMENT_COMPLETION, self.complete, types.CompletionOptions(trigger_characters=TRIGGERS))

    @property
    def _off(self) -> bool:
        wanted = self._session.settings.options.popup
        return wanted == "off" or (wanted == "auto" and self.ghost)

    def complete(self, params: types.CompletionParams) -> types.CompletionList | Awaitable[types.CompletionList]:
        """One item or none, by the deadline; none if a newer edit or request came first."""
        opened = self._session.workspace.get(params.text_document.uri)
        if opened is None or self._off:
            return NOTHING
        cursor = opened.document.offset((params.position.line, params.position.character))
        # Editors report typing as invoked too. In a mode without automatic suggestions, the user pressed a key for it.
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
    """The item of a proposal at the cursor, with the word that it continues."""
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
    return character == "_" or unicodedata.category(character)[0] in "LMN"  # combining marks included


def label(first: str, *, more: bool) -> str:
    """The first line, shortened, with an ellipsis if there is more."""
    return first[: LABEL - 1] + "…" if len(first) > LABEL else first + "…" * more


def fenced(text: str, language: str) -> types.MarkupContent:
    fence = max(["``", *_TICKS.findall(text)], key=len) + "`"
    return types.MarkupContent(types.MarkupKind.Markdown, f"{fence}{language}\n{text}\n{fence}")
