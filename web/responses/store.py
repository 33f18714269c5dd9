"""Stored responses: showing, cancelling and deleting them, and listing their input.

Always within one project (I11).
"""

import time
from collections.abc import Collection
from typing import Any
from uuid import UUID

import structlog
from redis.asyncio import Redis

from models.db.database import Pool, fetch_idempotent, find_by_id
from models.db.queries import end, read, retention
from models.db.queries.audit import Actor, AuditEntry
from models.db.queries.end import RecordedCancel
from models.db.queries.read import FoundResponse, ResponseRow
from models.db.statement import Query, RowT
from models.ended_line import EndedLine
from models.errors import InvalidRequest, NotFound
from models.files.response_images import ResponseImages
from models.ids import parse_response_id, response_id
from models.lifecycle import TERMINAL, Status
from models.load.budget import Reservation
from models.ownership.lease import DatabaseClock
from models.redis.answer_cache import AnswerCache
from models.redis.channels import control
from models.redis.channels import events as events_channel
from models.redis.client import REDIS_ERRORS
from models.shown_responses import facts_from_row, shown_object
from models.wire.events import ResponseFailed, frame
from models.wire.response import opening_event_types, response_object
from web.counters import CANCEL_SECONDS, RESPONSES_ENDED
from web.hooks import Hooks
from web.http.body import UNCOUNTED_BYTES, Hold
from web.http.params import Paging
from web.responses.item_pages import ItemReader
from web.responses.progress import ProgressReads
from web.responses.running import RunningOutputs
from web.responses.shown import ShownResponse, ShownResponses, Watched
from web.stream.reader import EventReader

logger = structlog.get_logger()

_ANSWER_WAIT = 60.0
"""Seconds for which the answer of a foreground request waits for memory, and for its images. A
client that was refused would repeat the request, and the model would run again."""


class ResponseStore:
    """Reads, cancels and deletes stored responses."""

    def __init__(
        self,
        pool: Pool,
        redis: Redis,
        event_reader: EventReader,
        cache: AnswerCache,
        cancel_wait: float,
        clock: DatabaseClock,
        hooks: Hooks,
    ) -> None:
        """`cancel_wait`: seconds that a cancel waits for the worker to end the response."""
        self._pool = pool
        self._images = images = event_reader.images or ResponseImages(pool, None)
        self._items = ItemReader(pool, images)
        self._redis = redis
        self._event_reader = event_reader
        outputs, progress = RunningOutputs(), ProgressReads(pool)
        self._shown = ShownResponses(pool, outputs, progress, images=images)
        self._watched = ShownResponses(pool, outputs, progress, read.WATCHED_RESPONSES)
        self._cache = cache
        self._cancel_wait = cancel_wait
        self._clock = clock
        self._hooks = hooks

    async def find(self, project: UUID, public_id: str) -> FoundResponse:
        """The response `resp_…` in this project, without its parameters.

        Raises NotFound, also for a deleted response and for a foreground response that has not
        ended.
        """
        return await self._find(read.FOUND_RESPONSE, project, public_id)

    async def find_row(self, project: UUID, public_id: str) -> ResponseRow:
        """As `find`: the whole row."""
        return await self._find(read.VISIBLE_RESPONSE, project, public_id)

    async def _find(self, query: Query[RowT], project: UUID, public_id: str) -> RowT:
        row = await find_by_id(self._pool, query, parse_response_id(public_id), project=project)
        if row is None:
            raise not_found(public_id)
        return row

    async def show(
        self,
        project: UUID,
        public_id: str,
        include: Collection[str] = (),
        *,
        hold: Hold,
    ) -> ShownResponse:
        """The Response object: the fold of the events so far (I7).

        `include`: values of this request, in addition to those of the create. `hold`: as for
        `ShownResponses.body`. Raises NotFound as `find` does, ShareUsedUp and Unavailable.
        """
        wanted_id = parse_response_id(public_id)
        shown = wanted_id and await self._shown.body(project, wanted_id, include, hold=hold)
        if not shown:
            raise not_found(public_id)
        return shown

    async def watch(self, wanted_id: UUID, *, hold: Hold) -> Watched | None:
        """The progress of a response of any project, for an operator; None: there is no such
        response. `hold`: as for `ShownResponses.body`. Raises ShareUsedUp and Unavailable."""
        return await self._watched.watch(wanted_id, hold=hold)

    async def show_ended(self, project: UUID, row: ResponseRow, *, hold: Hold) -> dict[str, Any]:
        """The Response object of a response that has ended. `hold`: as for `ShownResponses.body`.
        Raises NotFound if it was deleted meanwhile, ShareUsedUp and Unavailable."""
        values = {"id": row.id, "max_size": UNCOUNTED_BYTES}
        rows = await fetch_idempotent(self._pool, read.OUTPUT_ITEMS, values)
        if rows and rows[0].total > UNCOUNTED_BYTES:
            values["max_size"] = rows[0].total
            # The object shows texts twice (`output_text`).
            await hold().grow(2 * rows[0].total, _ANSWER_WAIT)
            rows = await fetch_idempotent(self._pool, read.OUTPUT_ITEMS, values)
        if not rows:
            raise not_found(response_id(row.id))
        items = [one.item for one in rows if one.item is not None]
        return shown_object(row, await self._images.filled(project, items, within=_ANSWER_WAIT))

    async def cancel(self, row: ResponseRow, actor: Actor) -> ResponseRow:
        """Cancels a background response and returns its row, which has ended unless the worker took
        longer than `cancel_wait`. The audit log says that `actor` did it.

        Raises InvalidRequest for a foreground response, or one that has ended otherwise, and
        NotFound if the response is deleted meanwhile.
        """
        if not row.background:
            raise InvalidRequest("Cannot cancel a synchronous response.")
        while row.status != Status.CANCELLED:
            if row.status in TERMINAL:
                raise InvalidRequest(
                    _NOT_CANCELLABLE_MESSAGES.get(
                        row.status, "Cannot cancel a response in terminal state."
                    )
                )
            started = time.monotonic()
            if await self.request_cancel(row, "cancelled", actor):
                ended = await self._event_reader.wait_until_ended(row.id, self._cancel_wait) or row
                CANCEL_SECONDS.observe(time.monotonic() - started)
                return ended
            row = await self._reload(row)
        return row

    async def request_cancel(
        self, row: ResponseRow, reason: str, by: Actor | UUID | None = None
    ) -> bool:
        """Ends a queued response, or records the cancel of a running one and notifies its worker.

        `reason` is stored with the response. `by`: the client, for the audit log, or the connection
        that has ended, if that is the reason. Returns False if the response had ended before, or
        another connection waits for it.
        """
        waiter = by if isinstance(by, UUID) else None
        values = _cancel_values(row, reason, self._clock.now(), waiter)
        cancel_queued, request_cancel = end.CANCEL_QUEUED, end.REQUEST_CANCEL
        if isinstance(by, UUID):
            cancel_queued, request_cancel = (
                end.CANCEL_QUEUED_OF_WAITER,
                end.REQUEST_CANCEL_OF_WAITER,
            )
        elif by is not None:
            cancel_queued, request_cancel = (
                end.CANCEL_QUEUED_BY_CLIENT,
                end.REQUEST_CANCEL_BY_CLIENT,
            )
            values |= AuditEntry(by, "response.cancel", response_id(row.id)).values()
        cancelled = await fetch_idempotent(self._pool, cancel_queued, values)
        if cancelled:
            RESPONSES_ENDED.labels(Status.CANCELLED.value).inc()
            self._hooks.quotas.on_ended(cancelled[0].project_id, row.id)
            EndedLine(
                response=row.id,
                request=cancelled[0].request_id,
                status=Status.CANCELLED,
                reason=reason,
                model=row.model,
                background=row.background,
                seconds=cancelled[0].seconds,
            ).write()
            await self._publish(events_channel(row.id), b"")
            return True
        if "audit_outcome" in values:
            values["audit_outcome"] = "requested"
        return await self._record_cancel(request_cancel, values)

    async def cancel_abandoned(self, abandoned_id: UUID, waiter: UUID) -> None:
        """Cancels a foreground response whose connection `waiter` has ended, unless another one has
        joined it. Most are running, and need one statement."""
        values = {"id": abandoned_id, "waiter": waiter}
        if await self._record_cancel(end.REQUEST_CANCEL_OF_WAITER, values):
            return
        for row in await fetch_idempotent(self._pool, read.RESPONSE, {"id": abandoned_id}):
            if row.status not in TERMINAL:
                await self.request_cancel(row, "client_gone", waiter)

    async def _record_cancel(
        self, statement: Query[RecordedCancel], values: dict[str, Any]
    ) -> bool:
        """Records the cancel of a running response, and notifies its worker."""
        recorded = await fetch_idempotent(self._pool, statement, values)
        if recorded and recorded[0].worker is not None:
            await self._publish(control(recorded[0].worker), values["id"].hex.encode())
        return bool(recorded)

    async def delete(self, project: UUID, row: FoundResponse, actor: Actor) -> None:
        """Hides the response at once, cancels it if it is open, and deletes it, its items, its
        events and its cached answer. The audit log says that `actor` did it.

        If it has not ended within `cancel_wait`, or its log is long, the purge deletes it later.
        """
        scope: dict[str, object] = {"id": row.id, "project": project}
        entry = AuditEntry(actor, "response.delete", response_id(row.id))
        await fetch_idempotent(self._pool, end.REQUEST_DELETE, scope | entry.values())
        if row.status not in TERMINAL and await self._cancel_deleted(row.id):
            await self._event_reader.wait_until_ended(row.id, self._cancel_wait)
        await fetch_idempotent(self._pool, retention.DELETE_ENDED, scope)
        if row.cache_key is not None:
            await self._cache.delete(project, row.cache_key)

    async def _cancel_deleted(self, deleted_id: UUID) -> bool:
        rows = await fetch_idempotent(self._pool, read.RESPONSE, {"id": deleted_id})
        return bool(rows) and await self.request_cancel(rows[0], "deleted")

    async def input_items(
        self, project: UUID, response: FoundResponse, paging: Paging, held: Reservation
    ) -> dict[str, Any]:
        """A page of the response's input, as OpenAI's list object. `held`: as for
        `ItemReader.page`."""
        query = read.INPUT_ITEMS[paging.order]
        return await self._items.page(project, query, {"id": response.id}, paging, held)

    async def _reload(self, row: ResponseRow) -> ResponseRow:
        """The row as it is now. Raises NotFound if it was deleted."""
        current = await find_by_id(self._pool, read.RESPONSE, row.id)
        if current is None:
            raise not_found(response_id(row.id))
        return current

    async def _publish(self, channel: str, payload: bytes) -> None:
        try:
            await self._redis.publish(channel, payload)
        except REDIS_ERRORS as error:
            # Nothing is lost: workers see cancels at their heartbeat, readers poll the log.
            logger.warning("publish_failed", channel=channel, error=str(error))


_NOT_CANCELLABLE_MESSAGES = {
    Status.COMPLETED.value: "Cannot cancel a completed response.",
    Status.FAILED.value: "Cannot cancel a failed response.",
}


def _cancel_values(
    row: ResponseRow, reason: str, now: int, waiter: UUID | None = None
) -> dict[str, object]:
    """The parameters of the statements that cancel a response (models/db/queries/end.py).

    `reason` is stored with a response that ends at once, at `now`, in whole seconds since the
    epoch. `waiter`: the connection that has ended, if that is the reason.
    """
    facts = facts_from_row(row).evolve(status=Status.CANCELLED.value)
    number = len(opening_event_types(background=row.background))
    return {
        "id": row.id,
        "completed_at": now,
        "reason": reason,
        "number": number,
        "frames": frame(ResponseFailed(response_object(facts, [])), number),
        "waiter": waiter,
    }


def not_found(public_id: str) -> NotFound:
    """There is no such response, as far as the project may see."""
    return NotFound(f"Response with id '{public_id}' not found.")
