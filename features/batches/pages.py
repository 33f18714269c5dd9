"""The batches: how far they are, and what was wrong with their input."""

from starlette.responses import Response

from features.batches import queries as statements
from features.batches import service
from features.console.changes import Confirmation, ask, first, not_found
from features.console.errors import PageError
from features.console.page import Page
from features.console.paging import PAGE_SIZE, before, split, text_parameter
from features.console.visit import Visit
from models.db.database import fetch_idempotent, find_by_id
from models.ids import batch_id, file_id, parse_batch_id

_MOST_ERRORS = 100


async def show_list(visit: Visit) -> Response:
    """The batches, the newest first."""
    project, is_open = text_parameter(visit, "project"), visit.query.get("open") == "1"
    values = {
        "project": project,
        "open": is_open,
        "before": before(visit, parse_batch_id),
        "limit": PAGE_SIZE + 1,
    }
    found = await fetch_idempotent(visit.pool, statements.LIST_ALL_BATCHES, values)
    rows, last = split(found)
    return visit.page(
        "batches.html",
        batches=[(batch_id(row.id), row) for row in rows],
        next_before=None if last is None else batch_id(last.id),
        is_first=visit.query.get("before") is None,
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


async def confirm(visit: Visit) -> Response:
    """Asks whether a batch is to be cancelled."""
    batch = await _batch(visit, visit.query.get("id", ""))
    public_id = batch_id(batch.id)
    return ask(
        visit,
        Confirmation(
            title="Cancel this batch?",
            meaning="Its requests that have not ended are cancelled. Results until then are in its "
            "output file.",
            label="Cancel the batch",
            path="/batches/cancel",
            back=f"/batches/{public_id}",
            fields=[("id", public_id)],
            facts=[
                ("Batch", public_id),
                ("Project", batch.project),
                ("Requests", f"{batch.completed + batch.failed} of {batch.total} have ended"),
            ],
        ),
    )


async def cancel(visit: Visit) -> Response:
    """Begins to cancel a batch; a worker does the rest."""
    fields = await visit.form(visit.user.token)
    batch = await _batch(visit, first(fields, "id"))
    public_id = batch_id(batch.id)
    try:
        await service.cancel(visit.pool, batch.project_id, batch.id, visit.actor, batch.project)
    except service.BatchNotCancelled as refused:
        raise PageError(
            409, "It cannot be cancelled", f"The batch is {refused.status or 'deleted'}."
        ) from None
    return visit.redirect(f"/batches/{public_id}")


async def _batch(visit: Visit, public_id: str) -> statements.ListedBatch:
    batch = await find_by_id(visit.pool, statements.SHOW_BATCH, parse_batch_id(public_id))
    if batch is None:
        raise not_found("batch")
    return batch


PAGES = (
    Page("/batches", show_list),
    Page("/batches/cancel", confirm),
    Page("/batches/cancel", cancel, method="POST"),
    Page("/batches/{id}", show),
)
MENU = (("/batches", "Batches"),)
