"""The answers to creates of SDKs, which send no key: whether their clients got them.

Nobody confirms an answer. A client that has it sends its next request on the same connection, or
keeps the connection open for a while. A connection that the client's side closes in the second
after the answer has probably lost it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from uuid import UUID

from starlette.requests import HTTPConnection

from models.db.arrays import Texts, Uuids
from models.db.database import Pool, execute, retry_while_unavailable
from models.db.queries import repeats

_CONFIRMED_AFTER = 1.0
"""Seconds after an answer in which an end of its connection may have lost it."""
_STORE_PAUSE = 0.1
"""Seconds between two looks at what is to be stored."""


@dataclass(slots=True, eq=False)
class CreateAnswer:
    """The answer to a create of an SDK."""

    project: UUID
    key: str
    """under which the create is stored"""
    waiter: UUID | None = None
    """the connection that waits for it, if the create is that of a response"""
    is_lost: bool = False
    is_confirmed: bool = False


class Answers:
    """Those of one web process. Stores many at once."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._sent: deque[tuple[float, CreateAnswer]] = deque()
        """With the time at which each is confirmed."""
        self._lost: list[CreateAnswer] = []
        self._released: list[Mapping[str, object]] = []
        self._changed = asyncio.Event()

    def watch(self, answer: CreateAnswer, connection: HTTPConnection) -> None:
        """From now on the end of the connection means that the client got no answer, until it is
        confirmed."""
        when_lost = connection.scope.get("state", {}).get("when_lost")
        if when_lost is not None:
            when_lost(lambda: self.lose(answer))

    def lose(self, answer: CreateAnswer) -> None:
        """The client has disconnected: its retry may take the create over."""
        if not answer.is_confirmed:
            answer.is_lost = True
            self._lost.append(answer)
            self._changed.set()

    def add(self, answer: CreateAnswer) -> None:
        """The answer was sent, or its first bytes."""
        if not self._sent:
            self._changed.set()
        self._sent.append((time.monotonic() + _CONFIRMED_AFTER, answer))

    def release_later(self, claim: Mapping[str, object]) -> None:
        """A create has failed while Postgres is unavailable. `claim`: for RELEASE_KEY."""
        self._released.append(claim)
        self._changed.set()

    async def run(self) -> None:
        """Stores what became of the answers. Never returns."""
        while True:
            await self._wait()
            await retry_while_unavailable(self.store, "answers_not_stored")
            await asyncio.sleep(_STORE_PAUSE)

    async def _wait(self) -> None:
        self._changed.clear()
        if self._lost or self._released:
            return
        due = self._sent[0][0] - time.monotonic() if self._sent else None
        with suppress(TimeoutError):
            async with asyncio.timeout(due):
                await self._changed.wait()

    async def store(self, *, is_end: bool = False) -> None:
        """Stores the losses and releases, then the confirmed answers; `is_end`: all that were sent.
        Raises what DATABASE_UNAVAILABLE names, and goes on with the same ones the next time."""
        if lost := list(self._lost):
            values = _keys_of(lost) | {"waiters": Uuids([answer.waiter for answer in lost])}
            await execute(self._pool, repeats.RECORD_LOST, values)
            del self._lost[: len(lost)]
        while self._released:
            await execute(self._pool, repeats.RELEASE_KEY, self._released[0])
            del self._released[0]
        now = time.monotonic()
        sent = [
            answer for _, answer in takewhile(lambda each: is_end or each[0] <= now, self._sent)
        ]
        answered = [answer for answer in sent if not answer.is_lost]
        for answer in answered:
            answer.is_confirmed = True
        if answered:
            await execute(self._pool, repeats.FORGET_ANSWERED, _keys_of(answered))
        for _ in sent:
            self._sent.popleft()


def _keys_of(answers: list[CreateAnswer]) -> dict[str, object]:
    return {
        "projects": Uuids([answer.project for answer in answers]),
        "keys": Texts([answer.key for answer in answers]),
    }
