"""The command of an operator that runs responses again."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import AsJson, Data, with_groups
from cli.output import print_result, print_status, table
from features.operator import response_commands
from features.operator.connection import (
    EXIT_CODES_HELP,
    EXIT_REFUSED,
    Fields,
    operator,
    run,
    show,
)
from features.operator.filter import Filter
from models.ids import response_id

if TYPE_CHECKING:
    from uuid import UUID

    from features.operator.operations import ResponseList
    from models.db.connection import Connection

OtherModel = Annotated[
    str | None,
    typer.Option("--with-model", metavar="MODEL", help="Run them with this model instead."),
]


@dataclass(frozen=True, slots=True)
class _Order:
    """Which responses are to be run again, and with which model."""

    names: list[str]
    wanted: Filter
    limit: int
    is_confirmed: bool
    model: str | None


# Commands import when they run, as in cli/main.py.
@response_commands.app.command("retry", epilog=EXIT_CODES_HELP)
@with_groups
def retry(
    *,
    responses: response_commands.Responses = None,
    chosen: response_commands.FilterOptions,
    with_model: OtherModel = None,
    limit: response_commands.Limit = response_commands.ACTION_LIMIT,
    yes: response_commands.Yes = False,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Run responses again that have ended, as new ones in the background.

    A worker begins within seconds. The old ones stay as they are. Quotas do not refuse it. With a
    filter: those that failed, were cancelled or are incomplete, unless --status says otherwise, and
    were not run again before.
    """
    # Before the connection: a connection has the array types that are known when it is made.
    import models.db.arrays  # noqa: F401

    wanted, names = chosen.filter(), responses or []
    if bool(names) is not wanted.is_empty:
        raise typer.BadParameter("name responses, or give a filter such as --model; not both")
    order = _Order(names, wanted, limit or response_commands.ACTION_LIMIT, yes, with_model)
    made, refusals = run(data, lambda database: _run_again(database, order))
    show(made, _table, as_json=as_json)
    for refusal in refusals:
        print_status(f"backburner: {refusal}")
    if refusals:
        raise typer.Exit(EXIT_REFUSED)


async def _run_again(database: "Connection", order: _Order) -> tuple[list[Fields], list[str]]:
    """What was made, and a sentence for each that was not."""
    from cli.settings import configured_settings
    from features.operator.operations import resolve_ids
    from features.retry.service import NotRetried, StoreTimes, run_again

    settings = configured_settings()
    times = StoreTimes(settings.retention, settings.limits.queue_wait)
    if order.names:
        ids, refusals = await resolve_ids(database, order.names)
    else:
        ids, refusals = await _matching(database, order), []
    made: list[Fields] = []
    for identifier in ids:
        try:
            new = await run_again(database, identifier, order.model, operator(), times)
        except NotRetried as refused:
            refusals.append(f"{response_id(identifier)} is not run again: {refused}")
        else:
            made.append({"id": response_id(new), "retry_of": response_id(identifier)})
    return made, refusals


async def _matching(database: "Connection", order: _Order) -> "list[UUID]":
    """The responses that fit the filter, but those that were run again before or cannot be. Ends
    the command if it was not confirmed."""
    from features.operator import operations, report
    from features.retry.service import NOT_COMPLETED, find_candidate

    wanted = replace(order.wanted, statuses=order.wanted.statuses or NOT_COMPLETED)
    found = await operations.list_responses(database, wanted, order.limit)
    candidates = [await find_candidate(database, each.id) for each in found.responses]
    runnable = {
        each.id for each in candidates if each and each.retried_by is None and each.refusal is None
    }
    left_out = len(found.responses) - len(runnable)
    chosen = replace(found, responses=[row for row in found.responses if row.id in runnable])
    if left_out:
        print_status(f"{left_out} more fit, but were run again before, or cannot be.")
    if chosen.responses and not order.is_confirmed:
        print_result(report.responses(chosen))
    if not chosen.responses or not order.is_confirmed:
        print_status(_intention(chosen))
        raise typer.Exit(EXIT_REFUSED if chosen.responses else 0)
    if chosen.more:
        print_status(f"More than {order.limit} fit; the newest are taken.")
    return [row.id for row in chosen.responses]


def _intention(found: "ResponseList") -> str:
    """What the command would do."""
    count = len(found.responses)
    if not count:
        return "No response fits; nothing was done."
    more = "; more fit than --limit allows" if found.more else ""
    noun = "response" if count == 1 else "responses"
    return f"Nothing was done. With --yes: run {count} {noun} again{more}."


def _table(made: list[Fields]) -> str:
    return table(("NEW", "RUNS AGAIN"), [(each["id"], each["retry_of"]) for each in made])


COMMANDS = ()
"""It is one of the commands of responses."""
