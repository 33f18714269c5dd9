"""Every error as an HTTP response in OpenAI's envelope; never a traceback or FastAPI's format."""

from collections.abc import Iterable

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute

from models.config.routes import Destination, Routes
from models.db.database import DATABASE_UNAVAILABLE
from models.errors import (
    ApiError,
    InternalError,
    InvalidRequest,
    MethodNotAllowed,
    NotFound,
    Unavailable,
    UpstreamNotConfigured,
)
from web.http.auth import authenticate
from web.http.body import drain
from web.http.json_responses import json_response
from web.http.request_record import request_record
from web.http.unknown_paths import path_hint

logger = structlog.get_logger()

_CODES_OF_IDS = (None, "conversation_not_found", "response_not_found")
"""The codes of errors about ids that are not found."""


def install(app: FastAPI, routes: Iterable[BaseRoute]) -> None:
    """Registers the exception handlers. `routes`: those of the API, for the hints on unknown
    paths."""
    paths = [getattr(route, "path", "") for route in routes]
    app.state.offered = {path.split("/")[2] for path in paths if path.startswith("/v1/")}
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(Exception, _on_other_error)
    for error_type in DATABASE_UNAVAILABLE:
        app.add_exception_handler(error_type, _on_other_error)


def as_api_error(error: Exception, path: str) -> ApiError:
    """The error as a client gets it. Logs what operators must know; `path` is the request's."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, DATABASE_UNAVAILABLE):
        logger.warning("database_unavailable", error=str(error).strip())
        return Unavailable()
    logger.error("request_failed", path=path, exc_info=error)
    return InternalError()


def error_response(error: ApiError) -> Response:
    """The error as an HTTP response.

    With status 500 the official SDK does not retry: the error would occur again.
    """
    headers = {"x-should-retry": "false", **error.headers} if error.status == 500 else error.headers
    return json_response(error.body(), status=error.status, headers=headers)


async def response_to(request: Request, error: Exception) -> Response:
    """The response to an error that a route has raised."""
    on_error = _on_api_error if isinstance(error, ApiError) else _on_other_error
    return await on_error(request, error)


def unknown_url(connection: HTTPConnection) -> NotFound:
    """The error for a URL without a route."""
    path = connection.url.path
    method = connection.scope.get("method", "GET")
    hint = path_hint(path, connection.app.state.offered)
    return NotFound(f"Unknown request URL: {method} {path}.{hint}", code="unknown_url")


def model_not_found(model: str) -> NotFound:
    """The error for a model without a route, outside /v1/responses."""
    return NotFound(f"The model '{model}' does not exist.", param="model", code="model_not_found")


def find_upstreams(routes: Routes, model: str) -> tuple[Destination, ...]:
    """The upstreams of the model, in order; empty if no route matches it. Raises
    UpstreamNotConfigured."""
    found = routes.find(model)
    if not found and routes.has_route(model):
        raise UpstreamNotConfigured(model)
    return found


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    cell = request.app.settings.cell
    is_about_id = isinstance(error, NotFound) and error.code in _CODES_OF_IDS
    if cell and (is_about_id or error.code == "previous_response_not_found"):
        error.message += f" This is the cell '{cell}': ids of other cells are unknown here."
    request_record(request).note_error(error)
    await drain(request)
    return error_response(error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    """Errors of the router itself: unknown methods, and `/v1` alone.

    Under /v1 the API key is checked first.
    """
    assert isinstance(error, HTTPException)
    if f"{request.url.path}/".startswith("/v1/"):
        try:
            await authenticate(request)
        except ApiError as refusal:
            return await _on_api_error(request, refusal)
        except DATABASE_UNAVAILABLE as unavailable:
            return await _on_other_error(request, unavailable)
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


async def _on_other_error(request: Request, error: Exception) -> Response:
    api_error = as_api_error(error, request.url.path)
    request_record(request).note_error(api_error)
    return error_response(api_error)
