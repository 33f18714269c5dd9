"""From a validated request to a committed row (design §4.1): I1 begins here.

One statement stores the row, its input and its opening events; then the bell is rung. A bell that nobody hears fails nothing. A
commit whose answer was lost is resolved before the client hears 503: nothing of it will run (I9).
"""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, LiteralString
from uuid import UUID

import orjson
import psycopg
import structlog

from models.config.routes import Routes
from models.config.settings import Settings
from models.db.database import DATABASE_UNAVAILABLE, Json, Pool, Row, fetch, fetch_on, read
from models.db.queries import statements
from models.db.tables import ONE_OPEN_PER_CONVERSATION
from models.egress import EgressPolicy
from models.errors import InvalidRequest, Unavailable
from models.ids import new_item_id, new_uuid, response_id
from models.lifecycle import Status
from models.ownership.lease import Lease
from models.redis.channels import queue_for
from models.redis.queue import JobQueue
from models.secrets import Sealed, Sealer
from models.wire.events import Event, ResponseCreated, ResponseQueued, frame
from models.wire.pairing import require_outputs
from models.wire.purpose import Purpose, stored_parameters
from models.wire.request import CreateRequest, parse_create
from models.wire.response import ResponseFacts, response_object
from web.counters import RESPONSES_ACCEPTED, RESPONSES_ENDED
from web.http.body import is_large
from web.responses.addresses import require_fetchable, require_reachable
from web.responses.answer_cache import WARM_UP, RequestCache
from web.responses.approvals import require_valid_approvals
from web.responses.compactions import drop_compacted, require_compactable, require_readable
from web.responses.continuation import conversation_locked, load_continuation
from web.responses.idempotency import IdempotencyKey, parse_idempotency_key
from web.responses.precomputed import PrecomputedResponse, precompute
from web.responses.references import resolve_references

logger = structlog.get_logger()

_CREDENTIAL_FIELDS = ("authorization", "headers", "server_url")
"""Fields of an `mcp` tool that are only ever stored sealed (models/wire/mcp.py)."""

Values = dict[str, object]
"""Of the statements that insert."""


@dataclass(frozen=True, slots=True)
class AcceptedResponse:
    """A response that is committed: whatever happens now, it will end."""

    id: UUID
    request: CreateRequest
    initial_object: dict[str, Any]
    """the Response object as of its creation"""
    is_repeat: bool = False
    """An earlier request that this one repeats made the response."""
    cache_hit: bool | None = None
    """Whether the answer is a remembered one; None: that was not asked for."""
    final_object: dict[str, Any] | None = None
    """The Response object of one that has ended already."""


@dataclass(frozen=True, slots=True)
class _RequestContext:
    """How a request came, besides what it says."""

    traceparent: str | None
    idempotency_key: IdempotencyKey | None
    unstored_ids: Collection[UUID]
    generate: bool
    purpose: Purpose


class CreateResponse:
    """Accepts create requests."""

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        job_queue: JobQueue,
        lease: Lease,
        request_cache: RequestCache,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._request_cache = request_cache
        self._job_queue = job_queue
        self._lease = lease
        self._routes = Routes(settings)
        self._egress = EgressPolicy(settings.egress)
        self._sealer = Sealer(settings.sealing_keys)
        self._unclear_deletions: set[asyncio.Task[None]] = set()

    async def create(
        self,
        project: UUID,
        body: Any,
        headers: Mapping[str, str],
        *,
        unstored_ids: Collection[UUID] = (),
        generate: bool = True,
        purpose: Purpose = Purpose.ANSWER,
    ) -> AcceptedResponse:
        """Checks, stores and rings; a request that was accepted before gets the first one's response.

        `remembered`: unstored responses that this client may go on from all the same. Without `generate` the model is not asked: the
        response ends with nothing said (docs/websocket.md). With the purpose COUNT only its tokens are counted. Raises
        InvalidRequest with nothing written, or Unavailable with nothing that will run.
        """
        is_count = purpose is Purpose.COUNT
        parse = partial(
            parse_create,
            body,
            new_id=new_item_id,
            passthrough=self._passthrough(body),
            ephemeral_background=self._settings.web.ephemeral_background,
            has_web_search=self._settings.web_search.provider is not None,
            generate=generate and not is_count,
            native=self._is_native(body),
        )
        request = await asyncio.to_thread(parse) if is_large(headers) else parse()
        self._require_routed(request.model)
        require_fetchable(self._egress, request.input)
        require_reachable(self._egress, request)
        self._require_sealable(request)
        require_compactable(request, self._sealer)
        hashable_body = self._hashable_body(body, request)
        idempotency_key = parse_idempotency_key(
            headers, {"counted": hashable_body} if is_count else hashable_body
        )
        context = _RequestContext(
            headers.get("traceparent"), idempotency_key, unstored_ids, generate, purpose
        )
        accepted = None
        while accepted is None:
            accepted = await self._find_earlier(
                project, request, idempotency_key
            ) or await self._insert_new(project, request, context)
        return accepted

    async def _find_earlier(
        self, project: UUID, request: CreateRequest, idempotency_key: IdempotencyKey | None
    ) -> AcceptedResponse | None:
        """In a conversation the response that this request has made before is looked for first: it has changed the conversation, and what
        was right then would be refused now."""
        if request.conversation is None or idempotency_key is None or idempotency_key.replaces:
            return None
        rows = await read(
            self._pool,
            statements.FIND_IDEMPOTENCY_KEY,
            {"project": project, "key": idempotency_key.key},
        )
        return (
            await self._as_repeat(_matched_response_id(rows[0], idempotency_key), request)
            if rows
            else None
        )

    async def _as_repeat(self, existing_id: UUID, request: CreateRequest) -> AcceptedResponse:
        return AcceptedResponse(
            existing_id,
            request,
            {},
            is_repeat=True,
            cache_hit=await self._was_cached(existing_id) if request.cache else None,
        )

    async def _insert_new(
        self, project: UUID, request: CreateRequest, context: _RequestContext
    ) -> AcceptedResponse | None:
        """Checks the request against what it goes on from, and stores it there. None: its conversation has moved on meanwhile."""
        continuation = await load_continuation(self._pool, project, request, context.unstored_ids)
        continuation.require_new(request.input)
        request = replace(
            request,
            input=await resolve_references(
                self._pool, project, request.input, self._settings.limits.body
            ),
        )
        require_readable(request.input, self._sealer, project)
        require_outputs(*drop_compacted(request.input, continuation.open_calls))
        await require_valid_approvals(self._pool, continuation, request)
        new_id = new_uuid()
        sealed = self._seal_credentials(new_id, request)
        lookup = (
            await self._request_cache.lookup(project, request, continuation)
            if context.generate
            else WARM_UP
        )
        facts = ResponseFacts(
            id=response_id(new_id),
            created_at=int(time.time()),
            status=(Status.QUEUED if request.background else Status.IN_PROGRESS).value,
            model=request.model,
            parameters=request.parameters,
            background=request.background,
            store=request.store,
            previous_response_id=request.previous_response_id,
            conversation_id=request.conversation,
        )
        initial_object = response_object(facts, [])
        events: list[Event] = (
            [ResponseCreated(initial_object), ResponseQueued(initial_object)]
            if request.background
            else [ResponseCreated(initial_object)]
        )
        precomputed = (
            precompute(new_id, facts, lookup.answer, first=len(events))
            if lookup.answer is not None
            else None
        )
        sealed = sealed if precomputed is None else None
        stored_id = await self._store(
            {
                "id": new_id, "project": project, "background": request.background, "store": request.store, "streamed": request.stream,
                "model": request.model, "parameters": Json(stored_parameters(request.parameters, context.purpose)), "created_at": facts.created_at,
                "previous": continuation.previous, "conversation": continuation.conversation, "revision": continuation.revision,
                "retention": self._settings.retention, "queue_wait": self._settings.limits.queue_wait,
                "web": self._lease.id, "traceparent": context.traceparent, "key_id": sealed and sealed.key_id,
                "sealed": sealed and sealed.sealed, "items": orjson.dumps(request.input).decode(),
                "last": len(events) - 1, "frames": b"".join(frame(event, number) for number, event in enumerate(events)),
                "cache_key": lookup.key, "cache_ttl": lookup.ttl,
            },
            context.idempotency_key,
            precomputed,
        )  # fmt: skip
        if stored_id is None:
            return None
        if stored_id != new_id:
            return await self._as_repeat(stored_id, request)
        RESPONSES_ACCEPTED.labels("background" if request.background else "foreground").inc()
        cached = None if request.cache is None else lookup.answer is not None
        if precomputed is not None:
            RESPONSES_ENDED.labels(Status.COMPLETED.value).inc()
            return AcceptedResponse(
                new_id, request, initial_object, cache_hit=cached, final_object=precomputed.response
            )
        self._job_queue.enqueue(new_id, queue_for(background=request.background, deaths=0))
        return AcceptedResponse(new_id, request, initial_object, cache_hit=cached)

    async def _was_cached(self, existing_id: UUID) -> bool:
        """Whether the response that an earlier request made has a remembered answer."""
        rows = await read(self._pool, statements.RESPONSE, {"id": existing_id})
        return any(row["cache_key"] is not None and row["cache_ttl"] is None for row in rows)

    def _passthrough(self, body: Any) -> frozenset[str]:
        """What the upstreams of the wanted model take beyond the Responses API."""
        return self._routes.passthrough(_model_name(body))

    def _is_native(self, body: Any) -> bool:
        """Whether the upstream that is asked first speaks the Responses API."""
        return any(
            found.upstream.api == "responses" for found in self._routes.find(_model_name(body))[:1]
        )

    def _require_routed(self, model: str) -> None:
        """Refuses a model that no route leads to; where none are configured, its upstream is asked (design §11)."""
        if not self._routes.find(model):
            raise InvalidRequest(
                f"The requested model '{model}' does not exist.",
                param="model",
                code="model_not_found",
            )

    def _require_sealable(self, request: CreateRequest) -> None:
        """Refuses what the client entrusts us with where no key is configured to seal it with."""
        if request.credentials and not self._sealer.has_key:
            place = next(
                index
                for index, tool in enumerate(request.parameters["tools"])
                if tool["type"] == "mcp"
            )
            message = "Tools of the type 'mcp' are not supported by this server: it has no key to seal their credentials with."
            raise InvalidRequest(message, param=f"tools[{place}]", code="unsupported_parameter")

    def _seal_credentials(self, new_id: UUID, request: CreateRequest) -> Sealed | None:
        """What the client entrusts us with, as it may be stored."""
        return self._sealer.seal(new_id, request.credentials) if request.credentials else None

    def _hashable_body(self, body: Any, request: CreateRequest) -> Any:
        """What makes this request equal to another: the body, with a fingerprint in the place of what nobody may guess from its hash."""
        if not request.credentials:
            return body
        tools = [
            {**tool, **dict.fromkeys(_CREDENTIAL_FIELDS)} if tool["type"] == "mcp" else tool
            for tool in body["tools"]
        ]
        return {
            **body,
            "tools": tools,
            "credentials": self._sealer.fingerprint(request.credentials),
        }

    async def _store(
        self,
        values: Values,
        idempotency_key: IdempotencyKey | None,
        precomputed: PrecomputedResponse | None,
    ) -> UUID | None:
        """Stores the row, finished where there is nothing to run; returns its id, or that of the response an equal request made before.
        None: its conversation has moved on.

        Without an answer the identical row is sent once more: either it is new, or it is there already. Only then is it voided.
        """
        new_id = values["id"]
        assert isinstance(new_id, UUID)
        try:
            return await self._insert(new_id, values, idempotency_key, precomputed)
        except DATABASE_UNAVAILABLE as error:
            logger.warning("create_unclear", response=str(new_id), error=str(error).strip())
        try:
            await self._pool.check()
            return await self._insert(
                new_id, values, idempotency_key, precomputed, pool_timeout=1.0
            ) or await self._find_inserted(new_id)
        except psycopg.errors.UniqueViolation:
            return new_id
        except DATABASE_UNAVAILABLE as error:
            project = values["project"]
            assert isinstance(project, UUID)
            self._lease.unresolved_creates[new_id] = project
            deletion = asyncio.create_task(self._delete_unclear_create(new_id, project))
            self._unclear_deletions.add(deletion)
            deletion.add_done_callback(self._unclear_deletions.discard)
            await asyncio.wait({deletion}, timeout=1)
            raise Unavailable from error

    async def _insert(
        self,
        new_id: UUID,
        values: Values,
        idempotency_key: IdempotencyKey | None,
        precomputed: PrecomputedResponse | None,
        pool_timeout: float | None = None,
    ) -> UUID | None:
        if values["conversation"] is not None:
            return await self._insert_in_conversation(
                new_id, values, idempotency_key, precomputed, pool_timeout
            )
        if idempotency_key is None:
            await self._execute_insert(statements.INSERT, values, precomputed, pool_timeout)
            return new_id
        keyed_values = values | idempotency_key.sql_values()
        while not await self._execute_insert(
            statements.INSERT_WITH_KEY, keyed_values, precomputed, pool_timeout
        ):
            for holder in await read(self._pool, statements.IDEMPOTENCY_KEY_HOLDER, keyed_values):
                return _matched_response_id(holder, idempotency_key)
        return new_id

    async def _insert_in_conversation(
        self,
        new_id: UUID,
        values: Values,
        idempotency_key: IdempotencyKey | None,
        precomputed: PrecomputedResponse | None,
        pool_timeout: float | None,
    ) -> UUID | None:
        try:
            if idempotency_key is None:
                joined = await self._execute_insert(
                    statements.INSERT_IN_CONVERSATION, values, precomputed, pool_timeout
                )
            else:
                joined = await self._execute_insert(
                    statements.INSERT_IN_CONVERSATION_WITH_KEY,
                    values | idempotency_key.sql_values(),
                    precomputed,
                    pool_timeout,
                )
        except psycopg.errors.UniqueViolation as error:
            if error.diag.constraint_name == ONE_OPEN_PER_CONVERSATION:
                raise conversation_locked() from None
            raise
        return new_id if joined else None

    async def _find_inserted(self, new_id: UUID) -> UUID | None:
        """In a conversation a create that was done before does not come into its own way: the conversation has moved on by it."""
        return new_id if await fetch(self._pool, statements.RESPONSE, {"id": new_id}) else None

    async def _execute_insert(
        self,
        insert: LiteralString,
        values: Values,
        precomputed: PrecomputedResponse | None,
        pool_timeout: float | None,
    ) -> list[Row]:
        if precomputed is None:
            return await fetch(self._pool, insert, values, pool_timeout)
        async with (
            self._pool.connection(timeout=pool_timeout) as connection,
            connection.transaction(),
        ):
            stored = await fetch_on(connection, insert, values)
            if stored:
                await fetch_on(connection, statements.COMPLETE_PRECOMPUTED, precomputed.values)
            return stored

    async def _delete_unclear_create(self, unclear_id: UUID, project: UUID) -> None:
        """Makes sure that a create whose outcome is unknown never runs; goes on after the 503 for as long as Postgres is away, unless
        the next heartbeat is quicker."""
        while unclear_id in self._lease.unresolved_creates:
            try:
                await fetch(
                    self._pool,
                    statements.DELETE_UNCLEAR_CREATE,
                    {"id": unclear_id, "project": project},
                )
                await fetch(self._pool, statements.DELETE_UNCLEAR_SECRETS, {"id": unclear_id})
            except DATABASE_UNAVAILABLE as error:
                logger.warning("void_unclear", response=str(unclear_id), error=str(error).strip())
                await asyncio.sleep(0.5)
            else:
                self._lease.unresolved_creates.pop(unclear_id, None)


def _model_name(body: Any) -> str:
    """The wanted model; empty when the body names none."""
    model = body.get("model") if isinstance(body, dict) else None
    return model if isinstance(model, str) else ""


def _matched_response_id(holder: Row, idempotency_key: IdempotencyKey) -> UUID:
    if bytes(holder["body_hash"]) != idempotency_key.body_hash:
        raise InvalidRequest(
            "This 'Idempotency-Key' was used before with another request body.",
            param="Idempotency-Key",
            code="idempotency_key_reused",
        )
    existing_id: UUID = holder["response_id"]
    return existing_id
