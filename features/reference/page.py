"""The page at /docs: the OpenAPI document, for people. It loads nothing from elsewhere."""

import json
from dataclasses import dataclass
from typing import Any

from starlette.responses import HTMLResponse, Response

from features.console.mount import CONSOLE
from features.console.templates import render
from features.console.visit import HEADERS

Json = dict[str, Any]
_METHODS = ("get", "post", "put", "patch", "delete")


@dataclass(frozen=True, slots=True)
class Operation:
    """What can be done at a path."""

    method: str
    path: str
    summary: str
    description: str
    parameters: list[Json]
    bodies: list[tuple[str, str | None]]
    """media types of the body, each with the name of its schema"""
    answers: list[tuple[str, str, list[str]]]
    """status, description and names of schemas"""

    @property
    def anchor(self) -> str:
        """Its place on the page."""
        return f"{self.method}{self.path}".translate(str.maketrans("/{}", "---"))


def reference_page(document: Json, path_prefix: str) -> Response:
    """The page of an OpenAPI document."""
    components = document["components"]
    groups: dict[str, list[Operation]] = {}
    for path, operations in document["paths"].items():
        for method in _METHODS:
            if (operation := operations.get(method)) is not None:
                found = _operation(method, path, operation, components)
                groups.setdefault(operation["tags"][0], []).append(found)
    schemas = {name: pretty(schema) for name, schema in components["schemas"].items()}
    html = render(
        "reference.html",
        info=document["info"],
        groups=groups,
        schemas=schemas,
        prefix=path_prefix,
        root=f"{path_prefix}{CONSOLE}",
    )
    return HTMLResponse(html, headers=HEADERS)


def pretty(schema: Json) -> str:
    """JSON to read."""
    return json.dumps(schema, indent=2, ensure_ascii=False)


def _operation(method: str, path: str, operation: Json, components: Json) -> Operation:
    body = _resolved(operation.get("requestBody", {}), components)
    answers = {
        status: _resolved(answer, components) for status, answer in operation["responses"].items()
    }
    return Operation(
        method=method.upper(),
        path=path,
        summary=operation.get("summary", ""),
        description=operation.get("description", ""),
        parameters=[_resolved(each, components) for each in operation.get("parameters", [])],
        bodies=_schemas_of(body),
        answers=[
            (
                status,
                answer.get("description", ""),
                [name for _, name in _schemas_of(answer) if name],
            )
            for status, answer in answers.items()
        ],
    )


def _resolved(part: Json, components: Json) -> Json:
    """A part of the document, or what it refers to."""
    reference = part.get("$ref")
    if reference is None:
        return part
    _, _, kind, name = reference.split("/")
    resolved: Json = components[kind][name]
    return resolved


def _schemas_of(part: Json) -> list[tuple[str, str | None]]:
    """Media types of a body or an answer, each with the name of its schema."""
    content = part.get("content", {})
    return [(media, _schema_name(each.get("schema", {}))) for media, each in content.items()]


def _names_of(part: Json) -> list[str]:
    return [name for _, name in _schemas_of(part) if name is not None]


def _schema_name(schema: Json) -> str | None:
    reference = schema.get("$ref")
    return None if reference is None else str(reference).rpartition("/")[2]
