"""A GET of a running response folds only what is new, and never mixes what does not fit (I7)."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import orjson
import pytest

from models.db.database import fetch, fetch_idempotent
from models.db.queries import read, run
from models.db.queries.read import ShownResponseRow
from models.errors import Unavailable
from models.load.budget import Reservation, SharedBudget
from models.ownership.steps import Tail
from models.ownership.takeover import Claim
from models.wire.events import (
    Event,
    Item,
    ItemAdded,
    ItemDone,
    PartAdded,
    TextDelta,
    decode_frame,
    frame,
)
from tests.support.memory_limit import MIB
from tests.support.sql import run_sql
from tests.support.stack import Databases
from tests.support.worker_rows import DatabaseWorker, SeededDatabase, open_seeded_database, turn
from web.responses import running
from web.responses.running import RunningOutputs
from web.responses.shown import ShownResponse, ShownResponses

PART = {"type": "output_text", "text": "", "annotations": []}


@pytest.fixture
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    async with open_seeded_database(database_server, 4) as database:
        yield database


class Writer:
    """An attempt that writes a message word by word."""

    def __init__(self, worker: DatabaseWorker, claim: Claim) -> None:
        self.worker, self.claim, self.response = worker, claim, claim.id
        self.number = claim.log_end + 1
        """of the next event"""
        self.batch = 0
        self.tail: list[bytes] = []

    async def begin(self, item_id: str = "msg_1") -> None:
        """Opens a message."""
        message = {"id": item_id, "type": "message", "role": "assistant", "content": []}
        await self.journal(ItemAdded(0, message), PartAdded(item_id, 0, 0, PART))

    async def say(self, *words: str) -> None:
        """Journals one delta a word."""
        await self.journal(*(TextDelta("msg_1", 0, 0, word, []) for word in words))

    async def journal(self, *events: Event) -> None:
        """Journals these events as one batch."""
        self.batch += 1
        frames = [frame(event, self.number + n) for n, event in enumerate(events)]
        values = self._block(self.number, frames) | {"batch": self.batch}
        assert (await fetch(self.worker.pool, run.JOURNAL, values))[0].stored
        self.number += len(events)
        self.tail += frames

    async def flush(self) -> None:
        """Moves all that is journalled to the event log."""
        values = self._block(self.number - len(self.tail), self.tail)
        trim = {"trimmed": 0, "answered": self.batch}
        assert await fetch(self.worker.pool, run.FLUSH, values | trim)
        self.tail = []

    async def checkpoint(self, item: Item) -> None:
        """Stores the message as finished."""
        await self.journal(ItemDone(0, item))
        await self.flush()
        empty = Tail(self.number, self.number - 1, b"")
        await self.worker.ownership.checkpoint(self.claim, empty, turn([item], None))

    def _block(self, first: int, frames: list[bytes]) -> dict[str, object]:
        return {
            "me": self.worker.id,
            "ids": [self.response],
            "attempts": [self.claim.attempt],
            "firsts": [first],
            "lasts": [first + len(frames) - 1],
            "frames": [b"".join(frames)],
        }


async def _start(database: SeededDatabase, response: UUID | None = None) -> Writer:
    """Claims this response or a new one, and opens a message."""
    worker = await database.create_worker()
    claim = await worker.ownership.take(response or await database.create_response())
    assert claim is not None
    writer = Writer(worker, claim)
    await writer.begin()
    return writer


class Gets:
    """The GETs that one web process answers."""

    def __init__(self, database: SeededDatabase, max_bytes: int = 10_000_000) -> None:
        self.outputs = RunningOutputs(max_bytes)
        self._shown = ShownResponses(database.pool, self.outputs)
        self._project = database.project
        self.memory = SharedBudget("large answers", 10_000_000, 0)

    def _hold(self) -> Reservation:
        return self.memory.reserve("project", 0)

    async def shown(self, response: UUID) -> ShownResponse:
        """What a GET shows."""
        shown = await self._shown.body(self._project, response, hold=self._hold)
        assert shown is not None
        return shown

    async def text(self, response: UUID) -> str:
        """The text that a GET shows."""
        text: str = orjson.loads((await self.shown(response)).body)["output_text"]
        return text


async def test_each_event_is_decoded_once_for_any_number_of_gets(
    database: SeededDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded = []

    def decode(frame: bytes) -> dict[str, object]:
        decoded.append(frame)
        return decode_frame(frame)

    monkeypatch.setattr(running, "decode_frame", decode)
    monkeypatch.setitem(read.PAGE_LIMITS, "page", 2)
    gets, writer = Gets(database), await _start(database)
    words = []
    for number in range(10):
        words.append(f"{number} ")
        await writer.say(words[-1])
        if number % 3 == 0:
            await writer.flush()
        for _ in range(2):
            assert await gets.text(writer.response) == "".join(words)
    assert len(decoded) == len(set(decoded))
    assert len([frame for frame in decoded if b"output_text.delta" in frame]) == 10


async def test_a_later_attempt_that_uses_numbers_again_is_never_mixed_with_the_first(
    database: SeededDatabase,
) -> None:
    """PostgreSQL crashes, which empties the journal; then the worker that wrote it dies."""
    gets, writer = Gets(database), await _start(database)
    await writer.say("lost ", "words ")
    assert await gets.text(writer.response) == "lost words "
    await run_sql(database.pool, "DELETE FROM journal")
    await database.declare_dead(writer.worker)
    again = await _start(database, writer.response)
    assert again.number < writer.number
    await again.say("other ", "words, ", "and more")
    assert again.number > writer.number
    assert await gets.text(writer.response) == "other words, and more"


async def test_a_poll_of_a_deferred_response_says_when_it_is_tried_again(
    database: SeededDatabase,
) -> None:
    gets, response = Gets(database), await database.create_response()

    async def seconds() -> float:
        return int((await gets.shown(response)).headers["openai-poll-after-ms"]) / 1000

    assert await seconds() == 1
    change = "UPDATE responses SET {} WHERE id = '{}' RETURNING 1"
    for since, until, low, high in ((0, 30, 25, 30), (0, 900, 60, 60), (50, -5, 5, 6)):
        times = (
            f"created_at = now() - interval '{since} s', resume_at = now() + interval '{until} s'"
        )
        await run_sql(database.pool, change.format(times, response))
        assert low <= await seconds() <= high


async def test_a_finished_turn_is_shown_once(database: SeededDatabase) -> None:
    gets, writer = Gets(database), await _start(database)
    await writer.say("first")
    assert await gets.text(writer.response) == "first"
    done = {"id": "msg_1", "type": "message", "content": [PART | {"text": "first turn. "}]}
    await writer.checkpoint(done)
    assert await gets.text(writer.response) == "first turn. "
    await writer.begin("msg_2")
    await writer.say("second")
    assert await gets.text(writer.response) == "first turn. second"


async def test_without_reported_tokens_those_of_all_turns_are_estimated(
    database: SeededDatabase,
) -> None:
    gets, writer = Gets(database), await _start(database)

    async def tokens() -> tuple[int, int, int]:
        """Turns, output tokens, and how many of them are an estimate."""
        progress = orjson.loads((await gets.shown(writer.response)).body)["progress"]
        return progress["turns"], progress["output_tokens"], progress["estimated_output_tokens"]

    await writer.say("12345678")
    assert await tokens() == (0, 2, 2)
    done = {"id": "msg_1", "type": "message", "content": [PART | {"text": "12345678"}]}
    await writer.checkpoint(done)
    assert await tokens() == (1, 2, 2)
    await writer.begin("msg_2")
    await writer.say("1234")
    assert await tokens() == (1, 3, 3)
    reported = (
        "UPDATE responses SET usage = '{\"output_tokens\": 50}' WHERE id = %(id)s RETURNING 1"
    )
    await run_sql(database.pool, reported, {"id": writer.response})
    assert await tokens() == (1, 51, 1)


async def test_the_memory_for_folds_is_bounded(database: SeededDatabase) -> None:
    gets = Gets(database, max_bytes=20_000)
    writers = [await _start(database) for _ in range(6)]
    for length in (100, 1000, 10_000):
        for writer in writers:
            await writer.say("x" * length)
        for writer in writers:
            text = await gets.text(writer.response)
            assert text.endswith("x" * length)
            assert gets.outputs.size <= 20_000


async def test_a_large_output_is_read_when_there_is_memory_for_it(
    database: SeededDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[int] = []

    async def fetch_counted(*arguments: Any) -> list[ShownResponseRow]:
        rows: list[ShownResponseRow] = await fetch_idempotent(*arguments)
        received.extend(len(orjson.dumps(row.items)) for row in rows)
        return rows

    monkeypatch.setattr("web.responses.shown.fetch_idempotent", fetch_counted)
    gets, writer = Gets(database), await _start(database)
    large = "x" * 200_000
    done = {"id": "msg_1", "type": "message", "content": [PART | {"text": large}]}
    await writer.checkpoint(done)
    others = gets.memory.reserve("other", 9_900_000)
    with pytest.raises(Unavailable):
        await gets.text(writer.response)
    assert max(received) < 1000, "what waits for memory must not be in it"
    others.release()
    assert await gets.text(writer.response) == large
    assert gets.memory.used == pytest.approx(2 * len(large), rel=0.1)


async def test_large_outputs_are_read_one_by_one(
    database: SeededDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that a statement returns is decoded and encoded in one turn of the event loop."""
    statements: list[int] = []

    async def fetch_counted(*arguments: Any) -> list[ShownResponseRow]:
        rows: list[ShownResponseRow] = await fetch_idempotent(*arguments)
        statements.append(sum(len(orjson.dumps(row.items)) > 1_000_000 for row in rows))
        return rows

    monkeypatch.setattr("web.responses.shown.fetch_idempotent", fetch_counted)
    gets, large = Gets(database), "x" * 1_200_000
    gets.memory = SharedBudget("large answers", 100_000_000, 0)
    writers = [await _start(database) for _ in range(2)]
    for writer in writers:
        part = PART | {"text": large}
        await writer.checkpoint({"id": "msg_1", "type": "message", "content": [part]})
    texts = await asyncio.gather(*(gets.text(writer.response) for writer in writers))
    assert texts == [large, large]
    assert max(statements) == 1


async def test_a_small_output_does_not_wait_for_large_ones(
    database: SeededDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, may_end = asyncio.Event(), asyncio.Event()

    async def fetch_slowly(*arguments: Any) -> list[ShownResponseRow]:
        rows: list[ShownResponseRow] = await fetch_idempotent(*arguments)
        if any(row.items for row in rows):
            reading.set()
            await may_end.wait()
        return rows

    monkeypatch.setattr("web.responses.shown.fetch_idempotent", fetch_slowly)
    gets, large = Gets(database), "x" * 1_200_000
    gets.memory = SharedBudget("large answers", 1000 * MIB, 0)
    writers = [await _start(database) for _ in range(7)]
    for writer in writers[1:]:
        part = PART | {"text": large}
        await writer.checkpoint({"id": "msg_1", "type": "message", "content": [part]})
    reads = [asyncio.create_task(gets.text(writer.response)) for writer in writers[1:]]
    await reading.wait()
    assert await gets.text(writers[0].response) == ""
    assert not any(read.done() for read in reads)
    may_end.set()
    assert await asyncio.gather(*reads) == [large] * 6
