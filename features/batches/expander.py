"""The expansion of batches, by web processes, which check requests as for a POST.

A process reads the input of a batch from where it was read last, and makes a response of each line,
in groups: the responses of a group are stored, and the cursor is moved, in one transaction. So each
line becomes a response once, whatever dies. Only some lines of a batch are open at a time; the
others stay in the file.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Final

import msgspec
import orjson
import psycopg
import structlog

from features.batches.forwarded import UNSTORED_SECONDS, PrepareForwarded, batch_request
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
from features.batches.queries import FAIL_BATCH, MOVE_EXPANSION, SET_EXPANDED
from features.batches.turn_queries import RELEASE_EXPANSION, TAKE_TO_EXPAND, ExpandedBatch
from features.batches.work import (
    CRASHED,
    GROUPS_OF_A_SLICE,
    LEASE,
    MAX_CRASHES,
    NO_PAUSE,
    PAUSE,
    work_on_batches,
)
from models.celery.queue import JobQueue
from models.config.settings import Settings
from models.db.arrays import Ints, Texts, Uuids
from models.db.database import DATABASE_UNAVAILABLE, Json, Pool, fetch, fetch_idempotent
from models.db.queries.api_keys import FIND_API_KEY_BY_ID, ApiKey
from models.db.queries.create import INSERT, NewRow, insert_values
from models.db.queries.files import FILE_PARTS, FIND_INPUT
from models.errors import (
    ApiError,
    IncorrectApiKey,
    InternalError,
    InvalidRequest,
    QuotaExceeded,
    RequestTooLarge,
    Unavailable,
)
from models.files.content import read_content
from models.files.storage import FileStorage
from models.ids import batch_id
from models.lifecycle import Lane
from models.redis.channels import BACKGROUND
from models.redis.quota_counters import Demand
from models.wire.json_input import BodyLimits
from web.admission import limits_of_project
from web.counters import count_accepted
from web.hooks import Quotas
from web.http.auth import require_scope
from web.http.body import JsonBody, run_sized
from web.responses.create import CreateResponse

logger = structlog.get_logger()

_PAUSE_OF_QUOTA: Final = timedelta(seconds=30)
_MAX_LINES = 100
"""Lines of a group."""
_ONE_TOKEN = Demand(requests=0, tokens=1)
"""What is asked for before a group: whether the project may use tokens at all."""


@dataclass(slots=True)
class _Group:
    """What was made of some lines."""

    start: int
    """the byte at which they begin"""
    lines: list[InputLine]
    numbers: list[int] = field(default_factory=list)
    """of those with a request"""
    rows: list[NewRow | None] = field(default_factory=list)
    """for each number the response; None: the request was refused"""
    errors: list[str | None] = field(default_factory=list)
    """for each number why it was refused, as JSON"""


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

    async def run(self) -> None:
        """Expands until it is cancelled."""
        await work_on_batches(self._pool, TAKE_TO_EXPAND, RELEASE_EXPANSION, self._try)

    async def _try(self, batch: ExpandedBatch) -> timedelta:
        try:
            has_more = await self._expand(batch)
        except QuotaExceeded:
            return _PAUSE_OF_QUOTA
        return NO_PAUSE if has_more else PAUSE

    async def _expand(self, batch: ExpandedBatch) -> bool:
        """Expands a slice of the lines, or as many as may be open; whether more can be expanded.
        Raises QuotaExceeded, StorageError, Unavailable, and what DATABASE_UNAVAILABLE names."""
        if batch.crashes >= MAX_CRASHES:
            await self._fail(batch, CRASHED)
            return False
        room = self._settings.batches.open - batch.open
        chunks = await self._content(batch) if room > 0 else None
        if chunks is None:
            return False
        keys = await fetch_idempotent(self._pool, FIND_API_KEY_BY_ID, {"id": batch.api_key_id})
        key = keys[0] if keys else None
        start, groups = batch.expanded_bytes, 0
        async with aclosing(chunks):
            read = read_lines(chunks, batch.expanded_lines, start, self._settings.batches.line)
            async for lines in group_lines(read, min(room, _MAX_LINES)):
                if key is not None:
                    await self._quotas.admit_if_limited(key, _ONE_TOKEN)
                group = await self._make(batch, key, start, lines)
                if not await self._store(batch, group):
                    return False
                start, groups = lines[-1].end, groups + 1
                room -= len(group.numbers)
                if room < _MAX_LINES or groups == GROUPS_OF_A_SLICE:
                    return room >= _MAX_LINES
        return False

    async def _content(self, batch: ExpandedBatch) -> AsyncGenerator[bytes, None] | None:
        """The input from the cursor on. None: the file is gone, so the batch fails."""
        values = {"id": batch.input_file_id, "project": batch.project_id}
        if not await fetch_idempotent(self._pool, FIND_INPUT, values):
            error = InvalidLine(
                "input_file_not_found",
                "The input file was deleted, or has expired, before all of it was read.",
                "input_file_id",
            )
            await self._fail(batch, error.at(None))
            return None
        parts = await fetch_idempotent(self._pool, FILE_PARTS, {"id": batch.input_file_id})
        return read_content(self._storage, parts, batch.expanded_bytes)

    async def _fail(self, batch: ExpandedBatch, error: Mapping[str, object]) -> None:
        await fetch(self._pool, FAIL_BATCH, {"id": batch.id, "errors": Json([error])})

    async def _make(
        self, batch: ExpandedBatch, key: ApiKey | None, start: int, lines: list[InputLine]
    ) -> _Group:
        """The responses to these lines, not stored yet. Raises Unavailable."""
        group = _Group(start, lines)
        for line in lines:
            if is_blank(line):
                continue
            row, refusal = None, None
            try:
                row = await self._new_row(batch, key, line)
            except Unavailable:
                raise
            except ApiError as error:
                refusal = error
            except DATABASE_UNAVAILABLE:
                raise
            except Exception:
                logger.exception("line_failed", batch=batch_id(batch.id), line=line.number)
                refusal = InternalError()
            group.numbers.append(line.number)
            group.rows.append(row)
            group.errors.append(None if refusal is None else _refused(refusal))
            # Requests of clients go first.
            await asyncio.sleep(0)
        return group

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

    async def _store(self, batch: ExpandedBatch, group: _Group) -> bool:
        """Stores the responses and enqueues them. False: another process has done it, or the batch
        is ending. If Postgres refuses to, each line is stored alone: one of them may be the
        cause."""
        try:
            return await self._store_together(batch, group)
        except DATABASE_UNAVAILABLE:
            raise
        except psycopg.Error:
            if len(group.lines) == 1:
                logger.exception("line_refused", batch=batch_id(batch.id), line=group.numbers[0])
                group.rows, group.errors = [None], [_refused(InternalError())]
                return await self._store_together(batch, group)
        for single in _singles(group):
            if not await self._store(batch, single):
                return False
        return True

    async def _store_together(self, batch: ExpandedBatch, group: _Group) -> bool:
        last = group.lines[-1]
        moved = {
            "id": batch.id,
            "from_byte": group.start,
            "to_line": last.number,
            "to_byte": last.end,
            "requests": len(group.numbers),
            "lease": LEASE,
        }
        expanded = {
            "id": batch.id,
            "lines": Ints(group.numbers),
            "response_ids": Uuids([None if row is None else row.id for row in group.rows]),
            "errors": Texts(group.errors),
        }
        rows = [row for row in group.rows if row is not None]
        async with self._pool.connection() as connection, connection.transaction():
            if not await fetch(connection, MOVE_EXPANSION, moved):
                return False
            if rows:
                await fetch(connection, INSERT, self._values(batch, rows))
            await fetch(connection, SET_EXPANDED, expanded)
        for row in rows:
            count_accepted(background=True)
            self._job_queue.enqueue(row.id, BACKGROUND)
        return True

    def _values(self, batch: ExpandedBatch, rows: Sequence[NewRow]) -> dict[str, object]:
        """No web process waits for them; each may wait in the queue as long as the batch may."""
        queue_wait = timedelta(seconds=max(0.0, batch.seconds_left)) + timedelta(hours=1)
        return insert_values(rows, None, self._settings.retention, queue_wait)


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


def _singles(group: _Group) -> list[_Group]:
    """A group for each line."""
    made = dict(zip(group.numbers, zip(group.rows, group.errors, strict=True), strict=True))
    singles = []
    start = group.start
    for line in group.lines:
        single = _Group(start, [line])
        if line.number in made:
            row, error = made[line.number]
            single.numbers, single.rows, single.errors = [line.number], [row], [error]
        singles.append(single)
        start = line.end
    return singles
