"""The view of a cell in the API document."""

from features.cells.views import COLUMNS, MAX_ROWS
from features.reference.parts import Json, operation, query_parameter, response
from features.reference.schemas import OBJECT, STRING, Deployment, array_of, one_of_texts
from models.wire.api_schema import Schema, const, object_schema


def operations() -> dict[str, Json]:
    """Name of a route's function -> its operation."""
    return {
        "retrieve_cell": operation(
            "Look at a cell",
            response("Its name, and the rows of the view.", "Cell"),
            parameters=[query_parameter("view", one_of_texts(COLUMNS), "What to list.")],
        )
    }


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
        )
    }
