"""The failures of `caesura serve`: one JSON error each, in OpenAI's shape, with a sentence for the user."""

import logging
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from caesura.client.backend import EngineBusy, EngineError, EngineFailed, EngineUnavailable
from caesura.serve.hosting import RequestRefused, json_response

FAULT = "Caesura failed on this request; the lines that `caesura serve` printed say why."
_FAILED = {"invalid": HTTPStatus.BAD_REQUEST, "expired": HTTPStatus.GATEWAY_TIMEOUT}  # by the engine's code
_log = logging.getLogger(__name__)


def failure(status: int, sentence: str) -> Response:
    return json_response(described(status, sentence), status)


def described(status: int, sentence: str) -> dict[str, object]:
    code = HTTPStatus(status).name.lower()
    kind = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": sentence, "type": kind, "param": None, "code": code}}


def _status_of(error: EngineError) -> HTTPStatus:
    match error:
        case EngineBusy():
            return HTTPStatus.TOO_MANY_REQUESTS
        case EngineUnavailable():
            return HTTPStatus.SERVICE_UNAVAILABLE
        case EngineFailed():
            return _FAILED.get(error.code, HTTPStatus.INTERNAL_SERVER_ERROR)
    return HTTPStatus.INTERNAL_SERVER_ERROR


def status_and_sentence(error: Exception) -> tuple[int, str]:
    """The answer to an exception. A fault of ours is logged."""
    match error:
        case RequestRefused():
            return error.status, str(error)
        case EngineError():
            return _status_of(error), str(error)
        case HTTPException(status_code=404):
            return 404, "There is no such path here; `caesura serve --help` lists the paths."
        case HTTPException():
            return error.status_code, f"{error.detail}."
    _log.error("A fault of Caesura.", exc_info=error)
    return 500, FAULT


async def answered(_: Request, error: Exception) -> Response:
    """The handler of all exceptions that a route may raise."""
    return failure(*status_and_sentence(error))


KINDS = (RequestRefused, EngineError, HTTPException, Exception)
