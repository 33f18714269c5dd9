"""Schedules in the API document."""

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from features.reference import examples
from features.reference.schemas import (
    OBJECT,
    PAGING,
    SECONDS,
    STRING,
    Deployment,
    Json,
    about_id,
    array_of,
    deleted,
    id_of,
    one_of_texts,
    operation,
    page_of,
    request_body,
    response,
    strict,
    text,
)
from features.schedules.bodies import FIELDS, run_object, schedule_object
from features.schedules.queries import RunRow, ScheduleRow
from features.schedules.timing import MAX_CRON, SHOWN, Missed
from models.ids import RESPONSE_ID_PATTERN, SCHEDULE, SCHEDULE_RUN
from models.projects.changes import MAX_NAME
from models.wire.api_schema import Schema, const, nullable, object_schema

PATHS = {"schedule_id": about_id(f"{SCHEDULE}_")}
_TEMPLATE: Final[Json] = {"model": "demo", "input": "What is new today?"}
_DAILY: Final[Json] = {
    "cron": "0 7 * * MON-FRI",
    "time_zone": "Europe/Berlin",
    "template": _TEMPLATE,
}
_STATUSES = ("active", "paused", "completed")
_RUN_STATUSES = ("created", "skipped", "failed")


def operations() -> dict[str, Json]:
    """Name of a route's function -> its operation."""
    schedule = response("The schedule.", "Schedule", examples={"a schedule": _example()})
    once = {"run_at": "2027-01-31T09:00:00+01:00", "template": _TEMPLATE}
    runs = response("A page of runs.", "ScheduleRunList")
    return {
        "create_schedule": operation(
            "Create a schedule",
            schedule,
            404,
            body=request_body("CreateSchedule", {"each working day": _DAILY, "once": once}),
            once=True,
        ),
        "list_schedules": operation(
            "List the schedules",
            response("A page of schedules.", "ScheduleList"),
            404,
            parameters=PAGING,
        ),
        "retrieve_schedule": operation("Get a schedule", schedule),
        "update_schedule": operation(
            "Change a schedule",
            schedule,
            404,
            body=request_body("UpdateSchedule", {"another hour": {"cron": "0 8 * * MON-FRI"}}),
        ),
        "delete_schedule": operation("Delete a schedule", response("Deleted.", "DeletedSchedule")),
        "pause_schedule": operation("Pause a schedule", schedule, 400),
        "resume_schedule": operation("Resume a schedule", schedule, 400),
        "run_schedule": operation(
            "Run a schedule now",
            response("The run.", "ScheduleRun", examples={"a run": _run_example()}),
            400,
            once=True,
        ),
        "list_schedule_runs": operation("List the runs of a schedule", runs, parameters=PAGING),
    }


def components(deployment: Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    sent = {name: check.schema(deployment.sent) for name, check in FIELDS.items()}
    sent |= {"name": text(0, MAX_NAME), "cron": text(1, MAX_CRON)}
    moment = nullable(SECONDS)
    response_id = nullable({"type": "string", "pattern": f"^{RESPONSE_ID_PATTERN}$"})
    last_run = object_schema(
        {"slot_at": SECONDS, "status": one_of_texts(_RUN_STATUSES), "response_id": response_id}
    )
    return {
        "CreateSchedule": strict({"template": sent.pop("template")}, sent),
        "UpdateSchedule": strict({}, {**sent, "template": OBJECT}),
        "Schedule": object_schema(
            {
                "id": id_of(f"{SCHEDULE}_"),
                "object": const("schedule"),
                "name": STRING,
                "status": one_of_texts(_STATUSES),
                "cron": nullable(STRING),
                "time_zone": nullable(STRING),
                "run_at": moment,
                "missed": one_of_texts(Missed),
                "template": OBJECT,
                "next_runs": array_of(SECONDS, at_most=SHOWN),
                "last_run": nullable(last_run),
                "created_at": SECONDS,
                "updated_at": SECONDS,
                "paused_at": moment,
                "completed_at": moment,
                "metadata": FIELDS["metadata"].schema(deployment.stored),
            }
        ),
        "ScheduleList": page_of("Schedule"),
        "DeletedSchedule": deleted("schedule.deleted", id_of(f"{SCHEDULE}_")),
        "ScheduleRun": object_schema(
            {
                "id": id_of(f"{SCHEDULE_RUN}_"),
                "object": const("schedule.run"),
                "schedule_id": id_of(f"{SCHEDULE}_"),
                "slot_at": SECONDS,
                "trigger": one_of_texts(("slot", "request")),
                "status": one_of_texts(_RUN_STATUSES),
                "response_id": response_id,
                "error": nullable(_error()),
                "skipped_after": moment,
                "created_at": SECONDS,
            }
        ),
        "ScheduleRunList": page_of("ScheduleRun"),
    }


def _error() -> Schema:
    nothing = nullable(STRING)
    return object_schema({"message": STRING, "type": STRING, "param": nothing, "code": nothing})


_ID = UUID("019abc12de347000d1b2c3d4e5f60755")
_START = datetime.fromtimestamp(examples.TIME, UTC)


def _example() -> Json:
    """A schedule that has run once."""
    day = timedelta(days=1)
    row = ScheduleRow(
        id=_ID,
        project_id=_ID,
        project="default",
        name="",
        metadata={},
        cron="0 7 * * *",
        time_zone="Europe/Berlin",
        run_at=None,
        missed=Missed.RUN_ONCE,
        template=_TEMPLATE,
        created_at=_START,
        updated_at=_START,
        paused_at=None,
        completed_at=None,
        decided_until=_START,
        upcoming=[_START + day * number for number in range(1, SHOWN + 1)],
        last_status="created",
        last_slot=_START,
        last_response_id=_ID,
    )
    return schedule_object(row)


def _run_example() -> Json:
    run = UUID("019abc12de347000d1b2c3d4e5f60766")
    row = RunRow(run, _ID, _START, None, True, "created", _ID, None, _START)
    return run_object(row)
