"""What is done to schedules by their clients and by operators: each function is one transaction,
with its entry in the audit log. Their slots are worked on by web processes."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from features.audit import act
from features.files.queries import LOCK_PROJECT
from features.schedules import queries as statements
from features.schedules.queries import ScheduleRow
from features.schedules.template import StoredTemplate
from features.schedules.timing import Missed, Timing, next_slots
from models.db.database import Connection, Json, Jsonb, fetch
from models.db.queries.audit import Actor, AuditEntry
from models.ids import SCHEDULE, admin_id


class TooManySchedules(Exception):
    """The project has as many schedules as it may have."""


class NoSlot(Exception):
    """The schedule would never run."""


@dataclass(frozen=True, slots=True)
class NewSchedule:
    """What a new schedule is."""

    id: UUID
    project: UUID
    project_name: str
    api_key: UUID
    """the key that its responses are made with"""
    timing: Timing
    template: StoredTemplate
    name: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    missed: Missed = Missed.RUN_ONCE


@dataclass(frozen=True, slots=True)
class ScheduleChanges:
    """What is changed of a schedule. None: that stays."""

    api_key: UUID
    """of who changes it: its responses are made with this one from now on"""
    timing: Timing | None = None
    template: StoredTemplate | None = None
    name: str | None = None
    metadata: dict[str, str] | None = None
    missed: Missed | None = None


def public_id(schedule: UUID) -> str:
    """A schedule's id as clients and operators see it."""
    return admin_id(SCHEDULE, schedule)


def timing_of(row: ScheduleRow) -> Timing:
    """When it runs."""
    return Timing(row.run_at, row.cron, row.time_zone)


async def create(connection: Connection, new: NewSchedule, most: int, actor: Actor) -> None:
    """Makes a schedule, in a transaction of the caller. Raises NoSlot, and TooManySchedules if the
    project has `most` already."""
    now, slots = await _slots_of(connection, new.timing)
    await fetch(connection, LOCK_PROJECT, {"project": new.project})
    [count] = await fetch(connection, statements.COUNT_SCHEDULES, {"project": new.project})
    if count >= most:
        raise TooManySchedules
    values = {
        "id": new.id,
        "project": new.project,
        "api_key": new.api_key,
        "name": new.name,
        "metadata": Jsonb(new.metadata),
        "missed": new.missed.value,
        **_template_values(new.template),
        **_timing_values(new.timing),
        **_slot_values(now, slots),
    }
    entry = AuditEntry(actor, "schedule.create", public_id(new.id), project=new.project_name)
    if not await act(connection, statements.INSERT_SCHEDULE, values, entry):
        raise TooManySchedules


async def update(
    connection: Connection, schedule: UUID, changes: ScheduleChanges, actor: Actor
) -> bool:
    """Changes a schedule, in a transaction of the caller. With another timing its past slots are
    over. False: it was deleted. Raises NoSlot."""
    rows = await fetch(connection, statements.LOCK_SCHEDULE, {"id": schedule})
    if not rows:
        return False
    [row] = rows
    timing, decided_until, slots = timing_of(row), row.decided_until, row.upcoming
    if changes.timing is not None:
        timing = changes.timing
        decided_until, slots = await _slots_of(connection, timing)
    template = changes.template
    missed = row.missed if changes.missed is None else changes.missed.value
    values = {
        "id": schedule,
        "api_key": changes.api_key,
        "name": row.name if changes.name is None else changes.name,
        "metadata": Jsonb(row.metadata if changes.metadata is None else changes.metadata),
        "missed": missed,
        **(_NO_TEMPLATE if template is None else _template_values(template)),
        **_timing_values(timing),
        **_slot_values(decided_until, slots),
    }
    await act(connection, statements.UPDATE_SCHEDULE, values, _entry(actor, "set", row))
    return True


async def pause(connection: Connection, row: ScheduleRow, actor: Actor) -> None:
    """Lets its slots pass. One that is paused stays so."""
    values = {"id": row.id}
    await act(connection, statements.PAUSE_SCHEDULE, values, _entry(actor, "pause", row))


async def resume(connection: Connection, row: ScheduleRow, actor: Actor) -> None:
    """Lets it run again; what becomes of slots that have passed is its `missed`."""
    values = {"id": row.id}
    await act(connection, statements.RESUME_SCHEDULE, values, _entry(actor, "resume", row))


async def request_run(
    connection: Connection, row: ScheduleRow, run: UUID, actor: Actor
) -> UUID | None:
    """Has a web process run it now, beside its slots. Returns the id of the run: `run`, or that of
    one that was requested before and is not made yet. None: it was deleted."""
    values = {"id": row.id, "run": run}
    requested = await act(connection, statements.REQUEST_RUN, values, _entry(actor, "run", row))
    return requested[0] if requested else None


async def delete(connection: Connection, row: ScheduleRow, actor: Actor) -> None:
    """Deletes it with its runs; the responses stay."""
    values = {"id": row.id}
    await act(connection, statements.DELETE_SCHEDULE, values, _entry(actor, "delete", row))


async def _slots_of(connection: Connection, timing: Timing) -> tuple[datetime, list[datetime]]:
    """The time of the database, and the slots after it. Raises NoSlot."""
    [now] = await fetch(connection, statements.NOW, {})
    slots = next_slots(timing, now)
    if not slots:
        raise NoSlot
    return now, slots


def _timing_values(timing: Timing) -> dict[str, object]:
    return {"cron": timing.cron, "time_zone": timing.time_zone, "run_at": timing.run_at}


def _slot_values(decided_until: datetime, slots: list[datetime]) -> dict[str, object]:
    upcoming = {"upcoming": slots, "next": slots[0] if slots else None}
    return {"decided_until": decided_until, **upcoming}


_NO_TEMPLATE: dict[str, Any] = {"template": None, "secret_key_id": None, "secrets": None}


def _template_values(template: StoredTemplate) -> dict[str, object]:
    sealed = template.sealed
    return {
        "template": Json(template.shown),
        "secret_key_id": None if sealed is None else sealed.key_id,
        "secrets": None if sealed is None else sealed.sealed,
    }


def _entry(actor: Actor, verb: str, row: ScheduleRow) -> AuditEntry:
    return AuditEntry(actor, f"schedule.{verb}", public_id(row.id), project=row.project)
