"""`POST /v1/responses/{response_id}/retry`."""

from collections.abc import AsyncGenerator
from typing import Annotated, Any
from uuid import UUID

import orjson
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from features.retry.body import require_retryable, retry_body
from models.db.database import fetch_idempotent
from models.db.queries.read import ANY_SIZE, INPUT_ITEMS
from models.wire.events import Item
from models.wire.purpose import Purpose, split_stored_parameters
from models.wire.response import STOP
from web.admission import admitted_body
from web.http.auth import Key
from web.http.body import UNCOUNTED_BYTES, JsonBody, held_bytes
from web.http.request_record import request_record
from web.responses.create import CreateOptions
from web.responses.store import not_found
from web.routes.responses import create_and_answer
from web.state import AppState, app_state

router = APIRouter(prefix="/v1/responses")

_MOST_ITEMS = 2**31 - 1


async def _retry_body(request: Request, key: Key) -> AsyncGenerator[JsonBody]:
    """As `admitted_body`; a request without a body changes nothing."""
    if request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers:
        async for body in admitted_body(request, key):
            yield body
        return
    body = JsonBody({}, 0)
    await app_state(request).admission.admit(body, key)
    try:
        yield body
    finally:
        body.release()


RetryBody = Annotated[JsonBody, Depends(_retry_body)]
"""The changes of a retry, which is admitted as a create."""


@router.post("/{response_id}/retry")
async def retry(response_id: str, request: Request, key: Key, body: RetryBody) -> Response:
    """Runs a response that has ended again, as a new one."""
    state = app_state(request)
    row = await state.response_store.find_row(key.project_id, response_id)
    require_retryable(row)
    if split_stored_parameters(row.parameters).purpose is not Purpose.ANSWER:
        raise not_found(response_id)
    items = await _read_input(state, key.project_id, row.id, body, request)
    body.value = retry_body(row, items, body.value)
    stop = tuple(row.parameters.get(STOP, ()))
    options = CreateOptions(request_record(request).id, retry_of=row.id, stop=stop)
    return await create_and_answer(request, key, body, options)


async def _read_input(
    state: AppState, project: UUID, retried: UUID, body: JsonBody, request: Request
) -> list[Item]:
    """The stored input, which counts as the body's. Raises ShareUsedUp and Unavailable."""
    values: dict[str, Any] = {"id": retried, "after": None, "limit": _MOST_ITEMS}
    query = INPUT_ITEMS["asc"]
    rows = await fetch_idempotent(state.pool, query, values | {"max_size": UNCOUNTED_BYTES})
    size = rows[-1].total if rows else 0
    if size > UNCOUNTED_BYTES:
        body.memory = body.memory or held_bytes(request)
        await body.memory.grow(body.memory.amount + 2 * size)
        rows = await fetch_idempotent(state.pool, query, values | {"max_size": ANY_SIZE})
    stored = [row.payload for row in rows if row.payload is not None]
    items = await state.images.filled(project, stored)
    body.size += len(orjson.dumps(items))
    return items


ROUTERS = (router,)
