"""Schedules in the API document."""

from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from features.reference import examples, schemas
from features.schedules.bodies import FIELDS, run_object, schedule_object
from features.schedules.queries import RunRow, ScheduleRow
from features.schedules.timing import MAX_CRON, SHOWN, Missed
from models.ids import RESPONSE_ID_PATTERN, SCHEDULE, SCHEDULE_RUN
from models.projects.changes import MAX_NAME
from models.wire.api_schema import Schema, const, nullable, object_schema

PATHS = {"schedule_id": schemas.about_id(f"{SCHEDULE}_")}
_TEMPLATE: Final[schemas.Json] = {"model": "demo", "input": "What is new today?"}
_DAILY: Final[schemas.Json] = {
    "cron": "0 7 * * MON-FRI",
    "time_zone": "Europe/Berlin",
    "template": _TEMPLATE,
}
_STATUSES = ("active", "paused", "completed")
_RUN_STATUSES = ("created", "skipped", "failed")


def operations() -> dict[str, schemas.Json]:
    """Name of a route's function -> its operation."""
    schedule = schemas.response("The schedule.", "Schedule", examples={"a schedule": _example()})
    once = {"run_at": "2027-01-31T09:00:00+01:00", "template": _TEMPLATE}
    runs = schemas.response("A page of runs.", "ScheduleRunList")
    return {
        "create_schedule": schemas.operation(
            "Create a schedule",
            schedule,
            404,
            body=schemas.request_body("CreateSchedule", {"each working day": _DAILY, "once": once}),
            once=True,
        ),
        "list_schedules": schemas.operation(
            "List the schedules",
            schemas.response("A page of schedules.", "ScheduleList"),
            404,
            parameters=schemas.PAGING,
        ),
        "retrieve_schedule": schemas.operation("Get a schedule", schedule),
        "update_schedule": schemas.operation(
            "Change a schedule",
            schedule,
            404,
            body=schemas.request_body(
                "UpdateSchedule", {"another hour": {"cron": "0 8 * * MON-FRI"}}
            ),
        ),
        "delete_schedule": schemas.operation(
            "Delete a schedule", schemas.response("Deleted.", "DeletedSchedule")
        ),
        "pause_schedule": schemas.operation("Pause a schedule", schedule, 400),
        "resume_schedule": schemas.operation("Resume a schedule", schedule, 400),
        "run_schedule": schemas.operation(
            "Run a schedule now",
            schemas.response("The run.", "ScheduleRun", examples={"a run": _run_example()}),
            400,
            once=True,
        ),
        "list_schedule_runs": schemas.operation(
            "List the runs of a schedule", runs, parameters=schemas.PAGING
        ),
    }


def components(deployment: schemas.Deployment) -> dict[str, Schema]:
    """The bodies of requests, and what is returned."""
    sent = {name: check.schema(deployment.sent) for name, check in FIELDS.items()}
    sent |= {"name": schemas.text(0, MAX_NAME), "cron": schemas.text(1, MAX_CRON)}
    moment = nullable(schemas.SECONDS)
    response_id = nullable({"type": "string", "pattern": f"^{RESPONSE_ID_PATTERN}$"})
    last_run = object_schema(
        {
            "slot_at": schemas.SECONDS,
            "status": schemas.one_of_texts(_RUN_STATUSES),
            "response_id": response_id,
        }
    )
    return {
        "CreateSchedule": schemas.strict({"template": sent.pop("template")}, sent),
        "UpdateSchedule": schemas.strict({}, {**sent, "template": schemas.OBJECT}),
        "Schedule": object_schema(
            {
                "id": schemas.id_of(f"{SCHEDULE}_"),
                "object": const("schedule"),
                "name": schemas.STRING,
                "status": schemas.one_of_texts(_STATUSES),
                "cron": nullable(schemas.STRING),
                "time_zone": nullable(schemas.STRING),
                "run_at": moment,
                "missed": schemas.one_of_texts(Missed),
                "template": schemas.OBJECT,
                "next_runs": schemas.array_of(schemas.SECONDS, at_most=SHOWN),
                "last_run": nullable(last_run),
                "created_at": schemas.SECONDS,
                "updated_at": schemas.SECONDS,
                "paused_at": moment,
                "completed_at": moment,
                "metadata": FIELDS["metadata"].schema(deployment.stored),
            }
        ),
        "ScheduleList": schemas.page_of("Schedule"),
        "DeletedSchedule": schemas.deleted("schedule.deleted", schemas.id_of(f"{SCHEDULE}_")),
        "ScheduleRun": object_schema(
            {
                "id": schemas.id_of(f"{SCHEDULE_RUN}_"),
                "object": const("schedule.run"),
                "schedule_id": schemas.id_of(f"{SCHEDULE}_"),
                "slot_at": schemas.SECONDS,
                "trigger": schemas.one_of_texts(("slot", "request")),
                "status": schemas.one_of_texts(_RUN_STATUSES),
                "response_id": response_id,
                "error": nullable(_error()),
                "skipped_after": moment,
                "created_at": schemas.SECONDS,
            }
        ),
        "ScheduleRunList": schemas.page_of("ScheduleRun"),
    }


def _error() -> Schema:
    nothing = nullable(schemas.STRING)
    return object_schema(
        {"message": schemas.STRING, "type": schemas.STRING, "param": nothing, "code": nothing}
    )


_ID = UUID("019abc12de347000d1b2c3d4e5f60755")
_START = datetime.fromtimestamp(examples.TIME, UTC)


def _example() -> schemas.Json:
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


def _run_example() -> schemas.Json:
    run = UUID("019abc12de347000d1b2c3d4e5f60766")
    row = RunRow(run, _ID, _START, None, True, "created", _ID, None, _START)
    return run_object(row)
