"""What the operations of the admin API have in common."""

from collections.abc import Mapping

from features.reference.parts import PAGING, Json, operation, request_body, response
from features.reference.schemas import strict
from models.wire.api_schema import Schema, nullable

ADMIN = "admin"
"""The security scheme of these operations."""


def admin_operations(named: Mapping[str, Json]) -> dict[str, Json]:
    """Operations by the names of their functions: for keys of admins only."""
    return {name: {**each, "security": [{ADMIN: []}]} for name, each in named.items()}


def admin_list(summary: str, name: str, *parameters: Json) -> Json:
    """An operation that lists objects, whose component is `name`, in pages."""
    page = {"200": response("A page.", f"{name}List")}
    return operation(summary, page, 404, parameters=[*parameters, *PAGING])


def admin_change(
    summary: str, responses: dict[str, Json], body: str, example: Json, *parameters: Json
) -> Json:
    """An operation that creates or changes something. `body`: the component of its body."""
    return operation(
        summary, responses, parameters=parameters, body=request_body(body, {"an example": example})
    )


def strict_body(required: dict[str, Schema], optional: dict[str, Schema]) -> Schema:
    """A body without other fields; null is the same as leaving an optional one out."""
    absent = {name: nullable(schema) for name, schema in optional.items()}
    return strict(required, absent)
