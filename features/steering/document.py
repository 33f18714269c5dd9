"""Steering in the API document."""

from uuid import UUID

from features.reference import examples, schemas
from features.reference.response_schema import RESPONSE_ID
from features.steering.queries import SteerRow
from features.steering.web import steer_object
from models.ids import STEER
from models.wire.api_schema import Schema, const, nullable, object_schema
from models.wire.items import input_schema

CODES = {
    "response_not_found": "the response to steer does not exist, or not on this WebSocket",
    "invalid_input": "the input of a steer is not one or more messages of the user",
    "steering_not_supported": "the response is in a conversation or in a batch, or uses automatic "
    "compaction",
    "too_many_pending_steers": "too much steering input is pending for the response",
    "response_already_completed": "the response to steer has ended",
    "response_not_active": "the end of the response to steer was requested, or it has failed",
}


def operations() -> dict[str, schemas.Json]:
    """Name of a route's function -> its operation."""
    example = {"a steer": _example()}
    return {
        "steer_response": schemas.operation(
            "Send input to a running background response",
            schemas.response("The steer, which is queued.", "Steer", examples=example),
            404,
            body=schemas.request_body("SteerResponse", {"a text": {"input": "In French, please."}}),
            once=True,
        ),
        "list_steers": schemas.operation(
            "List the steers of a response",
            schemas.response("A page of steers.", "SteerList"),
            404,
            parameters=schemas.PAGING,
        ),
    }


def components(deployment: schemas.Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    messages = schemas.described(
        input_schema(deployment.sent),
        "A text, or messages of the user with texts, images and files.",
    )
    error = {"type": schemas.STRING, "code": schemas.STRING, "message": schemas.STRING}
    return {
        "SteerResponse": schemas.strict({"input": messages}),
        "Steer": object_schema(
            {
                "id": schemas.id_of(f"{STEER}_"),
                "object": const("response.steer"),
                "created_at": schemas.SECONDS,
                "previous_response_id": RESPONSE_ID,
                "state": schemas.described(
                    schemas.one_of_texts(("queued", "pending", "committed", "failed")),
                    "`pending`: it waits for `required_input`, in a create that continues the "
                    "response. `committed`: it is input of the successor.",
                ),
                "input": schemas.described({}, "As it was sent; null once it is committed."),
                "required_input": nullable(schemas.array_of(schemas.OBJECT)),
                "successor_response_id": nullable(RESPONSE_ID),
                "error": nullable(object_schema(error)),
            }
        ),
        "SteerList": schemas.page_of("Steer"),
    }


def _example() -> schemas.Json:
    return steer_object(
        SteerRow(
            id=UUID("019abc12de347000d1b2c3d4e5f60755"),
            response_id=UUID(examples.RESPONSE_ID.removeprefix("resp_")),
            state="queued",
            created_at=examples.TIME,
            input="In French, please.",
            successor_id=None,
            required_input=None,
            error_code=None,
        )
    )
