"""The view of a cell in the API document."""

from features.cells.views import COLUMNS, MAX_ROWS
from features.reference.schemas import (
    ADMIN,
    OBJECT,
    STRING,
    Deployment,
    Json,
    array_of,
    one_of_texts,
    operation,
    query_parameter,
    request_body,
    response,
)
from models.wire.api_schema import Schema, const, object_schema


def operations() -> dict[str, Json]:
    """Name of a route's function -> its operation."""
    named = {
        "retrieve_cell": operation(
            "Look at a cell",
            response("Its name, and the rows of the view.", "Cell"),
            parameters=[query_parameter("view", one_of_texts(COLUMNS), "What to list.")],
        ),
        "export_project": operation(
            "What another cell needs of a project", response("The project.", "ExportedProject"), 400
        ),
        "import_project": operation(
            "Take over a project of another cell",
            response("How many keys are new.", "ImportedProject"),
            body=request_body("ExportedProject", {}),
        ),
    }
    return {name: {**each, "security": [{ADMIN: []}]} for name, each in named.items()}


def components(_deployment: Deployment) -> dict[str, Schema]:
    """What is returned."""
    return {
        "Cell": object_schema(
            {
                "object": const("cell"),
                "name": STRING,
                "view": one_of_texts(COLUMNS),
                "data": array_of(OBJECT, at_most=MAX_ROWS),
            }
        ),
        "ExportedProject": object_schema(
            {
                "name": STRING,
                "weight": {"type": "integer"},
                "policy": OBJECT,
                "service_accounts": {"type": "array", "items": OBJECT},
                "keys": {"type": "array", "items": OBJECT},
                "release": STRING,
                "secret_keys": {"type": "array", "items": STRING},
            }
        ),
        "ImportedProject": object_schema(
            {
                "object": const("cell.project"),
                "keys_added": {"type": "integer"},
                "moved_at": {"type": ["integer", "null"]},
            }
        ),
    }
