"""Schedules, as an operator makes, lists, shows, pauses, runs and deletes them."""

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import RequestRefused
from cli.options import AsJson, Data
from cli.output import clean, fitted_table, print_result, print_status
from features.operator.connection import (
    EXIT_CODES_HELP,
    Fields,
    database_errors,
    fields_of,
    operator,
    run,
    show,
)
from models.ids import SCHEDULE, SCHEDULE_RUN, admin_id, parse_admin_id, response_id
from models.time_text import format_time

if TYPE_CHECKING:
    from features.schedules.queries import RunRow, ScheduleRow
    from models.db.connection import Connection
    from models.db.queries.audit import Actor

    _Act = Callable[[Connection, ScheduleRow, Actor], Awaitable[object]]

app = typer.Typer(help="Schedules: background responses at given times.", no_args_is_help=True)

Schedule = Annotated[str, typer.Argument(metavar="SCHEDULE", help="The id of a schedule.")]
_SHORT_ID = len("sched_") + 16
_RUNS = 20
"""Runs that `show` prints."""


# Commands import when they run, as in cli/main.py.
@app.command("list", epilog=EXIT_CODES_HELP)
def list_schedules(
    project: Annotated[str | None, typer.Option(help="Only those of this project.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many.")] = 50,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List schedules, the newest first: when they run, and how the last run was."""
    from features.operator.filter import LAST_ID
    from features.schedules.queries import NEWEST_SCHEDULES
    from models.db.database import fetch

    values = {"project": project, "status": None, "before": LAST_ID, "max_rows": limit}
    found = run(data, lambda database: fetch(database, NEWEST_SCHEDULES, values))
    show(found, _table, _fields, as_json=as_json)


@app.command("show", epilog=EXIT_CODES_HELP)
def show_schedule(schedule: Schedule, as_json: AsJson = False, data: Data = None) -> None:
    """Show a schedule: when it runs next, and its newest runs."""

    async def read(database: "Connection") -> "tuple[ScheduleRow, list[RunRow]]":
        from features.schedules.queries import RUNS_PAGE
        from models.db.database import fetch

        row = await _find(database, schedule)
        values = {"schedule": row.id, "after": None, "max_rows": _RUNS}
        return row, await fetch(database, RUNS_PAGE["desc"], values)

    found, runs = run(data, read)
    show(
        found,
        lambda row: _text(row, runs),
        lambda row: _fields(row) | {"runs": [_run_fields(each) for each in runs]},
        as_json=as_json,
    )


@app.command("pause", epilog=EXIT_CODES_HELP)
def pause(schedule: Schedule, data: Data = None) -> None:
    """Let the slots of a schedule pass until it is resumed."""
    from features.schedules import service

    print_result(f"{_act(schedule, data, service.pause)} is paused")


@app.command("resume", epilog=EXIT_CODES_HELP)
def resume(schedule: Schedule, data: Data = None) -> None:
    """Let a schedule run again; its policy says what becomes of missed slots."""
    from features.schedules import service

    print_result(f"{_act(schedule, data, service.resume)} is active")


@app.command("delete", epilog=EXIT_CODES_HELP)
def delete(schedule: Schedule, data: Data = None) -> None:
    """Delete a schedule and its runs. Its responses stay."""
    from features.schedules import service

    print_result(f"{_act(schedule, data, service.delete, completed=True)} is deleted")


@app.command("run", epilog=EXIT_CODES_HELP)
def run_now(schedule: Schedule, data: Data = None) -> None:
    """Run a schedule now, beside its slots, and print the id of the run."""
    from features.schedules import service
    from models.ids import new_uuid

    made = new_uuid()

    async def request(database: "Connection", row: "ScheduleRow", actor: "Actor") -> None:
        nonlocal made
        made = await service.request_run(database, row, made, actor) or made

    _act(schedule, data, request, completed=True)
    print_result(admin_id(SCHEDULE_RUN, made))
    print_status("A web process makes it within seconds; `schedules show` has the result.")


@app.command("create", epilog=EXIT_CODES_HELP)
def create(
    template: Annotated[
        Path, typer.Argument(help="A file with the body of a create, as JSON.", exists=True)
    ],
    key: Annotated[
        str, typer.Option(help="The key that it runs with: its first characters, or its id.")
    ],
    cron: Annotated[str | None, typer.Option(help="Five fields; or --at.")] = None,
    time_zone: Annotated[str | None, typer.Option(help="Of --cron.", show_default="UTC")] = None,
    at: Annotated[
        str | None, typer.Option(help="A time such as 2027-01-31T09:00:00+01:00: it runs once.")
    ] = None,
    missed: Annotated[
        str | None, typer.Option(help="skip, run_once, run_all", show_default="run_once")
    ] = None,
    name: Annotated[str | None, typer.Option(help="A name for people.")] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Make a schedule, and print its id. It is checked as over the API.

    That takes the settings of a web process: upstreams, routes, limits.
    """
    import asyncio

    import orjson

    from features.schedules.process import create_alone

    try:
        body = {"template": orjson.loads(template.read_bytes())}
    except (orjson.JSONDecodeError, OSError) as error:
        raise typer.BadParameter(f"{template} is no JSON: {error}") from None
    body |= {"cron": cron, "time_zone": time_zone, "run_at": at, "missed": missed, "name": name}
    with database_errors():
        made = asyncio.run(create_alone(data, key, body, operator()))
    show(made, lambda new: str(new["id"]), as_json=as_json)


def _act(schedule: str, data: Data, act: "_Act", *, completed: bool = False) -> str:
    """Does it, and returns the id of the schedule. `completed`: also to one that is. Raises
    RequestRefused."""

    async def find_and_act(database: "Connection") -> str:
        row = await _find(database, schedule)
        if row.status == "completed" and not completed:
            raise RequestRefused("it is completed: it has no slot any more")
        await act(database, row, operator())
        return _id(row)

    return run(data, find_and_act)


async def _find(database: "Connection", name: str) -> "ScheduleRow":
    """The schedule with this id. Raises RequestRefused."""
    from features.schedules.queries import ANY_SCHEDULE
    from models.db.database import find_by_id

    row = await find_by_id(database, ANY_SCHEDULE, parse_admin_id(SCHEDULE, name))
    if row is None:
        shown = clean(name[:100])
        raise RequestRefused(f"there is no schedule {shown}; `schedules list` lists them")
    return row


def _id(row: "ScheduleRow") -> str:
    return admin_id(SCHEDULE, row.id)


def _model(row: "ScheduleRow") -> str:
    return clean(str(row.template.get("model", "")))


def _when(row: "ScheduleRow") -> str:
    if row.cron is not None:
        return f"{clean(row.cron)} {row.time_zone}"
    return "once" if row.run_at is None else format_time(row.run_at)


def _next(row: "ScheduleRow") -> list[str]:
    if row.status != "active":
        return []
    return [format_time(slot.astimezone(UTC)) for slot in row.upcoming]


def _fields(row: "ScheduleRow") -> Fields:
    return fields_of(
        row,
        "id project name status model cron time_zone run_at missed next_runs last_status last_slot"
        " created_at paused_at completed_at",
        id=_id(row),
        model=row.template.get("model"),
        next_runs=row.upcoming if row.status == "active" else [],
    )


def _run_fields(row: "RunRow") -> dict[str, Any]:
    return fields_of(
        row,
        "id slot status requested response error skipped_after created_at",
        id=admin_id(SCHEDULE_RUN, row.id),
        response=row.response_id and response_id(row.response_id),
    )


def _table(schedules: "Sequence[ScheduleRow]") -> str:
    """A line for each schedule."""

    def row(schedule: "ScheduleRow", short: bool) -> tuple[str, ...]:
        return (
            _id(schedule)[: _SHORT_ID if short else None],
            clean(schedule.project),
            clean(schedule.name),
            schedule.status,
            _model(schedule),
            _when(schedule),
            next(iter(_next(schedule)), "-"),
            schedule.last_status or "-",
        )

    head = ("SCHEDULE", "PROJECT", "NAME", "STATUS", "MODEL", "WHEN", "NEXT", "LAST RUN")
    empty = "there is no schedule; `backburner schedules create` makes one"
    return fitted_table(schedules, head, row, ["NAME", "MODEL"], empty=empty)


def _text(schedule: "ScheduleRow", runs: "Sequence[RunRow]") -> str:
    """All of a schedule, for people."""
    made = [f"run        {format_time(each.slot)}  {_result(each)}" for each in runs]
    lines = [
        f"{_id(schedule)}  {schedule.status}",
        f"name       {clean(schedule.name) or '-'}",
        f"project    {clean(schedule.project)}",
        f"model      {_model(schedule)}",
        f"when       {_when(schedule)}",
        f"missed     {schedule.missed}",
        *(f"next       {slot}" for slot in _next(schedule)),
        *made,
    ]
    return "\n".join(lines)


def _result(row: "RunRow") -> str:
    """Its status, and the response or why there is none."""
    if row.error is not None:
        return f"{row.status}  {clean(str(row.error.get('message', '')))}"
    return (
        row.status if row.response_id is None else f"{row.status}  {response_id(row.response_id)}"
    )


COMMANDS = (("schedules", app),)
"""The name of a group of commands, and the commands."""
