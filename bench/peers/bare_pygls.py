"""The least language server that pygls makes, to compare with: it answers hover."""

from lsprotocol import types
from pygls.lsp.server import LanguageServer

server = LanguageServer("bare", "1")


@server.feature(types.TEXT_DOCUMENT_HOVER)
def hover(params: types.HoverParams) -> None:
    return None


server.start_io()
