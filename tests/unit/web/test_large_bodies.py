"""Large bodies: how fast they must arrive, and the thread that works on them."""

import asyncio
import threading
from functools import partial
from uuid import UUID, uuid4

import pytest
from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import Message

from models.db.connection import ACTING_PROJECT
from models.errors import RequestTimeout
from models.load.budget import SharedBudget
from models.load.pacing import Pacer
from models.wire.json_input import BodyLimits
from web.http.body import ReservedBody, bind_bodies, read_json, run_sized
from web.http.request_record import RequestRecord

MIB = 1024 * 1024
LIMITS = BodyLimits(64 * MIB, 4 * MIB, 1_000_000)


class Sender:
    """A client that sends pieces, and then nothing more."""

    def __init__(self, *pieces: int) -> None:
        """`pieces`: bytes of each."""
        self._pieces = list(pieces)

    async def receive(self) -> Message:
        if not self._pieces:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b" " * self._pieces.pop(0), "more_body": True}


async def test_a_body_must_arrive_in_forty_periods() -> None:
    steady = ReservedBody(Sender(*[10_000] * 39).receive, 60)
    for _ in range(39):
        await steady.next(400_000)
    slow = ReservedBody(Sender(9_999).receive, 0.01)
    await slow.next(400_000)
    with pytest.raises(RequestTimeout, match=r"10000 bytes are expected every 0\.01 seconds"):
        await slow.next(400_000)


async def test_a_body_that_holds_memory_and_arrives_slowly_is_refused() -> None:
    app, bodies = FastAPI(), SharedBudget("large requests", 96 * MIB, 0)
    bind_bodies(app, bodies, 0.01)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % MIB)]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "app": app}

    async def send(_message: Message) -> None:
        raise AssertionError

    receive = Sender(20_000).receive
    record = RequestRecord(scope, receive, send, lambda _status: None)
    with pytest.raises(RequestTimeout):
        await read_json(Request(scope, receive), LIMITS)
    assert bodies.used == MIB
    record.end()
    assert bodies.used == 0


async def test_projects_take_turns_at_the_thread_for_large_bodies() -> None:
    busy, other, done = uuid4(), uuid4(), list[UUID]()
    may_end = threading.Event()

    async def work(project: UUID) -> None:
        ACTING_PROJECT.set(project)
        await run_sized(partial(may_end.wait, 10), MIB)
        done.append(project)

    tasks = [asyncio.create_task(work(project)) for project in [busy] * 5 + [other]]
    await asyncio.sleep(0)
    may_end.set()
    await asyncio.gather(*tasks)
    assert done.index(other) <= 2


async def test_large_parts_of_answers_are_sent_in_turns() -> None:
    sends, sent, turn = Pacer(1), list[tuple[str, int]](), 0

    async def answer(project: str, parts: int, size: int) -> None:
        async def send(_message: Message) -> None:
            sent.append((project, turn))

        async def until_sent() -> None:
            return

        state = {"until_sent": until_sent}
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "state": state}
        record = RequestRecord(scope, Sender(0).receive, send, lambda _status: None, sends)
        record.project = project
        for _ in range(parts):
            await record.send({"type": "http.response.body", "body": bytes(size)})
        record.end()

    large = [asyncio.create_task(answer(name, 3, MIB)) for name in "aaaab"]
    small = asyncio.create_task(answer("small", 3, 1024))
    while not all(task.done() for task in [*large, small]):
        await asyncio.sleep(0)
        turn += 1
    large_turns = [at for name, at in sent if name != "small"]
    assert len(large_turns) == len(set(large_turns)) == 15
    assert [at for name, at in sent if name == "small"] == [0, 0, 0]
    # The project with one answer has every other turn.
    assert max(index for index, (name, _) in enumerate(sent) if name == "b") <= 9
