"""The commands for batches."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import AsJson, Data
from cli.output import print_status
from features.operator.connection import EXIT_CODES_HELP, EXIT_INTERRUPTED, run, show

if TYPE_CHECKING:
    from features.batches.listing import ShownBatch
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
    from features.batches import listing as batches

    found = run(
        data, lambda database: batches.list_batches(database, project, limit, only_open=only_open)
    )
    show(found, batches.as_table, as_json=as_json)


@app.command("show", epilog=EXIT_CODES_HELP)
def show_batch(
    batch: Batch, follow: Follow = False, as_json: AsJson = False, data: Data = None
) -> None:
    """Show a batch: how far it is, its files, and what is wrong with its input."""
    from features.batches import listing as batches

    found = run(data, lambda database: batches.find(database, batch))
    _show(found, follow, as_json, data)


@app.command("cancel", epilog=EXIT_CODES_HELP)
def cancel_batch(
    batch: Batch, follow: Follow = False, as_json: AsJson = False, data: Data = None
) -> None:
    """Cancel a batch, and its responses that have not ended."""
    from features.batches import listing as batches

    found = run(data, lambda database: batches.cancel(database, batch))
    _show(found, follow, as_json, data)


def _show(found: "ShownBatch", follow: bool, as_json: bool, data: Data) -> None:
    from features.batches import listing as batches

    if follow:
        try:
            found = run(data, lambda database: _follow(database, found))
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
    show(found, batches.as_text, as_json=as_json)


async def _follow(database: "Connection", batch: "ShownBatch") -> "ShownBatch":
    """Prints a line on standard error whenever the batch has changed; returns it at its end."""
    import asyncio

    from features.batches import listing as batches

    last = ""
    while True:
        line = batches.progress(batch)
        if line != last:
            print_status(line)
            last = line
        if batch.has_ended:
            return batch
        await asyncio.sleep(_INTERVAL)
        batch = await batches.find(database, batch.id)


COMMANDS = (("batches", app),)
"""The name of a group of commands, and the commands."""
