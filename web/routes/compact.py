"""/v1/responses/compact: a foreground response that does nothing but sum up its history, shown as a `response.compaction`."""

from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.db.database import Row
from models.errors import ApiError, InvalidRequest
from models.ids import response_id
from models.lifecycle import Status
from models.secrets import Sealer
from models.wire.checks import json_type, missing
from models.wire.compaction import CompactedHistory
from models.wire.request import unknown_parameter
from web.http.auth import Project
from web.http.body import read_json
from web.http.json_responses import json_response
from web.routes.responses import wait_for_response
from web.state import AppState, app_state

router = APIRouter(prefix="/v1/responses")

SUPPORTED_PARAMETERS = (
    "model",
    "input",
    "previous_response_id",
    "instructions",
    "service_tier",
    "prompt_cache_key",
)
"""Parameters with the meaning that they have in a create."""
IGNORED_PARAMETERS = ("prompt_cache_options", "prompt_cache_retention", "image")
"""Parameters that OpenAI documents and that mean nothing here."""
_TRIGGER = {"type": "compaction_trigger"}


@router.post("/compact")
async def compact(request: Request, project: Project) -> Response:
    """Sums up a history: the newest messages of users, and one item that stands for everything."""
    state = app_state(request)
    body = to_create_body(await read_json(request, state.settings.limits.body))
    accepted = await state.create_response.create(project, body, request.headers)
    row = await wait_for_response(state, accepted, request)
    if row["status"] != Status.COMPLETED:
        raise ApiError("The history could not be compacted.")
    return json_response(await _compaction_object(state, project, row))


def to_create_body(body: Any) -> dict[str, Any]:
    """The create request that a compact request is: never stored, and its last input item asks for the compaction.

    Raises InvalidRequest for what the route does not take; the rest is judged as any create.
    """
    if type(body) is not dict:
        raise InvalidRequest(
            f"Invalid body: expected a JSON object, but got {json_type(body)} instead.",
            code="invalid_type",
        )
    parameters: dict[str, Any] = {}
    for name, value in body.items():
        if value is None or name in IGNORED_PARAMETERS:
            continue
        if name not in SUPPORTED_PARAMETERS:
            raise unknown_parameter(name)
        parameters[name] = value
    input_items = parameters.get("input")
    if input_items is None and "previous_response_id" not in parameters:
        raise missing("input")
    if isinstance(input_items, str):
        input_items = [{"role": "user", "content": input_items}]
    if input_items is None or isinstance(input_items, list):
        input_items = [
            *(input_items or []),
            *([] if input_items and input_items[-1] == _TRIGGER else [_TRIGGER]),
        ]
    return {**parameters, "input": input_items, "store": False}


async def _compaction_object(state: AppState, project: UUID, row: Row) -> dict[str, Any]:
    item = (await state.response_store.show(row))["output"][-1]
    unsealed = Sealer(state.settings.sealing_keys).open_token(
        "compaction", project, item["encrypted_content"]
    )
    return {
        "id": response_id(row["id"]),
        "object": "response.compaction",
        "created_at": row["created_at"],
        "output": [*CompactedHistory.from_json(unsealed).user_messages, item],
        "usage": row["usage"],
    }
