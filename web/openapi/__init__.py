"""The document at /openapi.json: built from the code's own tables, checked against the running server (tests/contract/test_openapi.py)."""

from collections.abc import Iterable
from importlib import metadata
from typing import Any

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from models.config.routes import Routes
from models.config.settings import Settings
from web.openapi import objects, operations, requests
from web.openapi.meaning import ABOUT


def document(routes: Iterable[BaseRoute], settings: Settings) -> dict[str, Any]:
    """The OpenAPI document of these routes. Raises KeyError for a route that nobody has described."""
    described = operations.operations()
    routing = Routes(settings)
    native = any(upstream.api == "responses" for upstream in routing.upstreams.values())
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if isinstance(route, APIRoute):
            operation = {
                "operationId": route.name,
                "description": route.description,
                "tags": [_tag(route.path_format)],
                **described[route.name],
            }
            paths.setdefault(route.path_format, {}).update(
                {method.lower(): operation for method in route.methods or ()}
            )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Backburner", "version": _version(), "description": ABOUT},
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "An API key of a project.",
                }
            },
            "headers": operations.HEADERS,
            "responses": operations.errors(settings),
            "schemas": {
                **requests.components(routing.all_passthrough, native=native),
                **objects.components(native=native),
            },
        },
    }


def _version() -> str:
    try:
        return metadata.version("backburner")
    except metadata.PackageNotFoundError:
        return "0+uninstalled"  # run from a folder, as in the container image


def _tag(path: str) -> str:
    return path.split("/")[2] if path.startswith("/v1/") else "health"
