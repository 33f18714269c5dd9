"""The collection of a batch: results become lines of its output file and its error file.

In groups: a group's lines are written as one new part of each file. Then one transaction makes
these parts the next ones and deletes the lines. So the result of each line is in one of the files
once, whatever dies: a part that got no number is no content, and the purge deletes it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import orjson

from features.batches import queries
from features.batches.take_queries import TakenBatch
from features.batches.work import GROUPS_OF_A_SLICE, LEASE, Outcome
from models.config.settings import Settings
from models.db.arrays import Ints, Uuids
from models.db.database import Pool, fetch
from models.files.content import FileGone, write_part
from models.files.response_images import ResponseImages
from models.files.storage import FileStorage
from models.ids import batch_id, new_uuid
from models.lifecycle import Status
from models.shown_responses import shown_object
from models.wire.events import in_one_line
from models.wire.purpose import answered_body

_ENDINGS: Final = {
    "expired": (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    "cancelled": (
        "batch_cancelled",
        "The batch was cancelled before this request was executed.",
    ),
    "failed": ("batch_failed", "The batch failed before this request was executed."),
}
"""Terminal status of a batch -> code and message of its requests that were not executed."""
_DELETED: Final = ("response_deleted", "The response was deleted before the batch had ended.")
_CANCELLED: Final = ("response_cancelled", "The response to this request was cancelled.")
_ERROR_TYPES = {
    401: "authentication_error",
    424: "external_connector_error",
    429: "rate_limit_error",
}


_TOKENS: Final = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


@dataclass(slots=True)
class Results:
    """Lines for the two files, and what they add to the counts of the batch."""

    output: list[bytes] = field(default_factory=list)
    error: list[bytes] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_TOKENS, 0))
    """as a batch counts them"""

    def add_usage(self, usage: dict[str, Any]) -> None:
        """Adds the tokens of one response."""
        cached = (usage.get("input_tokens_details") or {}).get("cached_tokens")
        reasoning = (usage.get("output_tokens_details") or {}).get("reasoning_tokens")
        self.tokens["input_tokens"] += usage.get("input_tokens") or 0
        self.tokens["output_tokens"] += usage.get("output_tokens") or 0
        self.tokens["cached_tokens"] += cached or 0
        self.tokens["reasoning_tokens"] += reasoning or 0


def results_of(
    lines: Sequence[queries.ReadyLine],
    responses: Mapping[UUID, queries.EndedResponse],
    ending: str | None,
) -> Results:
    """The results of these lines. `responses`: those that the lines name, without deleted ones;
    `ending`: the terminal status that the batch will have, if it is not `completed`. Too slow for
    an event loop."""
    results = Results()
    for line in lines:
        _add(results, line, responses, ending)
    return results


def _add(
    results: Results,
    line: queries.ReadyLine,
    responses: Mapping[UUID, queries.EndedResponse],
    ending: str | None,
) -> None:
    if line.error is not None:
        status, body = line.error["status"], line.error["body"]
        results.error.append(answered_line(new_uuid(), line.custom_id, status, body))
        return
    if line.response_id is None:
        results.error.append(unanswered_line(new_uuid(), line.custom_id, *_ENDINGS[ending or ""]))
        return
    response = responses.get(line.response_id)
    if response is None:
        results.error.append(unanswered_line(line.response_id, line.custom_id, *_DELETED))
        return
    results.add_usage(response.usage or {})
    if response.status in (Status.COMPLETED, Status.INCOMPLETE):
        items = response.items or []
        body = answered_body(items) or shown_object(response, items)
        results.output.append(answered_line(response.id, line.custom_id, 200, body))
    elif response.status == Status.CANCELLED:
        reason = _CANCELLED if ending is None else _ENDINGS[ending]
        results.error.append(unanswered_line(response.id, line.custom_id, *reason))
    else:
        results.error.append(_failed(response, line.custom_id))


def _failed(response: queries.EndedResponse, custom_id: str) -> bytes:
    """The answer that a foreground request would have had."""
    error, failure = response.error or {}, response.failure or {}
    code = failure.get("code") or error.get("code")
    status = failure.get("status") or (429 if code == "rate_limit_exceeded" else 500)
    kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {
        "error": {
            "message": error.get("message") or "",
            "type": kind,
            "param": failure.get("param"),
            "code": code,
        }
    }
    return answered_line(response.id, custom_id, status, body)


def answered_line(request: UUID, custom_id: str, status: int, body: Any) -> bytes:
    """A line of the output or error file: the answer to a request. `request`: names it."""
    response = {"status_code": status, "request_id": f"req_{request.hex}", "body": body}
    return _line(request, custom_id, response, None)


def unanswered_line(request: UUID, custom_id: str, code: str, message: str) -> bytes:
    """A line of the error file: the request has no answer."""
    return _line(request, custom_id, None, {"code": code, "message": message})


def _line(request: UUID, custom_id: str, response: Any, error: Any) -> bytes:
    line = {
        "id": f"batch_req_{request.hex}",
        "custom_id": custom_id,
        "response": response,
        "error": error,
    }
    return in_one_line(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))


_MAX_LINES = 200
_MAX_BYTES = 4 * 1024 * 1024
"""Of results that are read and written together; a larger one alone."""
_WORTH_A_PART = 100
"""Fewer lines wait for others, for `_LONGEST_WAIT` seconds: each group makes a part."""
_LONGEST_WAIT = 5.0
_OPEN_AFTER: Final = timedelta(days=30)
"""So long after its time is over the files of a batch can be written."""
_CHUNK = 256 * 1024


class _Collected(Exception):
    """Another worker has collected some of the lines."""


class Collection:
    """Writes the results of batches."""

    def __init__(self, settings: Settings, pool: Pool, storage: FileStorage) -> None:
        # While half of those that may be open wait to be written, few run.
        self._worth_a_part = min(_WORTH_A_PART, -(-settings.batches.open // 2))
        self._upload_time = settings.files.upload_time
        self._retention = settings.files.batch_retention
        self._pool = pool
        self._storage = storage
        self._waiting_since: dict[UUID, float] = {}
        """Batches with a few results that wait for others."""

    async def collect(self, batch: TakenBatch) -> Outcome:
        """Writes a slice of what can be written. Raises StorageError, what DATABASE_UNAVAILABLE
        names, and UniqueViolation if another worker does the same."""
        files = _Files(batch)
        left, groups = batch.left, 0
        lines = await self._lines(batch)
        while lines and self._is_worth_it(batch, len(lines), left):
            if groups == GROUPS_OF_A_SLICE:
                return Outcome.MORE
            try:
                await self._write(batch, files, lines)
            except (_Collected, FileGone):
                return Outcome.WAITS
            left, groups = left - len(lines), groups + 1
            lines = await self._lines(batch)
        return Outcome.WAITS if left > 0 else Outcome.COMPLETE

    async def _lines(self, batch: TakenBatch) -> list[queries.ReadyLine]:
        """The next lines whose results can be written: not many, and not large ones together."""
        values = {"id": batch.id, "rows": _MAX_LINES}
        lines = await fetch(self._pool, queries.READY_LINES, values)
        if not lines and batch.ending is not None:
            lines = await fetch(self._pool, queries.UNEXPANDED_LINES, values)
        size, count = 0, 0
        for line in lines:
            size += line.size
            if count and size > _MAX_BYTES:
                break
            count += 1
        return lines[:count]

    def _is_worth_it(self, batch: TakenBatch, ready: int, left: int) -> bool:
        now = time.monotonic()
        since = self._waiting_since.setdefault(batch.id, now)
        if (
            ready < min(self._worth_a_part, left)
            and now - since < _LONGEST_WAIT
            and batch.ending is None
        ):
            return False
        del self._waiting_since[batch.id]
        return True

    async def _write(
        self, batch: TakenBatch, files: "_Files", lines: list[queries.ReadyLine]
    ) -> None:
        ids = [line.response_id for line in lines if line.response_id is not None]
        rows = await fetch(self._pool, queries.ENDED_RESPONSES, {"ids": Uuids(ids)}) if ids else []
        images = ResponseImages(self._pool, self._storage)
        responses = {
            row.id: replace(row, items=await images.filled(batch.project_id, row.items or ()))
            for row in rows
        }
        results = await asyncio.to_thread(results_of, lines, responses, batch.ending)
        parts: dict[str, UUID] = {}
        for kind, texts in (("output", results.output), ("error", results.error)):
            if texts:
                file = files.ids[kind] or await self._make_file(batch, files, kind)
                written = await write_part(
                    self._pool,
                    self._storage,
                    file,
                    _chunks(texts),
                    number=None,
                    upload_time=self._upload_time,
                )
                parts[kind] = written.id
        await self._store(batch, files, parts, results, lines)

    async def _store(
        self,
        batch: TakenBatch,
        files: "_Files",
        parts: dict[str, UUID],
        results: Results,
        lines: Sequence[queries.ReadyLine],
    ) -> None:
        """Makes the parts content and the lines collected, both or nothing."""
        values: dict[str, object] = {
            "id": batch.id,
            "lines": Ints([line.line for line in lines]),
            "completed": len(results.output),
            "failed": len(results.error),
            **results.tokens,
            "output_parts": files.parts["output"],
            "error_parts": files.parts["error"],
            "new_output_parts": int("output" in parts),
            "new_error_parts": int("error" in parts),
            "lease": LEASE,
        }
        async with self._pool.connection() as connection, connection.transaction():
            for kind, part in parts.items():
                numbered = {"part": part, "number": files.parts[kind] + 1}
                if not await fetch(connection, queries.NUMBER_PART, numbered):
                    raise _Collected
            if await fetch(connection, queries.COLLECT, values) != [len(lines)]:
                raise _Collected
        for kind in parts:
            files.parts[kind] += 1

    async def _make_file(self, batch: TakenBatch, files: "_Files", kind: str) -> UUID:
        file = new_uuid()
        values = {
            "id": batch.id,
            "file": file,
            "filename": f"{batch_id(batch.id)}_{kind}.jsonl",
            "lifetime": batch.output_lifetime or self._retention,
            "open_until": batch.expires_at + _OPEN_AFTER,
        }
        if not await fetch(self._pool, queries.SET_OUTPUT_FILE[kind], values):
            raise _Collected
        files.ids[kind] = file
        return file


class _Files:
    """The two files of a batch: their ids, and how many parts they have."""

    def __init__(self, batch: TakenBatch) -> None:
        self.ids: dict[str, UUID | None] = {
            "output": batch.output_file_id,
            "error": batch.error_file_id,
        }
        self.parts = {"output": batch.output_parts, "error": batch.error_parts}


async def _chunks(texts: Sequence[bytes]) -> AsyncIterator[bytes]:
    whole = b"".join(texts)
    for start in range(0, len(whole), _CHUNK):
        yield whole[start : start + _CHUNK]
