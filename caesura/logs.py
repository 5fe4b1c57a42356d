"""Logs of one line a message, with errors by type and place only, and no core files: an error's message and a process's
memory may hold the user's text.
"""

import logging
import sys
import threading
import traceback
from types import TracebackType
from typing import Any

from caesura.characters import shown

log = logging.getLogger(__name__)

_Error = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


class _Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        record.message = shown(record.message)  # names of clients, models and files come from elsewhere
        return super().formatMessage(record)

    def formatException(self, ei: _Error) -> str:  # noqa: N802 (logging's name)
        return traced(ei[1]) if ei[1] else ""


def begin(level: int, form: str) -> None:
    """Log to stderr, uncaught errors too, and write no core file at a crash."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter(form))
    logging.basicConfig(level=level, handlers=[handler])
    sys.excepthook = lambda kind, error, trace: log.critical("not caught", exc_info=error)
    sys.unraisablehook = lambda about: log.error("not caught", exc_info=about.exc_value)
    threading.excepthook = _in_thread
    if sys.platform != "win32":
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (int(most != 0), most))  # 1 also prevents piping to a program: core(5)


def traced(error: BaseException) -> str:
    """An error and its causes, each by type and stack."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < 8:
        parts.insert(0, "".join(traceback.format_tb(cause.__traceback__)) + type(cause).__name__)
        cause = cause.__cause__ or cause.__context__
    return "\nwhich led to\n".join(parts)


def _in_thread(about: Any) -> None:
    if about.exc_type is not SystemExit:
        log.error("not caught in a thread", exc_info=about.exc_value)
