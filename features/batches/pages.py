"""The batches: how far they are, what was wrong with their input, which requests have failed."""

from uuid import UUID

from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.batches import queries as statements
from features.batches import retry, service
from features.console.access import EVERYONE
from features.console.page import (
    HEADERS,
    Change,
    Made,
    Page,
    PageError,
    Visit,
    choice,
    confirmed,
    not_found,
    read_list,
)
from features.files.content_response import ContentResponse, content_headers
from features.files.queries import FILE_PARTS, FIND_FILE
from models.db.arrays import Uuids
from models.db.database import Connection, execute, fetch_idempotent, find_by_id
from models.db.queries.audit import RECORD, AuditEntry
from models.db.queries.listing import REQUEST_STATES
from models.files.content import read_content
from models.files.storage import StorageError
from models.ids import batch_id, file_id, parse_batch_id
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


_MOST_ERRORS = 100


async def show_list(visit: Visit) -> Response:
    """The batches, the newest first."""
    project, is_open = visit.text("project"), visit.query.get("open") == "1"
    return visit.page(
        "batches.html",
        batches=await read_list(
            visit,
            statements.LIST_ALL_BATCHES,
            {"project": project, "open": is_open},
            lambda row: batch_id(row.id),
            parse_batch_id,
        ),
        project=project,
        is_open=is_open,
    )


async def show(visit: Visit) -> Response:
    """One batch, with its first failed requests."""
    batch = await find_batch(visit, visit.request.path_params["id"])
    failed, problem = await _failed_lines(visit, batch)
    return visit.page(
        "batch.html",
        batch=batch,
        public_id=batch_id(batch.id),
        files=[(f"{kind.capitalize()} file", kind, _file(batch, kind)) for kind in FILES],
        errors=(batch.errors or [])[:_MOST_ERRORS],
        failed=failed,
        stored=await _stored(visit, failed),
        problem=problem,
        refusal=retry.refusal(batch),
    )


def _file(batch: statements.ListedBatch, kind: str) -> str | None:
    found: UUID | None = getattr(batch, f"{kind}_file_id")
    return None if found is None else file_id(found)


async def _failed_lines(
    visit: Visit, batch: statements.ListedBatch
) -> tuple[retry.FailedLines | None, str | None]:
    """The first failed requests, or why they cannot be read."""
    storage = visit.state.storage
    if batch.error_file_id is None or storage is None:
        return None, None
    parts = await fetch_idempotent(visit.pool, FILE_PARTS, {"id": batch.error_file_id})
    if not parts:
        return None, "Its error file was deleted." if batch.has_ended else None
    try:
        return await retry.read_failed(storage, parts), None
    except StorageError as error:
        return None, f"The failed requests cannot be read now: {error}."


async def _stored(visit: Visit, failed: retry.FailedLines | None) -> set[UUID]:
    """The responses of failed requests that are still there."""
    if failed is None:
        return set()
    ids = Uuids([line.named for line in failed.lines])
    return {row.id for row in await fetch_idempotent(visit.pool, REQUEST_STATES, {"ids": ids})}


async def _retry(visit: Visit, fields: QueryParams) -> Change:
    """Makes a new batch of the failed requests of one."""
    batch = await find_batch(visit, fields.get("id", ""))
    if (reason := retry.refusal(batch)) is not None:
        raise _not_retried(reason)
    if visit.state.storage is None:
        raise _not_retried("this server stores no files any more")
    files = retry.BatchFiles(visit.state.storage, visit.state.settings.files)
    before = "" if batch.retried_by is None else f" {batch_id(batch.retried_by)} did so before."

    async def make(connection: Connection) -> Made:
        try:
            made = await retry.retry_failed(connection, files, batch, visit.actor)
        except retry.BatchNotRetried as refused:
            raise _not_retried(refused) from None
        except (StorageError, TimeoutError) as error:
            raise PageError(503, "Files cannot be read", f"The storage says: {error}.") from None
        text = f"The failed requests of {batch_id(batch.id)} run again in this new batch."
        return Made(f"/batches/{batch_id(made)}", text)

    return Change(
        title="Run the failed requests again?",
        meaning="Those that have failed, or were not executed before the end of the batch, become "
        f"a new batch with the same window and key.{before}",
        label="Run them again",
        back=f"/batches/{batch_id(batch.id)}",
        make=make,
        is_harmless=True,
        facts=[
            ("Batch", batch_id(batch.id)),
            ("Project", batch.project),
            ("Requests", f"{batch.failed} of {batch.total}"),
        ],
    )


def _not_retried(reason: object) -> PageError:
    return PageError(409, "It is not run again", f"The reason: {reason}.")


async def _cancel(visit: Visit, fields: QueryParams) -> Change:
    """Begins to cancel a batch; a worker does the rest."""
    batch = await find_batch(visit, fields.get("id", ""))

    async def make(connection: Connection) -> None:
        try:
            await service.cancel(connection, batch.project_id, batch.id, visit.actor, batch.project)
        except service.BatchNotCancelled as refused:
            raise PageError(
                409, "It cannot be cancelled", f"The batch is {refused.status or 'deleted'}."
            ) from None

    return Change(
        title="Cancel this batch?",
        meaning="Its requests that have not ended are cancelled. Results until then are in its "
        "output file.",
        label="Cancel the batch",
        back=f"/batches/{batch_id(batch.id)}",
        make=make,
        done="The batch is being cancelled.",
        facts=[
            ("Batch", batch_id(batch.id)),
            ("Project", batch.project),
            ("Requests", f"{batch.completed + batch.failed} of {batch.total} have ended"),
        ],
    )


PAGES = (
    Page("/batches", show_list, menu="Batches", is_by_project=True, roles=EVERYONE),
    *confirmed("/batches/cancel", _cancel),
    *confirmed("/batches/retry", _retry),
    Page("/batches/{id}", show, roles=EVERYONE),
    Page("/batches/{id}/responses", show_responses, roles=EVERYONE),
    Page("/batches/{id}/files/{kind}", download),
)
