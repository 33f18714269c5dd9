"""The batches: how far they are, what was wrong with their input, which requests have failed."""

from uuid import UUID

from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.batches import batch_contents, service
from features.batches import queries as statements
from features.batches.batch_contents import FILES, find_batch
from features.batches.retry import (
    BatchFiles,
    BatchNotRetried,
    FailedLines,
    read_failed,
    refusal,
    retry_failed,
)
from features.console.access import EVERYONE
from features.console.page import (
    Change,
    Made,
    Page,
    PageError,
    Visit,
    confirmed,
    read_list,
)
from features.files.queries import FILE_PARTS
from models.db.arrays import Uuids
from models.db.database import Connection, fetch_idempotent
from models.db.queries.listing import REQUEST_STATES
from models.files.storage import StorageError
from models.ids import batch_id, file_id, parse_batch_id

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
        refusal=refusal(batch),
    )


def _file(batch: statements.ListedBatch, kind: str) -> str | None:
    found: UUID | None = getattr(batch, f"{kind}_file_id")
    return None if found is None else file_id(found)


async def _failed_lines(
    visit: Visit, batch: statements.ListedBatch
) -> tuple[FailedLines | None, str | None]:
    """The first failed requests, or why they cannot be read."""
    storage = visit.state.storage
    if batch.error_file_id is None or storage is None:
        return None, None
    parts = await fetch_idempotent(visit.pool, FILE_PARTS, {"id": batch.error_file_id})
    if not parts:
        return None, "Its error file was deleted." if batch.has_ended else None
    try:
        return await read_failed(storage, parts), None
    except StorageError as error:
        return None, f"The failed requests cannot be read now: {error}."


async def _stored(visit: Visit, failed: FailedLines | None) -> set[UUID]:
    """The responses of failed requests that are still there."""
    if failed is None:
        return set()
    ids = Uuids([line.named for line in failed.lines])
    return {row.id for row in await fetch_idempotent(visit.pool, REQUEST_STATES, {"ids": ids})}


async def _retry(visit: Visit, fields: QueryParams) -> Change:
    """Makes a new batch of the failed requests of one."""
    batch = await find_batch(visit, fields.get("id", ""))
    if (reason := refusal(batch)) is not None:
        raise _not_retried(reason)
    if visit.state.storage is None:
        raise _not_retried("this server stores no files any more")
    files = BatchFiles(visit.state.storage, visit.state.settings.files)
    before = "" if batch.retried_by is None else f" {batch_id(batch.retried_by)} did so before."

    async def make(connection: Connection) -> Made:
        try:
            made = await retry_failed(connection, files, batch, visit.actor)
        except BatchNotRetried as refused:
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
    *batch_contents.PAGES,
)
