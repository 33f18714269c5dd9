"""The batches: how far they are, and what was wrong with their input."""

from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.batches import queries as statements
from features.batches import service
from features.console.page import Change, Page, PageError, Visit, confirmed, not_found, read_list
from models.db.database import Connection, find_by_id
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
    """One batch."""
    batch = await _batch(visit, visit.request.path_params["id"])
    names = {
        "Input file": batch.input_file_id,
        "Output file": batch.output_file_id,
        "Error file": batch.error_file_id,
    }
    return visit.page(
        "batch.html",
        batch=batch,
        public_id=batch_id(batch.id),
        files={name: None if each is None else file_id(each) for name, each in names.items()},
        errors=(batch.errors or [])[:_MOST_ERRORS],
    )


async def _cancel(visit: Visit, fields: QueryParams) -> Change:
    """Begins to cancel a batch; a worker does the rest."""
    batch = await _batch(visit, fields.get("id", ""))

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
        facts=[
            ("Batch", batch_id(batch.id)),
            ("Project", batch.project),
            ("Requests", f"{batch.completed + batch.failed} of {batch.total} have ended"),
        ],
    )


async def _batch(visit: Visit, public_id: str) -> statements.ListedBatch:
    batch = await find_by_id(visit.pool, statements.SHOW_BATCH, parse_batch_id(public_id))
    if batch is None:
        raise not_found("batch")
    return batch


PAGES = (
    Page("/batches", show_list, menu="Batches", is_by_project=True),
    *confirmed("/batches/cancel", _cancel),
    Page("/batches/{id}", show),
)
