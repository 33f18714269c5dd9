"""Routes that run a response only for its result: `/v1/responses/compact`, which compacts a
history, and `/v1/responses/input_tokens`, which counts the input tokens of a request
(docs/state.md). Their bodies become create bodies."""

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.db.queries.read import ResponseRow
from models.errors import ApiError
from models.ids import response_id
from models.wire.checks.basic import String
from models.wire.checks.faults import missing, unknown_create_parameter
from models.wire.compaction import CompactedHistory
from models.wire.purpose import Purpose
from models.wire.token_counts import COUNTED_BY
from models.wire.without_effect import header_of
from web.admission import AdmittedBody
from web.http.auth import Key
from web.http.body import Hold, held_bytes, json_object
from web.http.json_responses import json_response
from web.http.request_record import request_record
from web.responses.create import CreateOptions
from web.routes.foreground import wait_for_completion
from web.state import AppState, app_state

router = APIRouter(prefix="/v1/responses")

COUNT_HEADER = "x-backburner-token-count"
COMPACT_PARAMETERS = (
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
"""Parameters of `compact` with the meaning that they have in a create."""
_TRIGGER = {"type": "compaction_trigger"}
COUNT_PARAMETERS = (
    "model",
    "input",
    "instructions",
    "previous_response_id",
    "conversation",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "text",
    "reasoning",
    "truncation",
)
"""The same of `input_tokens`."""
PERSONALITY = String(at_most=64)
"""The check of `personality`, which only OpenAI's models have; it is ignored."""
_DEFAULT_MODEL = "default"
"""The model for a request without `model`, if there is a route for it."""
NOT_COUNTED = "The tokens could not be counted."


@dataclass(frozen=True, slots=True)
class UnstoredCreate:
    """The create that such a request becomes."""

    body: dict[str, Any]
    ignored: list[str]
    """Parameters of the request that have no effect, besides those of the create."""


@router.post("/compact")
async def compact(request: Request, key: Key, body: AdmittedBody) -> Response:
    """Compacts a history: the newest messages of users, and one item for everything else."""
    state = app_state(request)
    record = request_record(request)
    create = compacting_create(body.value)
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


def compacting_create(body: Any) -> UnstoredCreate:
    """The body of the create: not stored, and the last input item triggers the compaction.

    Raises InvalidRequest for parameters that this route does not have; the create checks the
    others.
    """
    create = _unstored_create(body, COMPACT_PARAMETERS)
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
    item = (await state.response_store.show_ended(project, row, hold=hold))["output"][-1]
    unsealed = state.sealer.open_token("compaction", project, item["encrypted_content"])
    return {
        "id": response_id(row.id),
        "object": "response.compaction",
        "created_at": row.created_at,
        "output": [*CompactedHistory.from_json(unsealed).user_messages, item],
        "usage": row.usage,
    }


@router.post("/input_tokens")
async def input_tokens(request: Request, key: Key, body: AdmittedBody) -> Response:
    """Counts the input tokens; `x-backburner-token-count` names the source of the number."""
    state = app_state(request)
    create = counting_create(body.value)
    body.value = create.body
    if "model" not in body.value:
        if not state.routes_of(key).has_route(_DEFAULT_MODEL):
            raise missing("model")
        body.value["model"] = _DEFAULT_MODEL
    record = request_record(request)
    accepted = await state.create_response.create(
        key, body, request.headers, CreateOptions(record.id, purpose=Purpose.COUNT)
    )
    record.note_response(accepted.id)
    row = await wait_for_completion(state, accepted, request, NOT_COUNTED)
    usage = row.usage
    if usage is None:
        raise ApiError(NOT_COUNTED)
    counted = {"object": "response.input_tokens", "input_tokens": usage["input_tokens"]}
    ignored = header_of([*create.ignored, *accepted.request.ignored])
    return json_response(counted, headers={COUNT_HEADER: usage[COUNTED_BY]} | ignored)


def counting_create(body: Any) -> UnstoredCreate:
    """The body of the create whose tokens are counted.

    Raises InvalidRequest for parameters that this route does not have; the create checks the
    others.
    """
    create = _unstored_create(body, COUNT_PARAMETERS, ("personality",))
    if body.get("personality") is not None:
        PERSONALITY(body["personality"], "personality")
    return create


def _unstored_create(
    body: Any, supported: Collection[str], ignored: Collection[str] = ()
) -> UnstoredCreate:
    """The supported parameters of `body`, without nulls, and `store: false`.

    Raises InvalidRequest for a body that is not an object, and for a parameter that is neither
    supported nor ignored.
    """
    parameters: dict[str, Any] = {"store": False}
    unused: list[str] = []
    for name, value in json_object(body).items():
        if value is None:
            continue
        if name in supported:
            parameters[name] = value
        elif name in ignored:
            unused.append(name)
        else:
            raise unknown_create_parameter(name)
    return UnstoredCreate(parameters, unused)


ROUTERS = (router,)
