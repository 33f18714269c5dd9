"""Every error leaves through here, in the one envelope (contract §5.1); never a traceback, never FastAPI's own shape."""

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response

from models.db.database import DATABASE_UNAVAILABLE
from models.errors import ApiError, InvalidRequest, MethodNotAllowed, NotFound, Unavailable
from web.http.auth import authenticate
from web.http.body import drain
from web.http.json_responses import json_response

logger = structlog.get_logger()


def install(app: FastAPI) -> None:
    """Registers the handlers."""
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(Exception, _on_unexpected_error)
    for away in DATABASE_UNAVAILABLE:
        app.add_exception_handler(away, _on_database_unavailable)


def error_response(error: ApiError) -> Response:
    """The error as an HTTP response. What is our own fault will be so again: the official SDK is told not to retry it."""
    headers = {"x-should-retry": "false", **error.headers} if error.status == 500 else error.headers
    return json_response(error.body(), status=error.status, headers=headers)


def unknown_url(connection: HTTPConnection) -> NotFound:
    """No route of ours."""
    return NotFound(
        f"Unknown request URL: {connection.scope.get('method', 'GET')} {connection.url.path}.",
        code="unknown_url",
    )


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    await drain(request)
    return error_response(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """What the router itself refuses: methods nobody knows, and `/v1` alone. There too the key comes first (design §8)."""
    assert isinstance(error, HTTPException)
    if f"{request.url.path}/".startswith("/v1/"):
        try:
            await authenticate(request)
        except ApiError as refusal:
            return await _on_api_error(request, refusal)
        except DATABASE_UNAVAILABLE as away:
            return await _on_database_unavailable(request, away)
    if error.status_code == 405:
        method_error = MethodNotAllowed(f"The method {request.method} is not allowed here.")
        method_error.headers = dict(error.headers or {})
        return await _on_api_error(request, method_error)
    return await _on_api_error(
        request,
        unknown_url(request) if error.status_code == 404 else InvalidRequest(str(error.detail)),
    )


async def _on_validation_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return error_response(
        InvalidRequest(
            f"Invalid request: {first['msg']}.",
            param=".".join(str(part) for part in first["loc"][1:]) or None,
            code="invalid_type",
        )
    )


async def _on_database_unavailable(_request: Request, error: Exception) -> Response:
    logger.warning("database_away", error=str(error).strip())
    return error_response(Unavailable())


async def _on_unexpected_error(request: Request, error: Exception) -> Response:
    logger.error("request_broke", path=request.url.path, exc_info=error)
    return error_response(ApiError("The server had an error while processing your request."))
