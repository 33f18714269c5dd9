"""/v1/responses/compact: a response that only compacts its history."""

from functools import partial
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.db.queries.read import ResponseRow
from models.ids import response_id
from models.wire.checks.faults import missing
from models.wire.compaction import CompactedHistory
from models.wire.without_effect import header_of
from web.admission import AdmittedBody
from web.http.auth import Key
from web.http.body import Hold, held_bytes
from web.http.json_responses import json_response
from web.http.request_record import request_record
from web.responses.create import CreateOptions
from web.responses.unstored import UnstoredCreate, unstored_create
from web.routes.foreground import wait_for_completion
from web.state import AppState, app_state

router = APIRouter(prefix="/v1/responses")

SUPPORTED_PARAMETERS = (
    "model",
    "input",
    "previous_response_id",
    "instructions",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "image",
)
"""Parameters with the meaning that they have in a create."""
_TRIGGER = {"type": "compaction_trigger"}


@router.post("/compact")
async def compact(request: Request, key: Key, body: AdmittedBody) -> Response:
    """Compacts a history: the newest messages of users, and one item for everything else."""
    state = app_state(request)
    record = request_record(request)
    create = to_create_body(body.value)
    body.value = create.body
    accepted = await state.create_response.create(
        key, body, request.headers, CreateOptions(record.id)
    )
    record.note_response(accepted.id)
    row = await wait_for_completion(state, accepted, request, "The history could not be compacted.")
    hold = partial(held_bytes, request)
    return json_response(
        await _compaction_object(state, key.project_id, row, hold),
        headers=header_of([*create.ignored, *accepted.request.ignored]),
    )


def to_create_body(body: Any) -> UnstoredCreate:
    """The body of the create: not stored, and the last input item triggers the compaction.

    Raises InvalidRequest for parameters that this route does not have; the create checks the
    others.
    """
    create = unstored_create(body, SUPPORTED_PARAMETERS)
    items = create.body.get("input")
    if items is None and "previous_response_id" not in create.body:
        raise missing("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if items is None:
        items = []
    if isinstance(items, list) and items[-1:] != [_TRIGGER]:
        items = [*items, _TRIGGER]
    create.body["input"] = items
    return create


async def _compaction_object(
    state: AppState, project: UUID, row: ResponseRow, hold: Hold
) -> dict[str, Any]:
    item = (await state.response_store.show_ended(row, hold=hold))["output"][-1]
    unsealed = state.sealer.open_token("compaction", project, item["encrypted_content"])
    return {
        "id": response_id(row.id),
        "object": "response.compaction",
        "created_at": row.created_at,
        "output": [*CompactedHistory.from_json(unsealed).user_messages, item],
        "usage": row.usage,
    }
