"""The slots of schedules, by web processes, which check requests as for a POST.

A process takes a schedule that is due, decides one slot of it, or skips some, and stores what came
of it in one transaction: the schedule moves on, the slot gets its row, and the response is
inserted. So each slot becomes a response at most once, and is never forgotten, whatever dies. A
schedule with more to decide is due again at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import psycopg
import structlog
from prometheus_client import Counter

from features.schedules.queries import (
    END_REQUEST,
    INSERT_RUN,
    LEASE,
    MOVE_SCHEDULE,
    RELEASE_SCHEDULE,
    SECONDS_UNTIL_DUE,
    TAKE_SCHEDULES,
    TakenSchedule,
)
from features.schedules.service import public_id
from features.schedules.template import (
    StoredTemplate,
    UnreadableTemplate,
    about_template,
    open_template,
    require_schedules,
    scheduled_request,
    template_size,
)
from features.schedules.timing import Missed, MissedPolicy, Step, Timing, next_slots, next_step
from models.db.connection import ACTING_PROJECT
from models.db.database import (
    DATABASE_UNAVAILABLE,
    Connection,
    Json,
    execute,
    fetch,
    fetch_idempotent,
)
from models.db.queries.api_keys import FIND_API_KEY_BY_ID, ApiKey
from models.db.queries.create import (
    INSERT_IN_CONVERSATION,
    INSERT_WITH_OPTIONS,
    NewRow,
    insert_values,
)
from models.due_work import DueWork, KindOfWork
from models.errors import (
    ApiError,
    IncorrectApiKey,
    InternalError,
    InvalidRequest,
    RefusedRequest,
    RequestTooLarge,
    Unavailable,
)
from models.fence import RowLease
from models.ids import new_uuid
from models.lifecycle import ONE_OPEN_PER_CONVERSATION
from models.redis.channels import BACKGROUND
from models.redis.quota_counters import Demand
from models.secrets import Sealed
from web.counters import REGISTRY, count_accepted
from web.http.auth import require_scope
from web.http.body import JsonBody
from web.responses.continuation import conversation_locked
from web.responses.create import estimated_tokens
from web.state import AppState

logger = structlog.get_logger()

SCHEDULE_RUNS = Counter(
    "backburner_schedule_runs",
    "Slots of schedules, and runs that were requested, by what became of them.",
    ["status"],
    registry=REGISTRY,
)
for _status in ("created", "skipped", "failed"):
    SCHEDULE_RUNS.labels(_status)

_POLL: Final = 5.0
"""Longest time in seconds until this process sees a schedule that another one has made."""
_AT_ONCE: Final = 8
"""Schedules that this process works on at a time."""
_MAX_CRASHES: Final = 5
"""Processes in a row that died while they had a schedule: then its slot is given up."""
_PAUSE: Final = timedelta(seconds=5)
"""Until another try if nothing can be stored now."""
_TRIES: Final = 3
"""Of a run whose conversation is changed at the same time."""


class _ConversationChanged(Exception):
    """The conversation was changed after the request was checked against it."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A run to be stored, or slots to be skipped."""

    slot: datetime
    status: str
    skipped_after: datetime | None = None
    requested: UUID | None = None
    """the id of a run that was requested"""
    row: NewRow | None = None
    error: ApiError | None = None
    id: UUID = field(default_factory=new_uuid)

    def values(self, schedule: UUID) -> dict[str, object]:
        """Of INSERT_RUN."""
        error = None if self.error is None else _shown_error(self.error)
        return {
            "id": self.requested or self.id,
            "schedule": schedule,
            "slot": self.slot,
            "skipped_after": self.skipped_after,
            "requested": self.requested is not None,
            "status": self.status,
            "response": None if self.row is None else self.row.id,
            "error": None if error is None else Json(error),
        }


class ScheduleRunner:
    """Works on schedules in one web process."""

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._settings = state.settings
        self._pool = state.pool
        kind = KindOfWork(
            "schedules", TAKE_SCHEDULES, LEASE, _POLL, _room, self._work, _facts, SECONDS_UNTIL_DUE
        )
        self._due = DueWork(state.pool, kind)

    async def run(self) -> None:
        """Works until it is cancelled."""
        await self._due.run()

    def wake(self) -> None:
        """This process has changed when a schedule is due."""
        self._due.wake()

    async def _work(self, schedule: TakenSchedule, _: RowLease) -> None:
        ACTING_PROJECT.set(schedule.project_id)
        try:
            await self._decide(schedule)
        except Unavailable as error:
            logger.warning("schedule_waits", **_facts(schedule), error=error.message)
            values = {"id": schedule.id, "revision": schedule.revision, "pause": _PAUSE}
            await execute(self._pool, RELEASE_SCHEDULE, values)

    async def _decide(self, schedule: TakenSchedule) -> None:
        """Decides what is next. Raises Unavailable, and what DATABASE_UNAVAILABLE names."""
        if schedule.requested_run is not None:
            await self._run(schedule, schedule.now, requested=schedule.requested_run)
            return
        if schedule.is_paused:
            return
        step = next_step(
            _timing(schedule), schedule.decided_until, schedule.now, self._policy(schedule)
        )
        if step is None:
            await self._move(schedule, schedule.now)
        elif step.runs:
            await self._run(schedule, step.slot)
        else:
            await self._store(schedule, _skipped(schedule, step))

    def _policy(self, schedule: TakenSchedule) -> MissedPolicy:
        settings = self._settings.schedules
        return MissedPolicy(Missed(schedule.missed), settings.late, settings.catch_up)

    async def _run(
        self, schedule: TakenSchedule, slot: datetime, requested: UUID | None = None
    ) -> None:
        """Makes the response of a slot, or stores why there is none."""
        try:
            await self._make(schedule, slot, requested)
        except (Unavailable, *DATABASE_UNAVAILABLE):
            raise
        except ApiError as error:
            failed = _Run(slot, "failed", requested=requested, error=error)
            await self._store(schedule, failed)
        except Exception:
            logger.exception("schedule_failed", **_facts(schedule))
            failed = _Run(slot, "failed", requested=requested, error=InternalError())
            await self._store(schedule, failed)

    async def _make(self, schedule: TakenSchedule, slot: datetime, requested: UUID | None) -> None:
        """Raises ApiError if the request is refused, or has killed too many processes."""
        if schedule.crashes >= _MAX_CRASHES:
            raise InternalError
        key = await self._key(schedule)
        require_schedules(key)
        body = self._body(schedule)
        if body.size > (largest := self._state.body_limits_of(key).size):
            raise about_template(RequestTooLarge(f"{largest} bytes"))
        for _ in range(_TRIES):
            try:
                row = await self._state.create_response.prepare_row(
                    key, body, public_id(schedule.id), scheduled_request
                )
            except RefusedRequest as error:
                raise about_template(error) from None
            run = _Run(slot, "created", requested=requested, row=row)
            try:
                await self._store_within_quotas(schedule, key, body, run)
            except _ConversationChanged:
                continue
            return
        raise conversation_locked()

    async def _key(self, schedule: TakenSchedule) -> ApiKey:
        """Raises IncorrectApiKey and MissingScope: keys and scopes change while it runs."""
        values = {"id": schedule.api_key_id}
        keys = await fetch_idempotent(self._pool, FIND_API_KEY_BY_ID, values)
        if not keys:
            raise IncorrectApiKey
        require_scope(keys[0], reads=False)
        return keys[0]

    def _body(self, schedule: TakenSchedule) -> JsonBody:
        """The body of the create. Raises InvalidRequest if its credentials cannot be opened."""
        sealed = None
        if schedule.secret_key_id is not None and schedule.secrets is not None:
            sealed = Sealed(schedule.secret_key_id, schedule.secrets)
        stored = StoredTemplate(schedule.template, sealed)
        try:
            template = open_template(self._state.sealer, schedule.id, stored)
        except UnreadableTemplate:
            raise InvalidRequest(
                "The credentials of this schedule are sealed with a key that this server does not "
                "have any more. Send its template again.",
                param="template.tools",
                code="invalid_value",
            ) from None
        return JsonBody(template, template_size(template))

    async def _store_within_quotas(
        self, schedule: TakenSchedule, key: ApiKey, body: JsonBody, run: _Run
    ) -> None:
        """Raises QuotaExceeded."""
        quotas = self._state.quotas
        limits = quotas.limits_of(key)
        if limits is None:
            await self._store(schedule, run)
            return
        assert run.row is not None
        tokens = await estimated_tokens(body, body.value.get("max_output_tokens"), limits)
        demand = Demand(response=run.row.id, tokens=tokens, bytes=body.size)
        async with quotas.admitted(key.project_id, limits, demand) as admission:
            if not await self._store(schedule, run):
                admission.undo()

    async def _move(self, schedule: TakenSchedule, until: datetime) -> None:
        """No slot has passed: its times were found by a clock that was set back, or it was resumed
        before its next one."""
        async with self._pool.connection() as connection:
            await self._moved(connection, schedule, until)

    async def _moved(
        self, connection: Connection, schedule: TakenSchedule, until: datetime
    ) -> bool:
        slots = next_slots(_timing(schedule), until)
        values = {
            "id": schedule.id,
            "revision": schedule.revision,
            "decided_until": schedule.decided_until,
            "until": until,
            "upcoming": slots,
            "next": slots[0] if slots else None,
        }
        return bool(await fetch(connection, MOVE_SCHEDULE, values))

    async def _store(self, schedule: TakenSchedule, run: _Run) -> bool:
        """Stores the run, with its response if it has one, and moves the schedule on. False: the
        slot was decided, or the schedule changed, by another process. Raises ApiError if the
        conversation of the response is in use, and _ConversationChanged."""
        async with self._pool.connection() as connection, connection.transaction():
            if run.requested is not None:
                values = {"id": schedule.id, "revision": schedule.revision, "run": run.requested}
                is_moved = bool(await fetch(connection, END_REQUEST, values))
            else:
                is_moved = await self._moved(connection, schedule, run.slot)
            if not is_moved or not await fetch(connection, INSERT_RUN, run.values(schedule.id)):
                return False
            if run.row is not None:
                await self._insert(connection, run.row)
        SCHEDULE_RUNS.labels(run.status).inc()
        if run.error is not None:
            logger.warning("schedule_refused", **_facts(schedule), error=run.error.code)
        if run.row is not None:
            count_accepted(background=True)
            self._state.job_queue.enqueue(run.row.id, BACKGROUND)
        return True

    async def _insert(self, connection: Connection, row: NewRow) -> None:
        settings = self._settings
        # No web process waits for it.
        values = insert_values(
            [row],
            None,
            settings.retention,
            settings.limits.queue_wait,
            settings.line.continuation_lead,
        )
        if row.conversation is None:
            await fetch(connection, INSERT_WITH_OPTIONS, values)
            return
        try:
            if not await fetch(connection, INSERT_IN_CONVERSATION, values):
                raise _ConversationChanged
        except psycopg.errors.UniqueViolation as error:
            if error.diag.constraint_name == ONE_OPEN_PER_CONVERSATION:
                raise conversation_locked() from None
            raise


def _skipped(schedule: TakenSchedule, step: Step) -> _Run:
    return _Run(step.slot, "skipped", skipped_after=schedule.decided_until)


def _shown_error(error: ApiError) -> dict[str, object]:
    shown: dict[str, object] = error.body()["error"]
    return shown


def _timing(schedule: TakenSchedule) -> Timing:
    return Timing(schedule.run_at, schedule.cron, schedule.time_zone)


def _room(running: Sequence[TakenSchedule]) -> dict[str, object] | None:
    free = _AT_ONCE - len(running)
    return {"free": free} if free > 0 else None


def _facts(schedule: TakenSchedule) -> dict[str, object]:
    return {"schedule": public_id(schedule.id)}
