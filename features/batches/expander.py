"""The expansion of batches, by web processes, which check requests as for a POST.

A process reads the input of a batch from where it was read last, and makes a response of each line,
in groups: the responses of a group are stored, and the cursor is moved, in one transaction. So each
line becomes a response once, whatever dies. Only some lines of a batch are open at a time; the
others stay in the file.

Requests in batches: what they may have, and the responses that are made of those which workers
forward to upstreams (docs/batches.md).
"""

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

import msgspec
import orjson
import psycopg
import structlog

from features.batches import work
from features.batches.lines import (
    RESPONSES,
    InputLine,
    InvalidLine,
    LineRequest,
    group_lines,
    is_blank,
    parse_line,
    read_lines,
)
from features.batches.take_queries import (
    EXPANSION_IS_DUE,
    MOVE_EXPANSION,
    RELEASE_EXPANSION,
    SET_EXPANDED,
    TAKE_TO_EXPAND,
    ExpandedBatch,
)
from features.proxy.endpoints import ENDPOINTS, ProxiedEndpoint
from features.proxy.requests import RequestChecks, require_served_model, within_highest_tier
from models.celery.queue import JobQueue
from models.config.routes import Routes
from models.config.settings import Settings
from models.db.arrays import Ints, Texts, Uuids
from models.db.database import DATABASE_UNAVAILABLE, Pool, fetch, fetch_idempotent
from models.db.queries.api_keys import FIND_API_KEY_BY_ID, ApiKey
from models.db.queries.create import INSERT_WITH_OPTIONS, NewRow, insert_values
from models.due_work import DuePoll
from models.errors import (
    ApiError,
    IncorrectApiKey,
    InternalError,
    InvalidRequest,
    QuotaExceeded,
    RequestTooLarge,
    Unavailable,
)
from models.files.storage import FileStorage
from models.ids import batch_id, new_item_id, new_uuid
from models.lifecycle import Lane
from models.redis.channels import BACKGROUND
from models.redis.quota_counters import Demand
from models.windows import WindowTimes
from models.wire.json_input import BodyLimits
from models.wire.purpose import forward_parameters, request_item
from models.wire.request import CreateRequest, is_prewarm
from web.admission import limits_of_project
from web.counters import count_accepted
from web.hooks import Quotas
from web.http.auth import require_scope
from web.http.body import JsonBody, run_sized
from web.responses.create import CreateResponse
from web.responses.opening import Opening
from web.state import AppState

UNSTORED_SECONDS = 3 * 24 * 3600
"""So long after its end a response with `store: false` is kept at most, until its result is in the
output file."""
_ENDPOINTS: Final = {f"/v1{endpoint.path}": endpoint for endpoint in ENDPOINTS}


class PrepareForwarded:
    """Makes responses of requests that workers forward."""

    def __init__(self, state: AppState) -> None:
        self._state = state

    async def prepare_line(self, key: ApiKey, path: str, body: JsonBody, request_id: str) -> NewRow:
        """The response to the request in a line of a batch for the endpoint `path`, which the
        caller stores. It is checked as a POST is, without quotas. `request_id` is stored.

        Raises InvalidRequest, NotFound, ModelNotAllowed or UpstreamNotConfigured.
        """
        endpoint = _ENDPOINTS[path]
        routes = self._state.routes_of(key)
        model = await self._check(endpoint, routes, key, body)
        sent = within_highest_tier(endpoint, key, routes.find(model), body.value)
        request = CreateRequest(model, [], {}, background=True, store=False)
        opening = Opening.of(request, new_uuid(), self._state.lease.clock.now())
        item = await body.run(partial(request_item, new_item_id, sent))
        return NewRow(
            id=opening.id,
            project=key.project_id,
            background=True,
            store=False,
            model=model,
            parameters=orjson.dumps(forward_parameters(endpoint.path)),
            created_at=opening.facts.created_at,
            waiter=None,
            request_id=request_id,
            lane=Lane.BATCH,
            items=orjson.dumps([item]),
            last=len(opening.frames) - 1,
            frames=b"".join(opening.frames),
            api_key=key.id,
            kept_for=UNSTORED_SECONDS,
        )

    async def _check(
        self, endpoint: ProxiedEndpoint, routes: Routes, key: ApiKey, body: JsonBody
    ) -> str:
        """The model of the request."""
        if body.value.get("stream"):
            raise InvalidRequest(
                "A request in a batch cannot be streamed.",
                param="stream",
                code="unsupported_parameter",
            )
        named = body.value.get("model")
        model = require_served_model(endpoint, routes, key, named)
        egress = self._state.egress.of_project(key.policy.egress)
        checks = RequestChecks(endpoint, model, key, self._state.validation.account_ids, egress)
        await checks.check_body(body.value, body.size)
        return model


def batch_request(request: CreateRequest, body: Any) -> CreateRequest:
    """The request in this body as a batch runs it: in the background, without the cache. Raises
    InvalidRequest for one that is streamed, in a conversation, or without an answer."""
    if is_prewarm(body):
        raise InvalidRequest(
            "A request in a batch cannot only prepare a prompt cache: leave 'prewarm' out.",
            param="prompt_cache_options.prewarm",
            code="unsupported_parameter",
        )
    if request.stream:
        raise InvalidRequest(
            "A request in a batch cannot be streamed.", param="stream", code="unsupported_parameter"
        )
    if "background_options" in request.parameters:
        raise InvalidRequest(
            "A request in a batch has the batch's 'completion_window': leave "
            "'background_options' out.",
            param="background_options",
            code="unsupported_parameter",
        )
    if request.conversation is not None:
        raise InvalidRequest(
            "A request in a batch cannot be in a conversation. Send 'previous_response_id' or the "
            "history as 'input' instead.",
            param="conversation",
            code="unsupported_parameter",
        )
    return replace(request, background=True, cache=None)


logger = structlog.get_logger()

_PAUSE_OF_QUOTA: Final = timedelta(seconds=30)
_MAX_LINES = 100
"""Lines of a group."""
_ONE_TOKEN = Demand(requests=0, tokens=1)
"""What is asked for before a group: whether the project may use tokens at all."""


@dataclass(frozen=True, slots=True)
class _Expanded:
    """A line, and its response or why it was refused; neither for a blank line."""

    line: InputLine
    row: NewRow | None = None
    error: str | None = None
    """JSON"""


class Expander:
    """Makes responses of the lines of batches, in one web process."""

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        storage: FileStorage,
        create_response: CreateResponse,
        prepare_forwarded: PrepareForwarded,
        quotas: Quotas,
        job_queue: JobQueue,
    ) -> None:
        self._settings = settings
        self._limits = BodyLimits(
            settings.batches.line, settings.limits.text, settings.limits.values
        )
        self._pool = pool
        self._storage = storage
        self._create_response = create_response
        self._prepare_forwarded = prepare_forwarded
        self._quotas = quotas
        self._job_queue = job_queue

    async def run(self, poll: DuePoll) -> None:
        """Expands until it is cancelled. `poll`: finds due batches."""
        await work.work_on_batches(
            self._pool, TAKE_TO_EXPAND, RELEASE_EXPANSION, EXPANSION_IS_DUE, self._try, poll
        )

    async def _try(self, batch: ExpandedBatch) -> timedelta:
        try:
            has_more = await self._expand(batch)
        except QuotaExceeded:
            return _PAUSE_OF_QUOTA
        return work.NO_PAUSE if has_more else work.PAUSE

    async def _expand(self, batch: ExpandedBatch) -> bool:
        """Expands a slice of the lines, or as many as may be open; whether more can be expanded.
        Raises InputGone, QuotaExceeded, StorageError, Unavailable, and what DATABASE_UNAVAILABLE
        names."""
        if batch.crashes >= work.MAX_CRASHES:
            await work.fail(self._pool, batch.id, work.CRASHED)
            return False
        room = self._settings.batches.open - batch.open
        if room <= 0:
            return False
        found = batch.project_id, batch.input_file_id
        chunks = await work.read_input(self._pool, self._storage, *found, batch.expanded_bytes)
        keys = await fetch_idempotent(self._pool, FIND_API_KEY_BY_ID, {"id": batch.api_key_id})
        key = keys[0] if keys else None
        start, groups = batch.expanded_bytes, 0
        async with aclosing(chunks):
            read = read_lines(chunks, batch.expanded_lines, start, self._settings.batches.line)
            async for lines in group_lines(read, min(room, _MAX_LINES)):
                if key is not None:
                    await self._quotas.admit_if_limited(key, _ONE_TOKEN)
                group = [await self._make(batch, key, line) for line in lines]
                if not await self._store(batch, start, group):
                    return False
                start, groups = lines[-1].end, groups + 1
                room -= sum(not is_blank(line) for line in lines)
                if room < _MAX_LINES or groups == work.GROUPS_OF_A_SLICE:
                    return room >= _MAX_LINES
        return False

    async def _make(self, batch: ExpandedBatch, key: ApiKey | None, line: InputLine) -> _Expanded:
        """The response to a line, not stored yet. Raises Unavailable."""
        if is_blank(line):
            return _Expanded(line)
        try:
            return _Expanded(line, await self._new_row(batch, key, line))
        except (Unavailable, *DATABASE_UNAVAILABLE):
            raise
        except ApiError as error:
            return _Expanded(line, error=_refused(error))
        except Exception:
            logger.exception("line_failed", batch=batch_id(batch.id), line=line.number)
            return _Expanded(line, error=_refused(InternalError()))
        finally:
            # Requests of clients go first.
            await asyncio.sleep(0)

    async def _new_row(self, batch: ExpandedBatch, key: ApiKey | None, line: InputLine) -> NewRow:
        if key is None:
            raise IncorrectApiKey
        # Scopes can be changed while the batch runs.
        require_scope(key, reads=False)
        size = len(line.text or b"")
        limits = limits_of_project(self._limits, key.policy.limits)
        request = await run_sized(partial(_parse, line, batch.endpoint, limits), size)
        body = JsonBody(request.body, size)
        if batch.endpoint != RESPONSES:
            return await self._prepare_forwarded.prepare_line(
                key, batch.endpoint, body, batch_id(batch.id)
            )
        row = await self._create_response.prepare_row(key, body, batch_id(batch.id), batch_request)
        # From its end on: it may wait for longer than it would be kept from its creation on.
        retention = row.retention or int(self._settings.retention.total_seconds())
        kept_for = retention if row.store else UNSTORED_SECONDS
        return msgspec.structs.replace(row, lane=Lane.BATCH, kept_for=kept_for)

    async def _store(self, batch: ExpandedBatch, start: int, group: Sequence[_Expanded]) -> bool:
        """Stores the responses of lines that begin at the byte `start`, and enqueues them. False:
        another process has done it, or the batch is ending. If Postgres refuses to, each line is
        stored alone: one of them may be the cause."""
        try:
            return await self._store_together(batch, start, group)
        except DATABASE_UNAVAILABLE:
            raise
        except psycopg.Error:
            if len(group) == 1:
                line = group[0].line
                logger.exception("line_refused", batch=batch_id(batch.id), line=line.number)
                refused = _Expanded(line, error=_refused(InternalError()))
                return await self._store_together(batch, start, [refused])
        for single in group:
            if not await self._store(batch, start, [single]):
                return False
            start = single.line.end
        return True

    async def _store_together(
        self, batch: ExpandedBatch, start: int, group: Sequence[_Expanded]
    ) -> bool:
        last = group[-1].line
        made = [each for each in group if each.row is not None or each.error is not None]
        moved = {
            "id": batch.id,
            "from_byte": start,
            "to_line": last.number,
            "to_byte": last.end,
            "requests": len(made),
            "lease": work.LEASE,
        }
        expanded = {
            "id": batch.id,
            "lines": Ints([each.line.number for each in made]),
            "response_ids": Uuids([None if each.row is None else each.row.id for each in made]),
            "errors": Texts([each.error for each in made]),
        }
        rows = [each.row for each in made if each.row is not None]
        async with self._pool.connection() as connection, connection.transaction():
            if not await fetch(connection, MOVE_EXPANSION, moved):
                return False
            if rows:
                # No web process waits for them; each may wait in the queue as long as the batch.
                left = timedelta(seconds=max(0.0, batch.seconds_left)) + timedelta(hours=1)
                values = insert_values(
                    self._in_window(batch, rows),
                    None,
                    self._settings.retention,
                    left,
                    self._settings.line.continuation_lead,
                )
                await fetch(connection, INSERT_WITH_OPTIONS, values)
            await fetch(connection, SET_EXPANDED, expanded)
        for row in rows:
            count_accepted(background=True)
            self._job_queue.enqueue(row.id, BACKGROUND)
        return True

    def _in_window(self, batch: ExpandedBatch, rows: Sequence[NewRow]) -> list[NewRow]:
        """The rows with the window of the batch, whose end is that of all its lines."""
        margin = self._settings.line.window_margin
        window = WindowTimes.of(batch.seconds, margin, batch.seconds_left)
        return [
            msgspec.structs.replace(row, ends_in=window.ends_in, urgent_in=window.urgent_in)
            for row in rows
        ]


def _parse(line: InputLine, endpoint: str, limits: BodyLimits) -> LineRequest:
    """The request in a line. It was checked before, perhaps with other limits: those of the project
    are judged here, as for a POST, so that they fail a line and not the batch. Raises
    RequestTooLarge and InvalidRequest."""
    if line.text is None or len(line.text) > limits.size:
        raise RequestTooLarge(f"{limits.size} bytes")
    try:
        return parse_line(line.text, endpoint, limits)
    except InvalidLine as fault:
        if isinstance(fault.__cause__, RequestTooLarge):
            raise fault.__cause__ from None
        raise InvalidRequest(fault.message, param=fault.param, code=fault.code) from fault


def _refused(error: ApiError) -> str:
    return orjson.dumps({"status": error.status, "body": error.body()}).decode()
