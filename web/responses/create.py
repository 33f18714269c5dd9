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
from models.db.database import AWAY, Json, Pool, Row, fetch, fetch_on, read
from models.db.queries import statements
from models.db.tables import ONE_AT_A_TIME
from models.egress import Egress
from models.errors import InvalidRequest, Unavailable
from models.ids import new_item_id, new_uuid, response_id
from models.lifecycle import Status
from models.ownership.lease import Lease
from models.redis.channels import queue_for
from models.redis.queue import Bell
from models.secrets import Sealed, Sealer
from models.wire.counting import COUNTED
from models.wire.events import Event, ResponseCreated, ResponseQueued, frame
from models.wire.pairing import require_pairs
from models.wire.request import CreateRequest, parse_create
from models.wire.response import ResponseFacts, response_object
from web.counters import ACCEPTED, ENDED
from web.http.body import is_large
from web.responses.addresses import require_fetchable, require_reachable
from web.responses.answer_cache import NOTHING_SAID, Caching
from web.responses.approvals import require_requests
from web.responses.compactions import require_compactable, require_readable, still_told
from web.responses.continuation import locked, past_of
from web.responses.idempotency import Retryable, retryable
from web.responses.precomputed import Finished, finished
from web.responses.references import with_referred

logger = structlog.get_logger()

_ENTRUSTED = ("authorization", "headers", "server_url")
"""Fields of an `mcp` tool that are only ever stored sealed (models/wire/mcp.py)."""

Values = dict[str, object]
"""Of the statements that insert."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A response that is committed: whatever happens now, it will end."""

    id: UUID
    request: CreateRequest
    opening: dict[str, Any]
    """the Response object as of its creation"""
    repeated: bool = False
    """An earlier request that this one repeats made the response."""
    cached: bool | None = None
    """Whether the answer is a remembered one; None: that was not asked for."""
    ended: dict[str, Any] | None = None
    """The Response object of one that has ended already."""


@dataclass(frozen=True, slots=True)
class _Arrival:
    """How a request came, besides what it says."""

    traceparent: str | None
    again: Retryable | None
    remembered: Collection[UUID]
    generate: bool


class Intake:
    """Accepts create requests."""

    def __init__(
        self, settings: Settings, pool: Pool, bell: Bell, lease: Lease, caching: Caching
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._caching = caching
        self._bell = bell
        self._lease = lease
        self._routes = Routes(settings)
        self._egress = Egress(settings.egress)
        self._sealer = Sealer(settings.sealing_keys)
        self._voiding: set[asyncio.Task[None]] = set()

    async def accept(
        self,
        project: UUID,
        body: Any,
        headers: Mapping[str, str],
        *,
        remembered: Collection[UUID] = (),
        generate: bool = True,
        counted: bool = False,
    ) -> Accepted:
        """Checks, stores and rings; a request that was accepted before gets the first one's response.

        `remembered`: unstored responses that this client may go on from all the same. Without `generate` the model is not asked: the
        response ends with nothing said (docs/websocket.md). `counted`: only its tokens are counted (models/wire/counting.py). Raises
        InvalidRequest with nothing written, or Unavailable with nothing that will run.
        """
        parse = partial(
            parse_create,
            body,
            new_id=new_item_id,
            passthrough=self._passthrough(body),
            ephemeral_background=self._settings.web.ephemeral_background,
            searches=self._settings.web_search.provider is not None,
            generate=generate and not counted,
            native=self._is_native(body),
        )
        request = await asyncio.to_thread(parse) if is_large(headers) else parse()
        if counted:
            request = replace(request, parameters={**request.parameters, COUNTED: True})
        self._require_routed(request.model)
        require_fetchable(self._egress, request.input)
        require_reachable(self._egress, request)
        self._require_sealable(request)
        require_compactable(request, self._sealer)
        known = self._recognisable(body, request)
        again = retryable(headers, {"counted": known} if counted else known)
        arrival = _Arrival(headers.get("traceparent"), again, remembered, generate)
        accepted = None
        while accepted is None:
            accepted = await self._earlier(project, request, again) or await self._placed(
                project, request, arrival
            )
        return accepted

    async def _earlier(
        self, project: UUID, request: CreateRequest, again: Retryable | None
    ) -> Accepted | None:
        """In a conversation the response that this request has made before is looked for first: it has changed the conversation, and what
        was right then would be refused now."""
        if request.conversation is None or again is None or again.replaces:
            return None
        found = await read(
            self._pool, statements.KEY_STANDS, {"project": project, "key": again.key}
        )
        return await self._repeated(_same_request(found[0], again), request) if found else None

    async def _repeated(self, stored: UUID, request: CreateRequest) -> Accepted:
        return Accepted(
            stored,
            request,
            {},
            repeated=True,
            cached=await self._was_cached(stored) if request.cache else None,
        )

    async def _placed(
        self, project: UUID, request: CreateRequest, arrival: _Arrival
    ) -> Accepted | None:
        """Checks the request against what it goes on from, and stores it there. None: its conversation has moved on meanwhile."""
        past = await past_of(self._pool, project, request, arrival.remembered)
        past.require_new(request.input)
        request = replace(
            request,
            input=await with_referred(
                self._pool, project, request.input, self._settings.limits.body
            ),
        )
        require_readable(request.input, self._sealer, project)
        require_pairs(*still_told(request.input, past.open_calls))
        await require_requests(self._pool, past, request)
        accepted_id = new_uuid()
        sealed = self._sealed(accepted_id, request)
        look = (
            await self._caching.look(project, request, past) if arrival.generate else NOTHING_SAID
        )
        facts = ResponseFacts(
            id=response_id(accepted_id),
            created_at=int(time.time()),
            status=(Status.QUEUED if request.background else Status.IN_PROGRESS).value,
            model=request.model,
            parameters=request.parameters,
            background=request.background,
            store=request.store,
            previous_response_id=request.previous_response_id,
            conversation_id=request.conversation,
        )
        opening = response_object(facts, [])
        events: list[Event] = (
            [ResponseCreated(opening), ResponseQueued(opening)]
            if request.background
            else [ResponseCreated(opening)]
        )
        whole = (
            finished(accepted_id, facts, look.answer, first=len(events))
            if look.answer is not None
            else None
        )
        sealed = sealed if whole is None else None
        stored = await self._store(
            {
                "id": accepted_id, "project": project, "background": request.background, "store": request.store, "streamed": request.stream,
                "model": request.model, "parameters": Json(request.parameters), "created_at": facts.created_at,
                "previous": past.previous, "conversation": past.conversation, "revision": past.revision,
                "retention": self._settings.retention, "queue_wait": self._settings.limits.queue_wait,
                "web": self._lease.id, "traceparent": arrival.traceparent, "key_id": sealed and sealed.key_id,
                "sealed": sealed and sealed.sealed, "items": orjson.dumps(request.input).decode(),
                "last": len(events) - 1, "frames": b"".join(frame(event, number) for number, event in enumerate(events)),
                "cache_key": look.key, "cache_ttl": look.ttl,
            },
            arrival.again,
            whole,
        )  # fmt: skip
        if stored is None:
            return None
        if stored != accepted_id:
            return await self._repeated(stored, request)
        ACCEPTED.labels("background" if request.background else "foreground").inc()
        cached = None if request.cache is None else look.answer is not None
        if whole is not None:
            ENDED.labels(Status.COMPLETED.value).inc()
            return Accepted(accepted_id, request, opening, cached=cached, ended=whole.response)
        self._bell.ring(accepted_id, queue_for(background=request.background, deaths=0))
        return Accepted(accepted_id, request, opening, cached=cached)

    async def _was_cached(self, stored: UUID) -> bool:
        """Whether the response that an earlier request made has a remembered answer."""
        rows = await read(self._pool, statements.RESPONSE, {"id": stored})
        return any(row["cache_key"] is not None and row["cache_ttl"] is None for row in rows)

    def _passthrough(self, body: Any) -> frozenset[str]:
        """What the upstreams of the wanted model take beyond the Responses API."""
        return self._routes.passthrough(_model(body))

    def _is_native(self, body: Any) -> bool:
        """Whether the upstream that is asked first speaks the Responses API."""
        return any(
            found.upstream.api == "responses" for found in self._routes.find(_model(body))[:1]
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

    def _sealed(self, accepted_id: UUID, request: CreateRequest) -> Sealed | None:
        """What the client entrusts us with, as it may be stored."""
        return self._sealer.seal(accepted_id, request.credentials) if request.credentials else None

    def _recognisable(self, body: Any, request: CreateRequest) -> Any:
        """What makes this request equal to another: the body, with a fingerprint in the place of what nobody may guess from its hash."""
        if not request.credentials:
            return body
        tools = [
            {**tool, **dict.fromkeys(_ENTRUSTED)} if tool["type"] == "mcp" else tool
            for tool in body["tools"]
        ]
        return {
            **body,
            "tools": tools,
            "credentials": self._sealer.fingerprint(request.credentials),
        }

    async def _store(
        self, values: Values, again: Retryable | None, whole: Finished | None
    ) -> UUID | None:
        """Stores the row, finished where there is nothing to run; returns its id, or that of the response an equal request made before.
        None: its conversation has moved on.

        Without an answer the identical row is sent once more: either it is new, or it is there already. Only then is it voided.
        """
        accepted_id = values["id"]
        assert isinstance(accepted_id, UUID)
        try:
            return await self._insert(accepted_id, values, again, whole)
        except AWAY as error:
            logger.warning("create_unclear", response=str(accepted_id), error=str(error).strip())
        try:
            await self._pool.check()
            return await self._insert(
                accepted_id, values, again, whole, within=1.0
            ) or await self._if_there(accepted_id)
        except psycopg.errors.UniqueViolation:
            return accepted_id
        except AWAY as error:
            project = values["project"]
            assert isinstance(project, UUID)
            self._lease.doubts[accepted_id] = project
            voiding = asyncio.create_task(self._void(accepted_id, project))
            self._voiding.add(voiding)
            voiding.add_done_callback(self._voiding.discard)
            await asyncio.wait({voiding}, timeout=1)
            raise Unavailable from error

    async def _insert(
        self,
        accepted_id: UUID,
        values: Values,
        again: Retryable | None,
        whole: Finished | None,
        within: float | None = None,
    ) -> UUID | None:
        if values["conversation"] is not None:
            return await self._join(accepted_id, values, again, whole, within)
        if again is None:
            await self._write(statements.INSERT, values, whole, within)
            return accepted_id
        kept = values | again.row()
        while not await self._write(statements.INSERT_ONCE, kept, whole, within):
            for holder in await read(self._pool, statements.KEY_HOLDER, kept):
                return _same_request(holder, again)
        return accepted_id

    async def _join(
        self,
        accepted_id: UUID,
        values: Values,
        again: Retryable | None,
        whole: Finished | None,
        within: float | None,
    ) -> UUID | None:
        try:
            if again is None:
                joined = await self._write(statements.JOIN, values, whole, within)
            else:
                joined = await self._write(
                    statements.JOIN_ONCE, values | again.row(), whole, within
                )
        except psycopg.errors.UniqueViolation as error:
            if error.diag.constraint_name == ONE_AT_A_TIME:
                raise locked() from None
            raise
        return accepted_id if joined else None

    async def _if_there(self, accepted_id: UUID) -> UUID | None:
        """In a conversation a create that was done before does not come into its own way: the conversation has moved on by it."""
        return (
            accepted_id
            if await fetch(self._pool, statements.RESPONSE, {"id": accepted_id})
            else None
        )

    async def _write(
        self, insert: LiteralString, values: Values, whole: Finished | None, within: float | None
    ) -> list[Row]:
        if whole is None:
            return await fetch(self._pool, insert, values, within)
        async with self._pool.connection(timeout=within) as connection, connection.transaction():
            stored = await fetch_on(connection, insert, values)
            if stored:
                await fetch_on(connection, statements.FINISH, whole.values)
            return stored

    async def _void(self, doubted: UUID, project: UUID) -> None:
        """Makes sure that a create whose outcome is unknown never runs; goes on after the 503 for as long as Postgres is away, unless
        the next heartbeat is quicker."""
        while doubted in self._lease.doubts:
            try:
                await fetch(self._pool, statements.VOID, {"id": doubted, "project": project})
                await fetch(self._pool, statements.WIPE_VOIDED, {"id": doubted})
            except AWAY as error:
                logger.warning("void_unclear", response=str(doubted), error=str(error).strip())
                await asyncio.sleep(0.5)
            else:
                self._lease.doubts.pop(doubted, None)


def _model(body: Any) -> str:
    """The wanted model; empty when the body names none."""
    model = body.get("model") if isinstance(body, dict) else None
    return model if isinstance(model, str) else ""


def _same_request(holder: Row, again: Retryable) -> UUID:
    if bytes(holder["body_hash"]) != again.body_hash:
        raise InvalidRequest(
            "This 'Idempotency-Key' was used before with another request body.",
            param="Idempotency-Key",
            code="idempotency_key_reused",
        )
    found: UUID = holder["response_id"]
    return found
