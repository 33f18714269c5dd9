"""Batches, as an operator lists, shows, follows, cancels and retries them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cli.errors import RequestRefused
from cli.options import AsJson, Data
from cli.output import clean, print_status, table
from features.operator.connection import (
    EXIT_CODES_HELP,
    EXIT_INTERRUPTED,
    Fields,
    fields_of,
    operator,
    run,
    show,
)
from models.ids import batch_id, file_id, parse_batch_id
from models.time_text import format_time

if TYPE_CHECKING:
    from uuid import UUID

    from features.batches.queries import ListedBatch
    from models.db.connection import Connection

app = typer.Typer(help="Batches.", no_args_is_help=True)

Batch = Annotated[str, typer.Argument(metavar="BATCH_ID", help="The id of a batch.")]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Print a line whenever it has changed, to its end.")
]
_INTERVAL = 1.0
"""Seconds between two looks with --follow."""


# Commands import when they run, as in cli/main.py.
@app.command("list", epilog=EXIT_CODES_HELP)
def list_batches(
    project: Annotated[str | None, typer.Option(help="Only those of this project.")] = None,
    only_open: Annotated[bool, typer.Option("--open", help="Only those that go on.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List batches, the newest first."""
    from features.batches.queries import LIST_ALL_BATCHES
    from features.operator.filter import LAST_ID
    from models.db.database import fetch

    values = {"project": project, "open": only_open, "before": LAST_ID, "max_rows": limit}
    found = run(data, lambda database: fetch(database, LIST_ALL_BATCHES, values))
    show(found, _table, _fields, as_json=as_json)


@app.command("show", epilog=EXIT_CODES_HELP)
def show_batch(
    batch: Batch, follow: Follow = False, as_json: AsJson = False, data: Data = None
) -> None:
    """Show a batch: how far it is, its files, and what is wrong with its input."""
    found = run(data, lambda database: _find(database, batch))
    _show(found, follow, as_json, data)


@app.command("cancel", epilog=EXIT_CODES_HELP)
def cancel_batch(
    batch: Batch, follow: Follow = False, as_json: AsJson = False, data: Data = None
) -> None:
    """Cancel a batch, and its responses that have not ended."""
    from features.batches import service

    async def cancel(database: "Connection") -> "ListedBatch":
        row = await _find(database, batch)
        try:
            await service.cancel(database, row.project_id, row.id, operator(), row.project)
        except service.BatchNotCancelled as refused:
            raise RequestRefused(f"it cannot be cancelled: it is {refused.status}") from None
        return await _find(database, batch)

    _show(run(data, cancel), follow, as_json, data)


@app.command("retry", epilog=EXIT_CODES_HELP)
def retry_batch(
    batch: Batch, follow: Follow = False, as_json: AsJson = False, data: Data = None
) -> None:
    """Run the failed requests of a batch again, in a new batch.

    Also those that were not executed before it expired or was cancelled. The new batch has the
    window, the metadata and the key of the old one. It reads and writes files, so it needs the
    settings of the server.
    """

    async def retry(database: "Connection") -> "ListedBatch":
        row = await _find(database, batch)
        return await _find(database, batch_id(await _retry(database, row, data)))

    _show(run(data, retry), follow, as_json, data)


async def _retry(database: "Connection", batch: "ListedBatch", data: Data) -> "UUID":
    """The new batch. Raises RequestRefused."""
    from cli.settings import deployment_settings
    from features.batches.retry import BatchFiles, BatchNotRetried, retry_failed
    from models.files.opening import open_storage
    from models.files.storage import StorageError

    settings = deployment_settings(data)
    storage = open_storage(settings)
    if storage is None:
        raise RequestRefused("there is no storage: set BACKBURNER_FILES__FOLDER, as of the server")
    try:
        return await retry_failed(database, BatchFiles(storage, settings.files), batch, operator())
    except BatchNotRetried as refused:
        raise RequestRefused(f"it is not run again: {refused}") from None
    except (StorageError, TimeoutError) as error:
        raise RequestRefused(f"the files cannot be read or written: {error}") from None
    finally:
        await storage.close()


async def _find(database: "Connection", name: str) -> "ListedBatch":
    """The batch with this id. Raises RequestRefused."""
    from features.batches.queries import SHOW_BATCH
    from models.db.database import find_by_id

    row = await find_by_id(database, SHOW_BATCH, parse_batch_id(name))
    if row is None:
        raise RequestRefused(f"there is no batch {name}; `backburner batches list` lists them")
    return row


def _show(found: "ListedBatch", follow: bool, as_json: bool, data: Data) -> None:
    if follow:
        try:
            found = run(data, lambda database: _follow(database, found))
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
    show(found, _text, _fields, as_json=as_json)


async def _follow(database: "Connection", batch: "ListedBatch") -> "ListedBatch":
    """Prints a line on standard error whenever the batch has changed; returns it at its end."""
    import asyncio

    last = ""
    while True:
        line = _progress(batch)
        if line != last:
            print_status(line)
            last = line
        if batch.has_ended:
            return batch
        await asyncio.sleep(_INTERVAL)
        batch = await _find(database, batch_id(batch.id))


def _fields(batch: "ListedBatch") -> Fields:
    return fields_of(
        batch,
        "id project status model models metadata retry_of retried_by total started completed"
        " failed completion_window created_at expires_at ended_at input_file output_file"
        " error_file errors",
        id=batch_id(batch.id),
        models=batch.model_names,
        retry_of=batch.retry_of and batch_id(batch.retry_of),
        retried_by=batch.retried_by and batch_id(batch.retried_by),
        started=batch.expanded,
        input_file=file_id(batch.input_file_id),
        output_file=batch.output_file_id and file_id(batch.output_file_id),
        error_file=batch.error_file_id and file_id(batch.error_file_id),
        errors=batch.errors or [],
    )


def _progress(batch: "ListedBatch") -> str:
    """One line: how far the batch is."""
    counts = f"{batch.completed} completed, {batch.failed} failed of {batch.total}"
    return f"{batch_id(batch.id)}  {batch.status}  {counts}"


def _table(batches: Sequence["ListedBatch"]) -> str:
    """A line for each batch."""
    if not batches:
        return "There are no batches."
    head = ("BATCH", "PROJECT", "STATUS", "TOTAL", "COMPLETED", "FAILED", "CREATED", "EXPIRES")
    rows = [
        (
            batch_id(batch.id),
            batch.project,
            batch.status,
            str(batch.total),
            str(batch.completed),
            str(batch.failed),
            format_time(batch.created_at),
            format_time(batch.expires_at),
        )
        for batch in batches
    ]
    return table(head, rows)


def _text(batch: "ListedBatch") -> str:
    """All of a batch, for people."""
    files = (batch.input_file_id, batch.output_file_id, batch.error_file_id)
    input_file, output_file, error_file = (file_id(each) if each else "-" for each in files)
    lines = [
        _progress(batch),
        f"project      {batch.project}",
        f"model        {clean(', '.join(batch.model_names)) or '-'}",
        f"window       {batch.completion_window}, until {format_time(batch.expires_at)}",
        f"created      {format_time(batch.created_at)}",
        f"ended        {format_time(batch.ended_at) if batch.ended_at else '-'}",
        f"input file   {input_file}",
        f"output file  {output_file}",
        f"error file   {error_file}",
    ]
    if batch.retry_of:
        lines.append(f"runs again   the failed requests of {batch_id(batch.retry_of)}")
    if batch.retried_by:
        lines.append(f"run again    in {batch_id(batch.retried_by)}")
    for error in batch.errors or ():
        where = "file" if error["line"] is None else f"line {error['line']}"
        lines.append(f"{where}: {error['code']}: {error['message']}")
    return "\n".join(lines)


COMMANDS = (("batches", app),)
"""The name of a group of commands, and the commands."""
