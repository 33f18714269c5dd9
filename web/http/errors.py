"""Every error leaves through here, in the one envelope (contract §5.1); never a traceback, never FastAPI's own shape."""

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response

from models.db.database import AWAY
from models.errors import ApiError, InvalidRequest, MethodNotAllowed, NotFound, Unavailable
from web.http.auth import project_of
from web.http.body import drain
from web.http.json_responses import json_answer

logger = structlog.get_logger()


def install(app: FastAPI) -> None:
    """Registers the handlers."""
    app.add_exception_handler(ApiError, _told)
    app.add_exception_handler(HTTPException, _routed)
    app.add_exception_handler(RequestValidationError, _misread)
    app.add_exception_handler(Exception, _broke)
    for away in AWAY:
        app.add_exception_handler(away, _away)


def answer(error: ApiError) -> Response:
    """The error as an HTTP response. What is our own fault will be so again: the official SDK is told not to retry it."""
    headers = {"x-should-retry": "false", **error.headers} if error.status == 500 else error.headers
    return json_answer(error.body(), status=error.status, headers=headers)


def unknown_url(connection: HTTPConnection) -> NotFound:
    """No route of ours."""
    return NotFound(
        f"Unknown request URL: {connection.scope.get('method', 'GET')} {connection.url.path}.",
        code="unknown_url",
    )


async def _told(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    await drain(request)
    return answer(error)


async def _routed(request: Request, error: Exception) -> Response:
    """What the router itself refuses: methods nobody knows, and `/v1` alone. There too the key comes first (design §8)."""
    assert isinstance(error, HTTPException)
    if f"{request.url.path}/".startswith("/v1/"):
        try:
            await project_of(request)
        except ApiError as refusal:
            return await _told(request, refusal)
        except AWAY as away:
            return await _away(request, away)
    if error.status_code == 405:
        refused = MethodNotAllowed(f"The method {request.method} is not allowed here.")
        refused.headers = dict(error.headers or {})
        return await _told(request, refused)
    return await _told(
        request,
        unknown_url(request) if error.status_code == 404 else InvalidRequest(str(error.detail)),
    )


async def _misread(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return answer(
        InvalidRequest(
            f"Invalid request: {first['msg']}.",
            param=".".join(str(part) for part in first["loc"][1:]) or None,
            code="invalid_type",
        )
    )


async def _away(_request: Request, error: Exception) -> Response:
    logger.warning("database_away", error=str(error).strip())
    return answer(Unavailable())


async def _broke(request: Request, error: Exception) -> Response:
    logger.error("request_broke", path=request.url.path, exc_info=error)
    return answer(ApiError("The server had an error while processing your request."))
