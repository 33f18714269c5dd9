"""From a create request to a committed response. Once it is committed, it will end (I1).

One statement stores the row, its input and its opening events; then the response is enqueued. The
message may be lost: the sweep of every worker enqueues waiting responses again.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
import orjson

from models import logs
from models.config.settings import WEB_SEARCH_VARIABLE
from models.db.queries.api_keys import ApiKey
from models.db.queries.create import NewRow
from models.errors import InvalidRequest
from models.ids import new_uuid, response_id
from models.projects.policy import ZERO_RETENTION_SECONDS
from models.projects.quotas import Limits, estimate_tokens
from models.redis.quota_counters import Demand
from models.secrets import Sealed, Sealer
from models.tracing.spans import well_formed_traceparent
from models.windows import placement_of
from models.wire.json_input import inline_size
from models.wire.mcp import CREDENTIAL_FIELDS
from models.wire.purpose import Purpose, stored_parameters
from models.wire.request import CreateRequest
from models.wire.response import RETRY_OF, STOP
from web.hooks import Hooks
from web.http.body import JsonBody
from web.idempotency.keys import IdempotencyKey, JoinResponse, parse_idempotency_key
from web.responses.insert import InsertResponse, NewResponse
from web.responses.prepare import PreparedRequest, PrepareRequest
from web.stream.bus import Bus
from web.stream.reader import KnownEvents


@dataclass(frozen=True, slots=True)
class AcceptedResponse:
    """A committed response, and the request that made it."""

    id: UUID
    request: CreateRequest
    """without what is stored: input, credentials, and most parameters. A client may wait for hours,
    and its process must not keep all that for so long."""
    initial_object: dict[str, Any]
    """the Response object at its creation, if that is the answer"""
    waiter: UUID
    """the connection that waits for the answer: when it ends, it cancels a foreground response"""
    project: UUID
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
    on_stream_end: Callable[[], None] | None = None
    """To be called at the end of the stream of its events, where a quota limits them."""


@dataclass(frozen=True, slots=True)
class CreateOptions:
    """What the route of a create decides."""

    request_id: str | None = None
    """stored with the response"""
    generate: bool = True
    """False for a warm-up, which ends without output (docs/websocket.md)"""
    purpose: Purpose = Purpose.ANSWER
    """COUNT: a worker only counts the input tokens"""
    unstored_ids: Collection[UUID] = ()
    """responses with `store: false` that this client may continue all the same"""
    is_socket: bool = False
    """The request comes over a WebSocket."""
    retry_of: UUID | None = None
    """the response that it runs again (features/retry/)"""
    stop: tuple[str, ...] = ()
    """texts before which the model stops (models/wire/response.py, `STOP`)"""
    takes_steers: bool = False
    """Its input begins with the pending steers of what it continues (ADR 0075)."""

    @property
    def calls_model(self) -> bool:
        """The response costs tokens."""
        return self.generate and self.purpose is not Purpose.COUNT


@dataclass(frozen=True, slots=True)
class _RequestContext:
    """What belongs to a create besides its body."""

    key: ApiKey
    body: JsonBody
    new_id: UUID
    """of the response, if one is made"""
    waiter: UUID
    traceparent: str | None
    idempotency_key: IdempotencyKey | None
    options: CreateOptions

    @property
    def project(self) -> UUID:
        """The project of the request's key."""
        return self.key.project_id

    @property
    def is_from_sdk(self) -> bool:
        """An SDK sent the request without a key."""
        return self.idempotency_key is not None and self.idempotency_key.key is None


class CreateResponse:
    """Accepts create requests."""

    def __init__(
        self,
        prepare_request: PrepareRequest,
        join_response: JoinResponse,
        insert_response: InsertResponse,
        sealer: Sealer,
        bus: Bus,
        hooks: Hooks,
        window_margin: float,
    ) -> None:
        """`window_margin`: the setting (models/config/groups.py)."""
        self._window_margin = window_margin
        self._hooks = hooks
        self._prepare_request = prepare_request
        self._validation = prepare_request.validation
        self._join_response = join_response
        self._insert_response = insert_response
        self._sealer = sealer
        self._bus = bus

    async def create(
        self, key: ApiKey, body: JsonBody, headers: Mapping[str, str], options: CreateOptions
    ) -> AcceptedResponse:
        """Checks the request, stores the response and enqueues it; a repeated request gets the
        first one's response. Releases the body, which was admitted (web/admission.py).

        `key`: that of the request. Raises InvalidRequest, NotFound, ModelNotAllowed,
        UpstreamNotConfigured or QuotaExceeded with nothing stored, or Unavailable with nothing that
        will run.
        """
        try:
            return await self._create(key, body, headers, options)
        finally:
            body.release()

    async def prepare_row(
        self,
        key: ApiKey,
        body: JsonBody,
        request_id: str,
        adapt: Callable[[CreateRequest, Any], CreateRequest],
    ) -> NewRow:
        """The response to a request, which the caller stores: `create` without a client that waits,
        and without quotas.

        `adapt`: makes of the request, and the value of its body, the one that is stored.
        `request_id` is stored. Raises InvalidRequest, NotFound, ModelNotAllowed or
        UpstreamNotConfigured, and what `adapt` raises.
        """
        request = adapt(await self._validation.parse(body, key, generate=True), body.value)
        if request.waits:
            raise InvalidRequest(
                "Only the create of a response itself can make it wait. Leave it out.",
                param="wait_for_previous",
                code="unsupported_parameter",
            )
        options = CreateOptions(request_id)
        context = _RequestContext(key, body, new_uuid(), new_uuid(), None, None, options)
        prepared = await self._prepare_request.prepare(
            key, request, (), new_id=context.new_id, generate=True
        )
        return msgspec.structs.replace(self._new_row(context, prepared), waiter=None)

    async def _create(
        self, key: ApiKey, body: JsonBody, headers: Mapping[str, str], options: CreateOptions
    ) -> AcceptedResponse:
        is_count = options.purpose is Purpose.COUNT
        request = await self._validation.parse(
            body, key, generate=options.generate and not is_count
        )
        hashable_body = self._hashable_body(body.value, request)
        hashed = {"counted": hashable_body} if is_count else hashable_body
        if options.retry_of is not None:
            request = _with_retry_of(request, options.retry_of)
            hashed = {"retried": hashable_body, "retry_of": response_id(options.retry_of)}
        if options.stop:
            hashed = {"stopped": hashed, STOP: options.stop}
            request = replace(request, parameters={**request.parameters, STOP: options.stop})
        idempotency_key = await body.run(partial(parse_idempotency_key, headers, hashed))
        traceparent = well_formed_traceparent(headers.get("traceparent"))
        context = _RequestContext(
            key, body, new_uuid(), new_uuid(), traceparent, idempotency_key, options
        )
        accepted = await self._join_earlier(request, context)
        if accepted is None:
            accepted = await self._insert_within_quotas(request, context)
        if request.omitted_tools:
            fields = {
                "request": options.request_id,
                "response": response_id(accepted.id),
                "tools": request.omitted_tools,
                "setting": WEB_SEARCH_VARIABLE,
            }
            logs.write_line("tools_omitted", fields)
        return accepted

    async def _insert_within_quotas(
        self, request: CreateRequest, context: _RequestContext
    ) -> AcceptedResponse:
        """Raises QuotaExceeded."""
        limits = context.body.limits
        if limits is None:
            return await self._insert_or_join(request, context)
        demand = await _demand_of(request, context, limits)
        async with self._hooks.quotas.admitted(context.project, limits, demand) as admission:
            accepted = await self._insert_or_join(request, context)
        if accepted.is_repeat or accepted.final_object is not None:
            admission.settle()
        return replace(accepted, on_stream_end=admission.end_connection)

    async def _insert_or_join(
        self, request: CreateRequest, context: _RequestContext
    ) -> AcceptedResponse:
        accepted = None
        while accepted is None:
            accepted = await self._insert_new(request, context) or await self._join_earlier(
                request, context
            )
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
        self, request: CreateRequest, context: _RequestContext
    ) -> AcceptedResponse | None:
        """The response that this request made before, if it was sent before.

        Before the other checks: what the first request changed in a conversation would refuse the
        second.
        """
        if context.idempotency_key is None:
            return None
        earlier_id = await self._join_response.join(
            context.project, context.idempotency_key, context.waiter
        )
        if earlier_id is None:
            return None
        return AcceptedResponse(
            earlier_id,
            _without_content(request),
            {},
            context.waiter,
            context.project,
            is_from_sdk=context.is_from_sdk,
            is_repeat=True,
            cache_hit=await self._join_response.was_cached(earlier_id) if request.cache else None,
        )

    async def _insert_new(
        self, request: CreateRequest, context: _RequestContext
    ) -> AcceptedResponse | None:
        """Checks the request against what it continues, and stores it.

        None: its conversation was changed meanwhile, its idempotency key is held, or another create
        has taken the pending steers.
        """
        prepared = await self._prepare_request.prepare(
            context.key,
            request,
            context.options.unstored_ids,
            new_id=context.new_id,
            generate=context.options.generate,
            takes_steers=context.options.takes_steers and context.options.generate,
        )
        request, opening, precomputed = prepared.request, prepared.opening, prepared.precomputed
        has_reader = request.stream and precomputed is None
        key = context.idempotency_key
        new = NewResponse(
            self._new_row(context, prepared),
            has_client_key=key is not None and key.key is not None,
            is_streamed=request.stream,
            channel=self._bus.prepare(opening.id) if has_reader else None,
            precomputed=precomputed,
            pause=context.body.pause,
            waits=prepared.continuation.waits,
            retry_of=context.options.retry_of,
            steers=prepared.steers,
        )
        if await self._insert_response.insert(new) is None:
            return None
        is_answer = request.background and not request.stream
        return AcceptedResponse(
            opening.id,
            _without_content(request),
            opening.response if is_answer else {},
            context.waiter,
            context.project,
            is_from_sdk=context.is_from_sdk,
            cache_hit=None if request.cache is None else prepared.lookup.answer is not None,
            final_object=None if precomputed is None else precomputed.response,
            known_events=new.known_events,
        )

    def _new_row(self, context: _RequestContext, prepared: PreparedRequest) -> NewRow:
        request, opening, key = prepared.request, prepared.opening, context.idempotency_key
        continuation, precomputed = prepared.continuation, prepared.precomputed
        policy = context.key.policy
        sealed = self._seal(opening.id, request, is_run=precomputed is None)
        placement = placement_of(request.parameters, self._window_margin)
        window = placement.window
        return NewRow(
            id=opening.id,
            project=context.project,
            background=request.background,
            store=request.store,
            model=request.model,
            parameters=orjson.dumps(stored_parameters(request.parameters, context.options.purpose)),
            previous=continuation.previous,
            conversation=continuation.conversation,
            revision=continuation.revision,
            created_at=opening.facts.created_at,
            waiter=context.waiter,
            traceparent=context.traceparent,
            request_id=context.options.request_id,
            cache_key=prepared.lookup.key,
            cache_ttl=prepared.lookup.ttl,
            lane=placement.lane,
            items=orjson.dumps(request.input),
            last=len(opening.frames) - 1,
            frames=b"".join(opening.frames),
            key_id=None if sealed is None else sealed.key_id,
            sealed=None if sealed is None else sealed.sealed,
            key=None if key is None else key.stored_key(opening.id),
            body_hash=None if key is None else key.body_hash,
            key_seconds=None if key is None else int(key.ttl.total_seconds()),
            api_key=context.key.id,
            retention=None if policy.retention is None else int(policy.retention.total_seconds()),
            kept_for=ZERO_RETENTION_SECONDS if policy.zero_retention else None,
            ends_in=None if window is None else window.ends_in,
            urgent_in=None if window is None else window.urgent_in,
            continuation=placement.continuation,
        )

    def _seal(self, new_id: UUID, request: CreateRequest, *, is_run: bool) -> Sealed | None:
        """The credentials, sealed. Only a response that a worker runs needs them."""
        if not request.credentials or not is_run:
            return None
        return self._sealer.seal(new_id, request.credentials)


async def _demand_of(request: CreateRequest, context: _RequestContext, limits: Limits) -> Demand:
    """What the request asks for of its project's quotas."""
    tokens, body = 0, context.body
    if context.options.calls_model:
        tokens = await estimated_tokens(body, request.parameters.get("max_output_tokens"), limits)
    return Demand(
        response=context.new_id,
        tokens=tokens,
        bytes=body.size if request.store else 0,
        open_streams=int(request.stream and not context.options.is_socket),
    )


async def estimated_tokens(body: JsonBody, max_output: int | None, limits: Limits) -> int:
    """What is reserved of these quotas for the tokens of a create that calls the model."""
    if not limits.use_tokens:
        return 0
    inline = await body.run(partial(inline_size, body.value))
    return estimate_tokens(body.size - inline, max_output, limits)


def _with_retry_of(request: CreateRequest, retried: UUID) -> CreateRequest:
    """The request, whose Response names the one that it runs again."""
    return replace(request, parameters={**request.parameters, RETRY_OF: response_id(retried)})


def _without_content(request: CreateRequest) -> CreateRequest:
    parameters = {
        name: value for name, value in request.parameters.items() if name == "stream_options"
    }
    return replace(request, input=[], credentials={}, parameters=parameters)
