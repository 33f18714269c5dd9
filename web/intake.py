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

from models import statements
from models.bell import Bell
from models.channels import queue_for
from models.database import AWAY, Json, Pool, Row, fetch, fetch_on, read
from models.egress import Egress, Refused
from models.errors import InvalidRequest, Unavailable
from models.ids import new_item_id, new_uuid, parse_response_id, response_id
from models.lease import Lease
from models.lifecycle import NEXT, Status
from models.secrets import NoKey, Sealed, Sealer
from models.settings import Settings
from models.upstreams import Routes
from models.wire.events import Event, Item, ResponseCreated, ResponseQueued, frame
from models.wire.items import file_places, references, resolved
from models.wire.pairing import require_pairs
from models.wire.request import CreateRequest, parse_create
from models.wire.response import ResponseFacts, response_object
from web.approvals import require_requests
from web.caching import NOTHING_SAID, Caching
from web.counters import ACCEPTED, ENDED
from web.finished import Finished, finished
from web.idempotency import Retryable, retryable

logger = structlog.get_logger()

_ENTRUSTED = ("authorization", "headers", "server_url")
"""Fields of an `mcp` tool that are only ever stored sealed (models/wire/mcp.py)."""

_LARGE = 256 * 1024
"""Bytes of a body from which it is checked beside the event loop: a million items take ten seconds, and the lease is no longer than that."""


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


class Intake:
    """Accepts create requests."""

    def __init__(self, settings: Settings, pool: Pool, bell: Bell, lease: Lease, caching: Caching) -> None:
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
        self, project: UUID, body: Any, headers: Mapping[str, str], *, remembered: Collection[UUID] = (), generate: bool = True
    ) -> Accepted:
        """Checks, stores and rings; a request that was accepted before gets the first one's response.

        `remembered`: unstored responses that this client may go on from all the same. Without `generate` the model is not asked: the
        response ends with nothing said (docs/websocket.md). Raises InvalidRequest with nothing written, or Unavailable with nothing that will run.
        """
        parse = partial(
            parse_create,
            body,
            new_id=new_item_id,
            passthrough=self._passthrough(body),
            ephemeral_background=self._settings.web.ephemeral_background,
            searches=self._settings.web_search.provider is not None,
            generate=generate,
            native=self._is_native(body),
        )
        request = await asyncio.to_thread(parse) if _is_large(headers) else parse()
        self._require_routed(request.model)
        self._require_fetchable(request.input)
        self._require_reachable(request)
        previous, open_calls = await self._previous(project, request.previous_response_id, remembered)
        request = await self._resolved(project, request)
        require_pairs(request.input, open_calls)
        await require_requests(self._pool, previous, request)
        accepted_id = new_uuid()
        sealed = self._sealed(accepted_id, request)
        look = await self._caching.look(project, request, previous) if generate else NOTHING_SAID
        again = retryable(headers, self._recognisable(body, request))
        facts = ResponseFacts(
            id=response_id(accepted_id),
            created_at=int(time.time()),
            status=(Status.QUEUED if request.background else Status.IN_PROGRESS).value,
            model=request.model,
            parameters=request.parameters,
            background=request.background,
            store=request.store,
            previous_response_id=request.previous_response_id,
        )
        opening = response_object(facts, [])
        events: list[Event] = [ResponseCreated(opening), ResponseQueued(opening)] if request.background else [ResponseCreated(opening)]
        whole = finished(accepted_id, facts, look.answer, first=len(events)) if look.answer is not None else None
        sealed = sealed if whole is None else None
        stored = await self._store(
            {
                "id": accepted_id, "project": project, "background": request.background, "store": request.store, "streamed": request.stream,
                "model": request.model, "parameters": Json(request.parameters), "previous": previous, "created_at": facts.created_at,
                "retention": self._settings.retention, "queue_wait": self._settings.limits.queue_wait,
                "web": self._lease.id, "traceparent": headers.get("traceparent"), "key_id": sealed and sealed.key_id,
                "sealed": sealed and sealed.sealed, "items": orjson.dumps(request.input).decode(),
                "last": len(events) - 1, "frames": b"".join(frame(event, number) for number, event in enumerate(events)),
                "cache_key": look.key, "cache_ttl": look.ttl,
            },
            again,
            whole,
        )  # fmt: skip
        if stored != accepted_id:
            return Accepted(stored, request, opening, repeated=True, cached=await self._was_cached(stored) if request.cache else None)
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
        return any(found.upstream.api == "responses" for found in self._routes.find(_model(body))[:1])

    def _require_routed(self, model: str) -> None:
        """Refuses a model that no route leads to; where none are configured, its upstream is asked (design §11)."""
        if not self._routes.find(model):
            raise InvalidRequest(f"The requested model '{model}' does not exist.", param="model", code="model_not_found")

    def _sealed(self, accepted_id: UUID, request: CreateRequest) -> Sealed | None:
        """What the client entrusts us with, as it may be stored. Raises InvalidRequest where no key is configured to seal it with."""
        if not request.credentials:
            return None
        try:
            return self._sealer.seal(accepted_id, request.credentials)
        except NoKey:
            place = next(index for index, tool in enumerate(request.parameters["tools"]) if tool["type"] == "mcp")
            message = "Tools of the type 'mcp' are not supported by this server: it has no key to seal their credentials with."
            raise InvalidRequest(message, param=f"tools[{place}]", code="unsupported_parameter") from None

    def _recognisable(self, body: Any, request: CreateRequest) -> Any:
        """What makes this request equal to another: the body, with a fingerprint in the place of what nobody may guess from its hash."""
        if not request.credentials:
            return body
        tools = [{**tool, **dict.fromkeys(_ENTRUSTED)} if tool["type"] == "mcp" else tool for tool in body["tools"]]
        return {**body, "tools": tools, "credentials": self._sealer.fingerprint(request.credentials)}

    async def _previous(self, project: UUID, named: str | None, remembered: Collection[UUID]) -> tuple[UUID | None, list[str]]:
        """The response to go on from, and the calls it left open (design §11, chaining)."""
        if named is None:
            return None, []
        previous = parse_response_id(named)
        values = {"id": previous, "project": project, "remembered": previous in remembered}
        found = await read(self._pool, statements.PREVIOUS, values) if previous is not None else []
        if not found:
            raise InvalidRequest(
                f"Previous response with id '{named}' not found.", param="previous_response_id", code="previous_response_not_found"
            )
        if Status(found[0]["status"]) in NEXT:
            raise InvalidRequest(
                f"Previous response with id '{named}' has not finished yet.",
                param="previous_response_id",
                code="previous_response_not_ready",
            )
        return previous, found[0]["unanswered_calls"]

    def _require_fetchable(self, items: list[Item]) -> None:
        """Refuses what the worker's guard would refuse by the address alone; what only the connection shows comes out in the run."""
        for place in file_places(items):
            try:
                self._egress.inspect(place.url)
            except Refused as refusal:
                where = place.named(place.item)
                raise InvalidRequest(f"Invalid '{where}': {refusal}.", param=where, code="invalid_value") from None

    def _require_reachable(self, request: CreateRequest) -> None:
        """As above for the addresses of MCP servers. The answer repeats nothing of an address, it may hold a key."""
        for index, tool in enumerate(request.parameters.get("tools", ())):
            if tool["type"] != "mcp":
                continue
            try:
                self._egress.inspect(request.credentials[tool["server_label"]]["server_url"])
            except Refused as refusal:
                where = f"tools[{index}].server_url"
                raise InvalidRequest(f"Invalid '{where}': {refusal}.", param=where, code="invalid_value") from None

    async def _resolved(self, project: UUID, request: CreateRequest) -> CreateRequest:
        """The request with what its item references mean in their place (contract §6.1)."""
        wanted = references(request.input)
        if not wanted:
            return request
        most = self._settings.limits.body
        rows = await read(self._pool, statements.REFERRED, {"ids": wanted, "project": project, "most": most})
        if any(row["payload"] is None for row in rows):
            message = f"The items that 'input' refers to are larger than {most} bytes together."
            raise InvalidRequest(message, param="input", code="input_too_large")
        return replace(request, input=resolved(request.input, {row["id"]: row["payload"] for row in rows}))

    async def _store(self, values: dict[str, object], again: Retryable | None, whole: Finished | None) -> UUID:
        """Stores the row, finished where there is nothing to run; returns its id, or that of the response an equal request made before.

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
            return await self._insert(accepted_id, values, again, whole, within=1.0)
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
        self, accepted_id: UUID, values: dict[str, object], again: Retryable | None, whole: Finished | None, within: float | None = None
    ) -> UUID:
        if again is None:
            await self._write(statements.INSERT, values, whole, within)
            return accepted_id
        kept = values | {"key": again.key, "body_hash": again.body_hash, "kept": again.kept, "replaces": again.replaces}
        while not await self._write(statements.INSERT_ONCE, kept, whole, within):
            for holder in await read(self._pool, statements.KEY_HOLDER, kept):
                return _same_request(holder, again)
        return accepted_id

    async def _write(self, insert: LiteralString, values: dict[str, object], whole: Finished | None, within: float | None) -> list[Row]:
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


def _is_large(headers: Mapping[str, str]) -> bool:
    announced = headers.get("content-length", "")
    return not announced.isdigit() or int(announced) > _LARGE


def _same_request(holder: Row, again: Retryable) -> UUID:
    if bytes(holder["body_hash"]) != again.body_hash:
        raise InvalidRequest(
            "This 'Idempotency-Key' was used before with another request body.", param="Idempotency-Key", code="idempotency_key_reused"
        )
    found: UUID = holder["response_id"]
    return found
