"""What clients send of a schedule, and how it is shown."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from features.schedules import timing
from features.schedules.queries import RunRow, ScheduleRow
from features.schedules.service import public_id
from features.schedules.timing import InvalidTiming, Missed, Timing
from models.errors import InvalidRequest
from models.ids import SCHEDULE_RUN, admin_id, response_id
from models.projects.changes import MAX_NAME
from models.wire.api_schema import Schema, SchemaScope
from models.wire.checks.basic import Check, Choice, JsonObject, String
from models.wire.checks.faults import wrong_type
from models.wire.checks.parameters import METADATA

Json = dict[str, Any]

_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d(:\d\d(\.\d{1,9})?)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_LATEST: Final = 253_402_300_799
"""The last second of the year 9999."""


class _Time(Check):
    """A moment: seconds since the epoch, or as RFC 3339 writes it."""

    __slots__ = ()

    def __call__(self, value: Any, where: str) -> datetime:
        if type(value) is int and 0 <= value <= _LATEST:
            return datetime.fromtimestamp(value, UTC)
        if type(value) is str and _RFC_3339.fullmatch(value):
            try:
                return datetime.fromisoformat(value.upper()).astimezone(UTC)
            except (ValueError, OverflowError):
                pass
        elif type(value) not in (int, str):
            raise wrong_type(where, "seconds since the epoch or a string", value)
        raise invalid(
            where, "expected seconds since the epoch, or a time such as '2027-01-31T09:00:00+01:00'"
        )

    def schema(self, _scope: SchemaScope) -> Schema:
        return {
            "oneOf": [
                {"type": "integer", "minimum": 0, "maximum": _LATEST},
                {"type": "string", "format": "date-time"},
            ]
        }


FIELDS: Mapping[str, Check] = {
    "name": String(at_most=MAX_NAME),
    "cron": String(non_empty=True),
    "time_zone": String(non_empty=True),
    "run_at": _Time(),
    "missed": Choice(*Missed),
    "template": JsonObject(),
    "metadata": METADATA,
}


def invalid(param: str, why: str) -> InvalidRequest:
    """For a value that cannot be used."""
    return InvalidRequest(f"Invalid '{param}': {why}.", param=param, code="invalid_value")


def timing_of_fields(fields: Json, now: int, old: Timing | None = None) -> Timing | None:
    """When the schedule runs; None: as before. `fields` were checked one by one. `now`: in seconds
    since the epoch. `old`: of a schedule that is changed. Raises InvalidRequest."""
    run_at, cron, zone = (fields.get(name) for name in ("run_at", "cron", "time_zone"))
    if run_at is not None and cron is not None:
        raise InvalidRequest(
            "Send 'run_at' for a schedule that runs once, or 'cron', not both.",
            param="run_at",
            code="invalid_value",
        )
    if cron is None and zone is not None and old is not None:
        cron = old.cron if run_at is None else None
    if cron is None and zone is not None:
        raise invalid("time_zone", "it belongs to 'cron'; 'run_at' is a moment")
    if run_at is not None:
        if run_at.timestamp() <= now:
            raise invalid("run_at", "it is in the past")
        return Timing(run_at=run_at)
    if cron is None:
        if old is None:
            raise InvalidRequest(
                "Missing required parameter: 'cron' or 'run_at'.",
                param="cron",
                code="missing_required_parameter",
            )
        return None
    return _cron_timing(cron, zone or (old.time_zone if old is not None else "UTC"), now)


def _cron_timing(cron: str, zone: str, now: int) -> Timing:
    try:
        timing.require_cron(cron)
    except InvalidTiming as fault:
        raise invalid("cron", str(fault)) from None
    try:
        timing.require_zone(zone)
    except InvalidTiming as fault:
        raise invalid("time_zone", str(fault)) from None
    made = Timing(cron=cron, time_zone=zone)
    if not timing.next_slots(made, datetime.fromtimestamp(now, UTC)):
        raise invalid("cron", "no day of the next 50 years fits it")
    return made


def schedule_object(row: ScheduleRow) -> Json:
    """A schedule as JSON."""
    is_active = row.status == "active"
    last_run = None
    if row.last_slot is not None:
        last_run = {
            "slot_at": _seconds(row.last_slot),
            "status": row.last_status,
            "response_id": _response(row.last_response_id),
        }
    return {
        "id": public_id(row.id),
        "object": "schedule",
        "name": row.name,
        "status": row.status,
        "cron": row.cron,
        "time_zone": None if row.cron is None else row.time_zone,
        "run_at": _seconds(row.run_at),
        "missed": row.missed,
        "template": row.template,
        "next_runs": [_seconds(slot) for slot in row.upcoming] if is_active else [],
        "last_run": last_run,
        "created_at": _seconds(row.created_at),
        "updated_at": _seconds(row.updated_at),
        "paused_at": _seconds(row.paused_at),
        "completed_at": _seconds(row.completed_at),
        "metadata": row.metadata,
    }


def run_object(row: RunRow) -> Json:
    """A run as JSON."""
    return {
        "id": run_id(row),
        "object": "schedule.run",
        "schedule_id": public_id(row.schedule_id),
        "slot_at": _seconds(row.slot),
        "trigger": "request" if row.requested else "slot",
        "status": row.status,
        "response_id": _response(row.response_id),
        "error": row.error,
        "skipped_after": _seconds(row.skipped_after),
        "created_at": _seconds(row.created_at),
    }


def run_id(row: RunRow) -> str:
    """A run's id as clients and operators see it."""
    return admin_id(SCHEDULE_RUN, row.id)


def _response(made: UUID | None) -> str | None:
    return None if made is None else response_id(made)


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())
