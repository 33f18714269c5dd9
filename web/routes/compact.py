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
from models.wire.checks import kind_of, missing
from models.wire.compaction import Compacted
from models.wire.request import unknown_parameter
from web.http.auth import Project
from web.http.body import read_json
from web.http.json_responses import json_answer
from web.routes.responses import ended_row
from web.state import Front, front_of

router = APIRouter(prefix="/v1/responses")

TAKEN = (
    "model",
    "input",
    "previous_response_id",
    "instructions",
    "service_tier",
    "prompt_cache_key",
)
"""Parameters with the meaning that they have in a create."""
IGNORED = ("prompt_cache_options", "prompt_cache_retention", "image")
"""Parameters that OpenAI documents and that mean nothing here."""
_TRIGGER = {"type": "compaction_trigger"}


@router.post("/compact")
async def compact(request: Request, project: Project) -> Response:
    """Sums up a history: the newest messages of users, and one item that stands for everything."""
    front = front_of(request)
    body = as_create(await read_json(request, front.settings.limits.body))
    accepted = await front.intake.accept(project, body, request.headers)
    row = await ended_row(front, accepted, request)
    if row["status"] != Status.COMPLETED:
        raise ApiError("The history could not be compacted.")
    return json_answer(await _shown(front, project, row))


def as_create(body: Any) -> dict[str, Any]:
    """The create request that a compact request is: never stored, and its last input item asks for the compaction.

    Raises InvalidRequest for what the route does not take; the rest is judged as any create.
    """
    if type(body) is not dict:
        raise InvalidRequest(
            f"Invalid body: expected a JSON object, but got {kind_of(body)} instead.",
            code="invalid_type",
        )
    asked: dict[str, Any] = {}
    for name, value in body.items():
        if value is None or name in IGNORED:
            continue
        if name not in TAKEN:
            raise unknown_parameter(name)
        asked[name] = value
    said = asked.get("input")
    if said is None and "previous_response_id" not in asked:
        raise missing("input")
    if isinstance(said, str):
        said = [{"role": "user", "content": said}]
    if said is None or isinstance(said, list):
        said = [*(said or []), *([] if said and said[-1] == _TRIGGER else [_TRIGGER])]
    return {**asked, "input": said, "store": False}


async def _shown(front: Front, project: UUID, row: Row) -> dict[str, Any]:
    item = (await front.archive.show(row))["output"][-1]
    held = Sealer(front.settings.sealing_keys).open_token(
        "compaction", project, item["encrypted_content"]
    )
    return {
        "id": response_id(row["id"]),
        "object": "response.compaction",
        "created_at": row["created_at"],
        "output": [*Compacted.of_json(held).user_messages, item],
        "usage": row["usage"],
    }
