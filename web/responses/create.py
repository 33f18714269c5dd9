"""From a create request to a committed response. Once it is committed, it will end (I1).

One statement stores the row, its input and its opening events; then the response is enqueued. The
message may be lost: the sweep of every worker enqueues waiting responses again.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import orjson

from models.config.settings import Settings
from models.db.database import Pool, fetch_idempotent
from models.db.queries.create import NewRow
from models.db.queries.read import RESPONSE
from models.ids import new_uuid
from models.lifecycle import Status
from models.ownership.clock import DatabaseClock
from models.redis.channels import queue_for
from models.redis.queue import JobQueue
from models.secrets import Sealer
from models.wire.mcp import CREDENTIAL_FIELDS
from models.wire.pairing import OutputWithoutCall, require_outputs
from models.wire.purpose import Purpose, stored_parameters
from models.wire.request import CreateRequest
from web.counters import RESPONSES_ACCEPTED, RESPONSES_ENDED
from web.http.body import JsonBody
from web.responses.answer_cache import WARM_UP, CacheLookup, RequestCache
from web.responses.continuation import Continuation, load_continuation
from web.responses.idempotency import IdempotencyKey, parse_idempotency_key
from web.responses.insert import InsertResponse, NewResponse
from web.responses.join import JoinResponse
from web.responses.opening import Opening
from web.responses.precomputed import PrecomputedResponse, precompute
from web.responses.references import resolve_references
from web.responses.validation import (
    RequestValidation,
    drop_compacted,
    explain_output,
    require_valid_approvals,
)
from web.stream.bus import Bus
from web.stream.reader import KnownEvents

Values = dict[str, Any]
"""Fields of the row that is stored."""


@dataclass(frozen=True, slots=True)
class AcceptedResponse:
    """A committed response, and the request that made it."""

    id: UUID
    request: CreateRequest
    initial_object: dict[str, Any]
    """the Response object at its creation"""
    waiter: UUID
    """the connection that waits for the answer: when it ends, it cancels a foreground response"""
    is_from_sdk: bool = False
    """An SDK sent the request without a key: its retry is recognised until it is answered."""
    is_repeat: bool = False
    """An earlier request, which this one repeats, made the response."""
    cache_hit: bool | None = None
    """Whether the answer is from the cache; None if the request did not ask for the cache."""
    final_object: dict[str, Any] | None = None
    """The Response object of a response that was stored completed."""
    known_events: KnownEvents | None = None
    """Its opening events, if it is streamed and a worker has to run it."""


@dataclass(frozen=True, slots=True)
class _RequestContext:
    """What belongs to a create besides its body."""

    waiter: UUID
    traceparent: str | None
    idempotency_key: IdempotencyKey | None
    unstored_ids: Collection[UUID]
    generate: bool
    purpose: Purpose

    @property
    def is_from_sdk(self) -> bool:
        """An SDK sent the request without a key."""
        return self.idempotency_key is not None and self.idempotency_key.key is None


@dataclass(frozen=True, slots=True)
class _CheckedRequest:
    """A request that may be stored, and what belongs to it."""

    request: CreateRequest
    """with its item references resolved"""
    continuation: Continuation
    lookup: CacheLookup
    opening: Opening
    precomputed: PrecomputedResponse | None


class CreateResponse:
    """Accepts create requests."""

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        sealer: Sealer,
        validation: RequestValidation,
        request_cache: RequestCache,
        join_response: JoinResponse,
        insert_response: InsertResponse,
        job_queue: JobQueue,
        clock: DatabaseClock,
        bus: Bus,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._sealer = sealer
        self._validation = validation
        self._request_cache = request_cache
        self._join_response = join_response
        self._insert_response = insert_response
        self._job_queue = job_queue
        self._clock = clock
        self._bus = bus

    async def create(
        self,
        project: UUID,
        body: JsonBody,
        headers: Mapping[str, str],
        *,
        unstored_ids: Collection[UUID] = (),
        generate: bool = True,
        purpose: Purpose = Purpose.ANSWER,
    ) -> AcceptedResponse:
        """Checks the request, stores the response and enqueues it; a repeated request gets the
        first one's response.

        `unstored_ids`: responses with `store: false` that this client may continue all the same.
        `generate`: False for a warm-up, which ends without output (docs/websocket.md). With the
        purpose COUNT a worker only counts the input tokens. Raises InvalidRequest or NotFound with
        nothing stored, or Unavailable with nothing that will run.
        """
        is_count = purpose is Purpose.COUNT
        request = await self._validation.parse(body, generate=generate and not is_count)
        hashable_body = self._hashable_body(body.value, request)
        idempotency_key = parse_idempotency_key(
            headers, {"counted": hashable_body} if is_count else hashable_body
        )
        context = _RequestContext(
            new_uuid(),
            headers.get("traceparent"),
            idempotency_key,
            unstored_ids,
            generate,
            purpose,
        )
        accepted = None
        while accepted is None:
            accepted = await self._join_earlier(
                project, request, context
            ) or await self._insert_new(project, request, context)
        return accepted

    def _hashable_body(self, body: Any, request: CreateRequest) -> Any:
        """The body, by which equal requests are recognised, with credentials as a fingerprint."""
        if not request.credentials:
            return body
        tools = [
            {**tool, **dict.fromkeys(CREDENTIAL_FIELDS)} if tool["type"] == "mcp" else tool
            for tool in body["tools"]
        ]
        return {
            **body,
            "tools": tools,
            "credentials": self._sealer.fingerprint(request.credentials),
        }

    async def _join_earlier(
        self, project: UUID, request: CreateRequest, context: _RequestContext
    ) -> AcceptedResponse | None:
        """The response that this request made before, if it was sent before.

        Before the other checks: what the first request changed in a conversation would refuse the
        second.
        """
        if context.idempotency_key is None:
            return None
        earlier_id = await self._join_response.join(
            project, context.idempotency_key, context.waiter
        )
        if earlier_id is None:
            return None
        return AcceptedResponse(
            earlier_id,
            request,
            {},
            context.waiter,
            is_from_sdk=context.is_from_sdk,
            is_repeat=True,
            cache_hit=await self._was_cached(earlier_id) if request.cache else None,
        )

    async def _was_cached(self, existing_id: UUID) -> bool:
        """Whether the answer of an existing response is from the cache."""
        rows = await fetch_idempotent(self._pool, RESPONSE, {"id": existing_id})
        return any(row.cache_key is not None and row.cache_ttl is None for row in rows)

    async def _insert_new(
        self, project: UUID, request: CreateRequest, context: _RequestContext
    ) -> AcceptedResponse | None:
        """Checks the request against what it continues, and stores it.

        None: its conversation was changed meanwhile, or its idempotency key is held.
        """
        checked = await self._check(project, request, context)
        request, opening, precomputed = checked.request, checked.opening, checked.precomputed
        channel = self._bus.prepare(opening.id) if request.stream and precomputed is None else None
        new = self._new_response(project, context, checked)
        if await self._insert_response.insert(new) is None:
            return None
        # Before the enqueue, which lets a worker publish.
        known_events = None if channel is None else opening.known_events(channel)
        self._start(new.row, is_run=precomputed is None)
        return AcceptedResponse(
            opening.id,
            request,
            opening.response,
            context.waiter,
            is_from_sdk=context.is_from_sdk,
            cache_hit=None if request.cache is None else checked.lookup.answer is not None,
            final_object=None if precomputed is None else precomputed.response,
            known_events=known_events,
        )

    async def _check(
        self, project: UUID, request: CreateRequest, context: _RequestContext
    ) -> _CheckedRequest:
        """The request with what it continues, and its answer if that is known."""
        continuation = await load_continuation(self._pool, project, request, context.unstored_ids)
        request = await self._check_history(project, request, continuation)
        lookup = (
            await self._request_cache.lookup(project, request, continuation)
            if context.generate
            else WARM_UP
        )
        opening = Opening.of(request, self._clock.now())
        precomputed = None if lookup.answer is None else precompute(opening, lookup.answer)
        return _CheckedRequest(request, continuation, lookup, opening, precomputed)

    def _new_response(
        self, project: UUID, context: _RequestContext, checked: _CheckedRequest
    ) -> NewResponse:
        opening, precomputed = checked.opening, checked.precomputed
        key = context.idempotency_key
        row = NewRow(
            **_opening_values(opening),
            **_request_values(checked.request, context),
            **_continuation_values(checked.continuation),
            **self._sealed_values(opening.id, checked.request, is_run=precomputed is None),
            **_key_values(opening.id, key),
            project=project,
            cache_key=checked.lookup.key,
            cache_ttl=checked.lookup.ttl,
        )
        return NewResponse(row, key is not None and key.key is not None, precomputed)

    def _start(self, row: NewRow, *, is_run: bool) -> None:
        """Enqueues a response that was stored, if a worker has to run it."""
        RESPONSES_ACCEPTED.labels("background" if row.background else "foreground").inc()
        if is_run:
            self._job_queue.enqueue(row.id, queue_for(background=row.background, crashes=0))
        else:
            RESPONSES_ENDED.labels(Status.COMPLETED.value).inc()

    async def _check_history(
        self, project: UUID, request: CreateRequest, continuation: Continuation
    ) -> CreateRequest:
        """The request with its item references resolved.

        Raises InvalidRequest if its input does not fit what it continues.
        """
        continuation.require_new(request.input)
        items = await resolve_references(
            self._pool, project, request.input, self._settings.limits.body
        )
        if items is not request.input:
            request = replace(request, input=items)
        self._validation.require_readable(items, project)
        try:
            require_outputs(*drop_compacted(items, continuation.open_calls))
        except OutputWithoutCall as error:
            raise await explain_output(self._pool, continuation, error) from None
        await require_valid_approvals(self._pool, continuation, request)
        return request

    def _sealed_values(self, new_id: UUID, request: CreateRequest, *, is_run: bool) -> Values:
        """The credentials, sealed. Only a response that a worker runs needs them."""
        if not request.credentials or not is_run:
            return {}
        sealed = self._sealer.seal(new_id, request.credentials)
        return {"key_id": sealed.key_id, "sealed": sealed.sealed}


def _request_values(request: CreateRequest, context: _RequestContext) -> Values:
    return {
        "background": request.background,
        "store": request.store,
        "model": request.model,
        "parameters": orjson.dumps(stored_parameters(request.parameters, context.purpose)),
        "items": orjson.dumps(request.input),
        "waiter": context.waiter,
        "traceparent": context.traceparent,
    }


def _continuation_values(continuation: Continuation) -> Values:
    return {
        "previous": continuation.previous,
        "conversation": continuation.conversation,
        "revision": continuation.revision,
    }


def _opening_values(opening: Opening) -> Values:
    return {
        "id": opening.id,
        "created_at": opening.facts.created_at,
        "last": len(opening.frames) - 1,
        "frames": b"".join(opening.frames),
    }


def _key_values(new_id: UUID, key: IdempotencyKey | None) -> Values:
    if key is None:
        return {}
    return {
        "key": key.stored_key(new_id),
        "body_hash": key.body_hash,
        "key_seconds": int(key.ttl.total_seconds()),
    }
