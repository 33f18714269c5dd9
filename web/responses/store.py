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
from models.db.queries.read import ResponseRow
from models.errors import InvalidRequest, NotFound
from models.ids import conversation_id, parse_response_id, response_id
from models.lifecycle import TERMINAL, Status
from models.ownership.clock import DatabaseClock
from models.redis.answer_cache import AnswerCache
from models.redis.channels import control
from models.redis.channels import events as events_channel
from models.redis.client import REDIS_ERRORS
from models.wire.events import Item, ResponseFailed, frame
from models.wire.includes import filter_items
from models.wire.response import ResponseFacts, response_object
from web.counters import CANCEL_SECONDS, RESPONSES_ENDED
from web.http.json_responses import list_envelope
from web.http.params import Paging
from web.responses.opening import opening_event_types
from web.responses.running import RunningOutputs
from web.stream.reader import EventReader

logger = structlog.get_logger()


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
    ) -> None:
        """`cancel_wait`: seconds that a cancel waits for the worker to end the response."""
        self._pool = pool
        self._redis = redis
        self._event_reader = event_reader
        self._running_outputs = RunningOutputs(pool)
        self._cache = cache
        self._cancel_wait = cancel_wait
        self._clock = clock

    async def find(self, project: UUID, public_id: str) -> ResponseRow:
        """The row of the response `resp_…` in this project.

        Raises NotFound, also for a deleted response and for a foreground response that has not
        ended.
        """
        row = await find_by_id(
            self._pool, read.VISIBLE_RESPONSE, parse_response_id(public_id), project=project
        )
        if row is None:
            raise _not_found(public_id)
        return row

    async def show(self, row: ResponseRow, include: Collection[str] = ()) -> dict[str, Any]:
        """The Response object: the fold of the events so far (I7). The caller must not change it,
        nor use it after its next `await`.

        `include`: values of this request, in addition to those of the create. Raises NotFound if
        the response is deleted meanwhile.
        """
        output = None
        if row.status == Status.IN_PROGRESS:
            output = await self._running_outputs.read(row.id)
            if output is None:  # it has ended meanwhile
                row = await self._reload(row)
        if output is None:
            output = await self._output_items(row)
        return response_object(
            facts_from_row(row),
            filter_items(output, {*include, *row.parameters.get("include", ())}),
        )

    async def cancel(self, row: ResponseRow) -> ResponseRow:
        """Cancels a background response and returns its row, which has ended unless the worker took
        longer than `cancel_wait`.

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
            if await self.request_cancel(row, "cancelled"):
                ended = await self._event_reader.wait_until_ended(row.id, self._cancel_wait) or row
                CANCEL_SECONDS.observe(time.monotonic() - started)
                return ended
            row = await self._reload(row)
        return row

    async def request_cancel(
        self, row: ResponseRow, reason: str, waiter: UUID | None = None
    ) -> bool:
        """Ends a queued response, or records the cancel of a running one and notifies its worker.

        `reason` is stored with the response. `waiter`: the connection that has ended, if that is
        the reason. Returns False if the response had ended before, or another connection than
        `waiter` waits for it.
        """
        facts = facts_from_row(row).evolve(status=Status.CANCELLED.value)
        number = len(opening_event_types(background=row.background))
        values = {
            "id": row.id,
            "completed_at": self._clock.now(),
            "reason": reason,
            "number": number,
            "frames": frame(ResponseFailed(response_object(facts, [])), number),
            "waiter": waiter,
        }
        cancel_queued, request_cancel = (
            (end.CANCEL_QUEUED, end.REQUEST_CANCEL)
            if waiter is None
            else (end.CANCEL_QUEUED_OF_WAITER, end.REQUEST_CANCEL_OF_WAITER)
        )
        if await fetch_idempotent(self._pool, cancel_queued, values):
            RESPONSES_ENDED.labels(Status.CANCELLED.value).inc()
            await self._publish(events_channel(row.id), b"")
            return True
        recorded = await fetch_idempotent(self._pool, request_cancel, values)
        if recorded and recorded[0].worker is not None:
            await self._publish(control(recorded[0].worker), row.id.hex.encode())
        return bool(recorded)

    async def delete(self, project: UUID, row: ResponseRow) -> None:
        """Hides the response at once, cancels it if it is open, and deletes it, its items, its
        events and its cached answer.

        If it has not ended within `cancel_wait`, or its log is long, the purge deletes it later.
        """
        scope = {"id": row.id, "project": project}
        await fetch_idempotent(self._pool, end.REQUEST_DELETE, scope)
        if row.status not in TERMINAL and await self.request_cancel(row, "deleted"):
            await self._event_reader.wait_until_ended(row.id, self._cancel_wait)
        await fetch_idempotent(self._pool, retention.DELETE_ENDED, scope)
        if row.cache_key is not None:
            await self._cache.delete(row.cache_key)

    async def input_items(self, response: ResponseRow, paging: Paging) -> dict[str, Any]:
        """A page of the response's input, as OpenAI's list object."""
        values = {"id": response.id, "after": paging.after, "limit": paging.row_limit}
        rows = await fetch_idempotent(self._pool, read.INPUT_ITEMS[paging.order], values)
        return list_envelope(rows, paging.limit)

    async def _reload(self, row: ResponseRow) -> ResponseRow:
        """The row as it is now. Raises NotFound if it was deleted."""
        current = await find_by_id(self._pool, read.RESPONSE, row.id)
        if current is None:
            raise _not_found(response_id(row.id))
        return current

    async def _output_items(self, row: ResponseRow) -> list[Item]:
        rows = await fetch_idempotent(self._pool, read.OUTPUT_ITEMS, {"id": row.id})
        if not rows:
            raise _not_found(response_id(row.id))
        return [item for item in rows if item is not None]

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


def _not_found(public_id: str) -> NotFound:
    return NotFound(f"Response with id '{public_id}' not found.")


def facts_from_row(row: ResponseRow) -> ResponseFacts:
    """The facts of a row. Clients see a foreground response in the queue as `in_progress`."""
    previous, conversation = row.previous_response_id, row.conversation_id
    hidden = row.status == Status.QUEUED and not row.background
    return ResponseFacts(
        id=response_id(row.id),
        created_at=row.created_at,
        status=Status.IN_PROGRESS.value if hidden else row.status,
        model=row.model,
        parameters=row.parameters,
        background=row.background,
        store=row.store,
        previous_response_id=response_id(previous) if previous is not None else None,
        conversation_id=conversation_id(conversation) if conversation is not None else None,
        usage=row.usage,
        error=row.error,
        incomplete_reason=row.reason,
        completed_at=row.completed_at,
        service_tier=row.service_tier,
    )
