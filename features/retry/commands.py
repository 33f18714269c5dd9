"""The command of an operator that runs responses again."""

from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import AsJson, Data
from cli.output import print_status, table
from features.operator.connection import (
    EXIT_CODES_HELP,
    EXIT_REFUSED,
    Fields,
    operator,
    run,
    show,
)
from features.operator.response_commands import app
from models.ids import response_id

if TYPE_CHECKING:
    from models.db.connection import Connection

Responses = Annotated[
    list[str], typer.Argument(metavar="RESPONSE_ID", help="Ids, or the beginnings of ids.")
]
Model = Annotated[str | None, typer.Option(help="Run them with this model instead of their own.")]


@app.command("retry", epilog=EXIT_CODES_HELP)
def retry(
    responses: Responses, model: Model = None, as_json: AsJson = False, data: Data = None
) -> None:
    """Run responses again that failed, were cancelled or are incomplete, as new ones in the
    background.

    A worker begins within seconds. The old ones stay as they are. Quotas do not refuse it.
    """
    # Before the connection: a connection has the array types that are known when it is made.
    import models.db.arrays  # noqa: F401

    made, refusals = run(data, lambda database: _run_again(database, responses, model))
    show(made, _table, as_json=as_json)
    for refusal in refusals:
        print_status(f"backburner: {refusal}")
    if refusals:
        raise typer.Exit(EXIT_REFUSED)


async def _run_again(
    database: "Connection", names: list[str], model: str | None
) -> tuple[list[Fields], list[str]]:
    """What was made, and a sentence for each that was not."""
    from cli.settings import configured_settings
    from features.operator.operations import resolve_ids
    from features.retry.service import NotRetried, StoreTimes, run_again

    settings = configured_settings()
    times = StoreTimes(settings.retention, settings.limits.queue_wait)
    ids, refusals = await resolve_ids(database, names)
    made: list[Fields] = []
    for identifier in ids:
        try:
            new = await run_again(database, identifier, model, operator(), times)
        except NotRetried as refused:
            refusals.append(f"{response_id(identifier)} is not run again: {refused}")
        else:
            made.append({"id": response_id(new), "retry_of": response_id(identifier)})
    return made, refusals


def _table(made: list[Fields]) -> str:
    return table(("NEW", "RUNS AGAIN"), [(each["id"], each["retry_of"]) for each in made])


COMMANDS = ()
"""It is one of the commands of responses."""
