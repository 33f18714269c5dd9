"""The console: the responses and the files of a batch."""

from starlette.responses import Response

from features.batches import queries as statements
from features.console.access import EVERYONE
from features.console.page import HEADERS, Page, PageError, Visit, choice, not_found
from features.files.content_response import ContentResponse, content_headers
from features.files.queries import FILE_PARTS, FIND_FILE
from models.db.database import execute, fetch_idempotent, find_by_id
from models.db.queries.audit import RECORD, AuditEntry
from models.files.content import read_content
from models.ids import batch_id, parse_batch_id
from models.lifecycle import Status

FILES = ("input", "output", "error")
"""The files of a batch."""
_MOST_RESPONSES = 200
_LOOKED_AT = 10_000
"""Responses of a batch among which those with a status are searched."""


async def find_batch(visit: Visit, public_id: str) -> statements.ListedBatch:
    """Raises PageError (404)."""
    batch = await find_by_id(visit.pool, statements.SHOW_BATCH, parse_batch_id(public_id))
    if batch is None or not visit.owns(batch.project_id):
        raise not_found("batch")
    return batch


async def show_responses(visit: Visit) -> Response:
    """The responses that were made of a batch."""
    batch = await find_batch(visit, visit.request.path_params["id"])
    public_id = batch_id(batch.id)
    status = choice(visit.query, "status", list(Status)) if visit.query.get("status") else None
    values = {
        "request_id": public_id,
        "status": status,
        "look_at": _LOOKED_AT,
        "max_rows": _MOST_RESPONSES + 1,
    }
    found = await fetch_idempotent(visit.pool, statements.RESPONSES_OF_BATCH, values)
    return visit.page(
        "batch_responses.html",
        batch=batch,
        public_id=public_id,
        responses=found[:_MOST_RESPONSES],
        has_more=len(found) > _MOST_RESPONSES,
        most=_MOST_RESPONSES,
        looked_at=_LOOKED_AT,
        chosen=status,
        statuses=[(each.value, each.value.replace("_", " ")) for each in Status],
    )


async def download(visit: Visit) -> Response:
    """A file of a batch, which has inputs or outputs: for those who may read them. The audit log
    records it."""
    batch = await find_batch(visit, visit.request.path_params["id"])
    kind = visit.request.path_params["kind"]
    if kind not in FILES:
        raise not_found("file")
    if not visit.may_read:
        raise PageError(403, "It is hidden", "Ask to see inputs and outputs on the batch's page.")
    identifier, storage = getattr(batch, f"{kind}_file_id"), visit.state.storage
    file = await find_by_id(visit.pool, FIND_FILE, identifier, project=batch.project_id)
    if file is None or storage is None:
        raise not_found("file")
    visit.state.count_transfer(visit.request)
    entry = AuditEntry(
        visit.actor,
        "batch.reveal",
        batch_id(batch.id),
        project=batch.project,
        details={"file": kind},
    )
    await execute(visit.pool, RECORD, entry.values())
    parts = await fetch_idempotent(visit.pool, FILE_PARTS, {"id": file.id})
    headers = HEADERS | content_headers(file.filename, file.media_type, file.bytes)
    timeout = visit.state.settings.web.send_timeout.total_seconds()
    return ContentResponse(read_content(storage, parts, 0, file.bytes), 200, headers, timeout)


PAGES = (
    Page("/batches/{id}/responses", show_responses, roles=EVERYONE),
    Page("/batches/{id}/files/{kind}", download),
)
