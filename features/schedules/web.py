"""Schedules of projects in a web process, as the API shows and changes them. Always within one
project (I11)."""

import asyncio
import time
from functools import partial
from typing import Any, Final
from uuid import UUID

from features.schedules import queries as statements
from features.schedules import service
from features.schedules.bodies import FIELDS, invalid, run_object, schedule_object, timing_of_fields
from features.schedules.queries import ScheduleRow
from features.schedules.runner import ScheduleRunner
from features.schedules.service import NewSchedule, NoSlot, ScheduleChanges, TooManySchedules
from features.schedules.template import (
    StoredTemplate,
    about_template,
    require_schedules,
    scheduled_request,
    seal_template,
    template_size,
)
from features.schedules.timing import Missed, Timing
from models.db.database import fetch_idempotent, require_by_id
from models.db.queries.api_keys import ApiKey
from models.db.queries.audit import Actor
from models.errors import InvalidRequest, NotFound, RefusedRequest, RequestTooLarge, Unavailable
from models.ids import SCHEDULE, SCHEDULE_RUN, admin_id, new_uuid, parse_admin_id
from models.wire.checks.basic import checked_fields
from models.wire.checks.faults import shorten
from web.http.body import JsonBody
from web.http.json_responses import list_envelope
from web.http.params import Paging
from web.idempotency.creates import note_made
from web.state import AppState, Feature

Json = dict[str, Any]

_MADE: Final = 10.0
"""Seconds within which a run that was requested is made, unless nothing can be stored."""
_LOOK: Final = 0.05
"""Seconds between two looks whether it was."""


class ScheduleStore:
    """The schedules of all projects. Each method raises NotFound for a schedule that the project
    does not have."""

    def __init__(self, state: AppState, runner: ScheduleRunner) -> None:
        self._state = state
        self._pool = state.pool
        self._settings = state.settings.schedules
        self._runner = runner

    async def create(self, key: ApiKey, body: Any, actor: Actor) -> Json:
        """The new schedule. Raises InvalidRequest, also if the project has as many as it may have,
        and what a create of its template raises."""
        require_schedules(key)
        fields = checked_fields(body, FIELDS, ("template",))
        timing = timing_of_fields(fields, self._state.lease.clock.now())
        assert timing is not None
        made = new_uuid()
        new = NewSchedule(
            id=made,
            project=key.project_id,
            project_name=key.project,
            api_key=key.id,
            timing=timing,
            template=await self._template(key, made, fields["template"]),
            name=fields.get("name", ""),
            metadata=fields.get("metadata", {}),
            missed=Missed(fields.get("missed", Missed.RUN_ONCE)),
        )
        most = self._settings.per_project
        async with self._pool.connection() as connection, connection.transaction():
            try:
                await service.create(connection, new, most, actor)
            except TooManySchedules:
                raise InvalidRequest(
                    f"The project has {most} schedules, or is archived. Delete one first.",
                    code="invalid_value",
                ) from None
            except NoSlot:
                raise _in_the_past(timing) from None
            await note_made(connection, service.public_id(made))
        self._runner.wake()
        return await self.show(key.project_id, service.public_id(made))

    async def show(self, project: UUID, public_id: str) -> Json:
        """One schedule."""
        return schedule_object(await self._find(project, public_id))

    async def page(self, project: UUID, paging: Paging) -> Json:
        """A page, the newest first unless the order is `asc`."""
        after = None if paging.after is None else (await self._find(project, paging.after)).id
        values = {"project": project, "after": after, "max_rows": paging.row_limit}
        query = statements.SCHEDULES_PAGE[paging.order]
        rows = await fetch_idempotent(self._pool, query, values)
        shown = [schedule_object(row) for row in rows[: paging.limit]]
        return list_envelope(shown, has_more=bool(rows) and rows[0].found > len(shown))

    async def update(self, key: ApiKey, public_id: str, body: Any, actor: Actor) -> Json:
        """Changes a schedule; from now on it runs with this key. Raises what `create` raises."""
        require_schedules(key)
        found = await self._find(key.project_id, public_id)
        fields = checked_fields(body, FIELDS)
        old = service.timing_of(found)
        timing = timing_of_fields(fields, self._state.lease.clock.now(), old)
        template, missed = fields.get("template"), fields.get("missed")
        changes = ScheduleChanges(
            key.id,
            timing=timing,
            template=None if template is None else await self._template(key, found.id, template),
            name=fields.get("name"),
            metadata=fields.get("metadata"),
            missed=None if missed is None else Missed(missed),
        )
        async with self._pool.connection() as connection, connection.transaction():
            try:
                is_changed = await service.update(connection, found.id, changes, actor)
            except NoSlot:
                raise _in_the_past(timing or old) from None
            if not is_changed:
                raise _not_found(public_id)
        self._runner.wake()
        return await self.show(key.project_id, public_id)

    async def pause(self, project: UUID, public_id: str, actor: Actor) -> Json:
        """Lets the slots of a schedule pass. Raises InvalidRequest for a completed one."""
        found = await self._find_open(project, public_id)
        async with self._pool.connection() as connection:
            await service.pause(connection, found, actor)
        return await self.show(project, public_id)

    async def resume(self, project: UUID, public_id: str, actor: Actor) -> Json:
        """Lets a schedule run again. Raises InvalidRequest for a completed one."""
        found = await self._find_open(project, public_id)
        async with self._pool.connection() as connection:
            await service.resume(connection, found, actor)
        self._runner.wake()
        return await self.show(project, public_id)

    async def delete(self, project: UUID, public_id: str, actor: Actor) -> Json:
        """Deletes a schedule and its runs."""
        found = await self._find(project, public_id)
        async with self._pool.connection() as connection:
            await service.delete(connection, found, actor)
        shown = service.public_id(found.id)
        return {"id": shown, "object": "schedule.deleted", "deleted": True}

    async def run(self, project: UUID, public_id: str, actor: Actor) -> Json:
        """Runs a schedule now, beside its slots; returns the run. Raises Unavailable if it is not
        made soon: it will be."""
        found = await self._find(project, public_id)
        async with self._pool.connection() as connection, connection.transaction():
            run = await service.request_run(connection, found, new_uuid(), actor)
            if run is None:
                raise _not_found(public_id)
            made = admin_id(SCHEDULE_RUN, run)
            await note_made(connection, made)
        self._runner.wake()
        return await self.show_run(project, public_id, made)

    async def show_run(self, project: UUID, public_id: str, run: str) -> Json:
        """A run that was requested, when it is made. Raises Unavailable."""
        found = await self._find(project, public_id)
        values = {"id": parse_admin_id(SCHEDULE_RUN, run), "schedule": found.id}
        deadline = time.monotonic() + _MADE
        while time.monotonic() < deadline:
            rows = await fetch_idempotent(self._pool, statements.FIND_RUN, values)
            if rows:
                return run_object(rows[0])
            await asyncio.sleep(_LOOK)
        raise Unavailable("The run was accepted, and is not made yet. It is listed when it is.")

    async def runs(self, project: UUID, public_id: str, paging: Paging) -> Json:
        """A page of the runs of a schedule, the newest first unless the order is `asc`."""
        values = {
            "schedule": (await self._find(project, public_id)).id,
            "after": paging.after_id(SCHEDULE_RUN),
            "max_rows": paging.row_limit,
        }
        rows = await fetch_idempotent(self._pool, statements.RUNS_PAGE[paging.order], values)
        return paging.page_of([run_object(row) for row in rows])

    async def _template(self, key: ApiKey, schedule: UUID, template: Json) -> StoredTemplate:
        """The template as it is stored: checked as a create with this key is."""
        size, most = template_size(template), self._settings.template
        if size > most:
            raise about_template(RequestTooLarge(f"{most} bytes for the template of a schedule"))
        prepare = partial(self._state.create_response.prepare_row, key, JsonBody(template, size))
        try:
            await prepare(service.public_id(schedule), scheduled_request)
        except RefusedRequest as error:
            raise about_template(error) from None
        return seal_template(self._state.sealer, schedule, template)

    async def _find(self, project: UUID, public_id: str) -> ScheduleRow:
        found, absent = parse_admin_id(SCHEDULE, public_id), _not_found(public_id)
        query = statements.FIND_SCHEDULE
        return await require_by_id(self._pool, query, found, absent, project=project)

    async def _find_open(self, project: UUID, public_id: str) -> ScheduleRow:
        found = await self._find(project, public_id)
        if found.status == "completed":
            raise InvalidRequest(
                "The schedule is completed: it has no slot any more. Give it another 'run_at' or "
                "'cron' first."
            )
        return found


def _not_found(public_id: str) -> NotFound:
    return NotFound(f"No schedule found with id '{shorten(public_id)}'.")


def _in_the_past(timing: Timing) -> InvalidRequest:
    """Its last slot has passed since it was checked."""
    return invalid("cron" if timing.run_at is None else "run_at", "it is in the past")


class Schedules(Feature):
    """The schedules of all projects, and the work on their slots: their requests are checked as a
    POST is."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self._runner = ScheduleRunner(state)
        self.store = ScheduleStore(state, self._runner)

    def start(self) -> None:
        """Begins to work on schedules that are due."""
        self.state.side_tasks.start(self._runner.run(), "schedules")

    def wake(self) -> None:
        """A schedule may be due: it was changed without the store."""
        self._runner.wake()


FEATURE = Schedules
