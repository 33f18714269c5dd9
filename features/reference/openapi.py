"""The document at /openapi.json, built from the code's own tables. tests/contract/test_openapi.py
compares it with the code, test_openapi_server.py with the running server."""

from collections.abc import Collection, Iterable
from typing import Any

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from features.reference import objects, parts, requests
from features.reference.meaning import ABOUT
from features.reference.operations import operations
from features.tenants import document as organization
from features.tenants import document_parts as admin_parts
from features.webhooks import document as webhook_endpoints
from models.config.routes import Routes
from models.config.settings import Settings
from models.version import VERSION
from models.wire.api_schema import Schema, input_scope, stored_scope


def document(routes: Iterable[BaseRoute], settings: Settings) -> dict[str, Any]:
    """The OpenAPI document of these routes. Raises KeyError for a route without a description."""
    descriptions = operations()
    routing = Routes(settings)
    native = any(upstream.api == "responses" for upstream in routing.upstreams.values())
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if isinstance(route, APIRoute) and route.include_in_schema:
            operation = {
                "operationId": route.name,
                "description": route.description,
                "tags": [parts.tag_of(route.path_format)],
                **parts.on_path(route.path_format, descriptions[route.name]),
            }
            paths.setdefault(route.path_format, {}).update(
                {method.lower(): operation for method in route.methods or ()}
            )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Backburner", "version": VERSION, "description": ABOUT},
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": _key("An API key of a project."),
                admin_parts.ADMIN: _key("An API key with the scope `admin`."),
            },
            "headers": parts.header_components(),
            "responses": parts.error_components(settings),
            "schemas": _schemas(routing.all_passthrough, native=native),
        },
    }


def _schemas(passthrough: Collection[str], *, native: bool) -> dict[str, Schema]:
    sent, stored = input_scope(), stored_scope()
    named = {
        **requests.components(sent, stored, passthrough, native=native),
        **objects.components(stored, native=native),
    }
    requests.show_unset_fields(
        stored.components["ListedTools"], stored.components["ListedTextSettings"]
    )
    named |= organization.components() | webhook_endpoints.components()
    return {**named, **sent.components, **stored.components}


def _key(description: str) -> dict[str, str]:
    return {"type": "http", "scheme": "bearer", "description": description}
