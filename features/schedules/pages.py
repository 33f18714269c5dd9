"""The schedules: when they run next, and what has become of their slots."""

from functools import partial

from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.console.access import EVERYONE
from features.console.page import (
    Change,
    Page,
    PageError,
    Visit,
    choice,
    confirmed,
    not_found,
    read_list,
)
from features.schedules import queries as statements
from features.schedules import service
from features.schedules.bodies import run_id
from features.schedules.queries import ScheduleRow
from features.schedules.service import public_id
from features.schedules.web import Schedules
from models.db.database import Connection, find_by_id
from models.ids import SCHEDULE, SCHEDULE_RUN, new_uuid, parse_admin_id

_STATUSES = ("active", "paused", "completed")
_MEANINGS = {
    "pause": "Its slots pass without a response until it is resumed.",
    "resume": "It runs again. What becomes of slots that have passed is its policy for missed "
    "ones.",
    "run": "It makes a response now, beside its slots, with the rights of its key.",
}
_LABELS = {"pause": "Pause", "resume": "Resume", "run": "Run now"}


async def show_list(visit: Visit) -> Response:
    """The schedules, the newest first."""
    project = visit.text("project")
    status = choice(visit.query, "status", _STATUSES) if visit.query.get("status") else None
    return visit.page(
        "schedules.html",
        schedules=await read_list(
            visit,
            statements.NEWEST_SCHEDULES,
            {"project": project, "status": status},
            lambda row: public_id(row.id),
            partial(parse_admin_id, SCHEDULE),
        ),
        project=project,
        chosen=status,
        statuses=[(each, each) for each in _STATUSES],
    )


async def show(visit: Visit) -> Response:
    """One schedule, its next slots and its runs."""
    schedule = await _schedule(visit, visit.request.path_params["id"])
    return visit.page(
        "schedule.html",
        schedule=schedule,
        public_id=public_id(schedule.id),
        actions=_actions(schedule),
        runs=await read_list(
            visit,
            statements.RUNS_PAGE["desc"],
            {"schedule": schedule.id},
            run_id,
            partial(parse_admin_id, SCHEDULE_RUN),
            position="after",
        ),
    )


def _actions(schedule: ScheduleRow) -> list[tuple[str, str]]:
    """What may be done to it now, and how the buttons are called."""
    of_status = {"active": ("pause", "run"), "paused": ("resume", "run")}
    return [(each, _LABELS[each]) for each in of_status.get(schedule.status, ("run",))]


async def _change(visit: Visit, fields: QueryParams) -> Change:
    """Pauses or resumes a schedule, or runs it now."""
    schedule = await _schedule(visit, fields.get("id", ""))
    action = choice(fields, "action", _MEANINGS)

    async def make(connection: Connection) -> None:
        if action not in dict(_actions(schedule)):
            raise PageError(409, "It has changed", f"The schedule is {schedule.status}.")
        if action == "pause":
            await service.pause(connection, schedule, visit.actor)
        elif action == "resume":
            await service.resume(connection, schedule, visit.actor)
        else:
            await service.request_run(connection, schedule, new_uuid(), visit.actor)
        Schedules.in_state(visit.state).wake()

    return Change(
        title=f"{_LABELS[action]}: this schedule?",
        meaning=_MEANINGS[action],
        label=_LABELS[action],
        back=f"/schedules/{public_id(schedule.id)}",
        make=make,
        is_harmless=action != "pause",
        facts=[
            ("Schedule", schedule.name or public_id(schedule.id)),
            ("Project", schedule.project),
        ],
    )


async def _schedule(visit: Visit, schedule: str) -> ScheduleRow:
    identifier = parse_admin_id(SCHEDULE, schedule)
    found = await find_by_id(visit.pool, statements.ANY_SCHEDULE, identifier)
    if found is None or not visit.owns(found.project_id):
        raise not_found("schedule")
    return found


PAGES = (
    Page("/schedules", show_list, menu="Schedules", is_by_project=True, roles=EVERYONE),
    *confirmed("/schedules/change", _change),
    Page("/schedules/{id}", show, roles=EVERYONE),
)
