"""Creates that make something, each once, however often its client sends it (docs/wire.md,
"Repeated creates"). Responses have statements of their own for that (web/idempotency/keys.py).

A create first claims its key. The transaction that makes the object notes the object with the key
(`note_made`), and fails if another try has the key by then. So a try that finds a key without an
object may go on if the process of the other try has ended, and otherwise waits for it.

The answers to creates of SDKs, which send no key: whether their clients got them.

Nobody confirms an answer. A client that has it sends its next request on the same connection, or
keeps the connection open for a while. A connection that the client's side closes in the second
after the answer has probably lost it.
"""

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, TypeVar
from uuid import UUID

from starlette.requests import HTTPConnection, Request

from models.db.arrays import Texts, Uuids
from models.db.connection import ACTING_PROJECT
from models.db.database import (
    DATABASE_UNAVAILABLE,
    NOT_EXECUTED,
    Connection,
    Pool,
    execute,
    fetch,
    fetch_idempotent,
    large_connection,
    retry_while_unavailable,
)
from models.db.queries import repeats
from models.db.queries.repeats import HeldKey
from models.db.statement import Query
from models.errors import ClientDisconnected, NotFound, Unavailable
from models.ids import new_uuid
from models.ownership.lease import Lease
from models.secrets import Sealed, Sealer, Unreadable, key_id_of
from web.http.auth import read_api_key
from web.http.body import announced_size, run_sized
from web.http.request_record import request_record
from web.idempotency.keys import IdempotencyKey, key_reused, parse_idempotency_key

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


Json = dict[str, Any]
RowT = TypeVar("RowT")

Make = Callable[[], Awaitable[Json]]
Show = Callable[[str], Awaitable[Json]]
Once = Callable[[Any, Make], Awaitable[Json]]
"""`Creates.once` of a request whose body is a form: called with what its fields and files are, and
with what makes the object, when the form was read."""

_WAIT = 30.0
"""Seconds for which a repeat waits for the first try, which runs."""
_UNKNOWN = 2**62
"""The size of a body that is not announced."""
_LOOK = 0.1
"""Seconds between two looks whether it has ended."""


@dataclass(slots=True, eq=False)
class _Claim:
    """One try of a create that has a key."""

    project: UUID
    key: str
    """as it is stored"""
    id: UUID
    body_hash: bytes
    sealer_key: bytes
    """of the API key of the request: nobody else is shown a secret that was made with it"""
    is_noted: bool = False
    may_hold: bool = False
    """It has the key, or may have it: the answer to its claim is not known."""

    @property
    def values(self) -> dict[str, object]:
        """For the statements about the key."""
        return {
            "project": self.project,
            "key": self.key,
            "claim": self.id,
            "body_hash": self.body_hash,
        }

    def seal(self, secret: Json) -> bytes:
        """The part of the answer that is not shown again."""
        return Sealer((self.sealer_key,)).seal(self.project, secret).sealed

    def open(self, sealed: bytes) -> Json:
        """Raises InvalidRequest for a secret that was made with another API key."""
        try:
            stored = Sealed(key_id_of(self.sealer_key), sealed)
            return Sealer((self.sealer_key,)).open(self.project, stored)
        except Unreadable:
            raise key_reused() from None


_CLAIM: ContextVar[_Claim | None] = ContextVar("claim", default=None)
"""That of the create which this task serves; None: it has no key, or this is no create."""


async def note_made(connection: Connection, made: str, secret: Json | None = None) -> None:
    """In the transaction that makes an object: a repeat of this create will be answered with it.

    `made`: what `show` needs (`Creates.once`). `secret`: the part of the answer that is not shown
    again; it is stored sealed. Raises Unavailable if another try has the key of the create.
    """
    claim = _CLAIM.get()
    if claim is None:
        return
    sealed = None if secret is None else claim.seal(secret)
    values = {**claim.values, "made": made, "sealed": sealed}
    if not await fetch(connection, repeats.NOTE_MADE, values):
        raise Unavailable("The request was sent again, and the repeat is served. Please retry.")
    claim.is_noted = True


async def fetch_once(
    pool: Pool, query: Query[RowT], values: Mapping[str, object], made: str, *, size: int = 0
) -> list[RowT]:
    """The rows of the one statement that makes an object, which is noted if there are any. It is
    repeated once after a lost connection, and then makes nothing if it was committed before.
    `size`: bytes of the parameters."""
    if _CLAIM.get() is None:
        return await fetch_idempotent(pool, query, values, size=size)

    async def fetch_and_note(pool_timeout: float | None = None) -> list[RowT]:
        async with (
            large_connection(pool, size, pool_timeout) as connection,
            connection.transaction(),
        ):
            rows = await fetch(connection, query, values)
            if rows:
                await note_made(connection, made)
            return rows

    try:
        return await fetch_and_note()
    except NOT_EXECUTED:
        raise
    except DATABASE_UNAVAILABLE:
        await pool.check()
        return await fetch_and_note(1.0)


class Creates:
    """The creates of one web process."""

    def __init__(self, pool: Pool, lease: Lease, answers: Answers) -> None:
        self._pool = pool
        self._lease = lease
        self._answers = answers

    async def once(
        self,
        request: Request,
        body: Any,
        make: Make,
        show: Show,
        show_unused: Show | None = None,
    ) -> Json:
        """The answer to a create: that of `make`, or of `show` if an earlier try has made the
        object.

        `body`: by which equal requests are recognised, as JSON; it is complete. `make` calls
        `note_made`. `show` is called with what was noted, and raises NotFound if that was deleted
        since; then it is made again. `show_unused`: instead of `show` for a retry without a key; it
        also raises NotFound if the object was used since, so that its client must have got the
        answer. Raises what they raise; InvalidRequest for an unusable key or
        one of another request; Unavailable if the first try takes too long.
        """
        size = int(announced_size(request.headers)) or _UNKNOWN
        hashed = {"path": request.url.path, "body": body}
        key = await run_sized(partial(parse_idempotency_key, request.headers, hashed), size)
        project = ACTING_PROJECT.get()
        if key is None or project is None:
            return await make()
        claim_id = new_uuid()
        stored_key = key.stored_key(claim_id)
        claim = _Claim(project, stored_key, claim_id, key.body_hash, _sealer_key(request))
        try:
            if key.key is None:
                await self._join(request, claim, key)
                show = show_unused or show
            return await self._claimed(request, claim, key, make, show)
        except BaseException:
            if claim.may_hold:
                await asyncio.shield(self._release(claim))
            raise

    async def _join(self, request: Request, claim: _Claim, key: IdempotencyKey) -> None:
        """The create of an SDK, which sends no key: a retry takes that of the first try."""
        if key.may_repeat:
            claim.may_hold = True
            values = {**claim.values, "web": self._lease.id}
            taken = await fetch_idempotent(self._pool, repeats.TAKE_LOST, values)
            claim.key = taken[0] if taken else claim.key
        answer = CreateAnswer(claim.project, claim.key)
        self._answers.watch(answer, request)
        request_record(request).at_end(partial(self._answers.add, answer))

    async def _claimed(
        self,
        request: Request,
        claim: _Claim,
        key: IdempotencyKey,
        make: Make,
        show: Show,
    ) -> Json:
        deadline = time.monotonic() + _WAIT
        while time.monotonic() < deadline:
            held = await self._claim_key(claim, key)
            if held is not None and held.claim == claim.id and held.made is None:
                return await self._make(claim, make)
            if held is not None and not held.is_equal:
                raise key_reused()
            if held is not None and held.made is not None:
                try:
                    shown = await show(held.made)
                except NotFound:
                    values = {**claim.values, "claim": held.claim}
                    await fetch_idempotent(self._pool, repeats.FORGET_KEY, values)
                    continue
                return shown if held.sealed is None else shown | claim.open(held.sealed)
            if await request.is_disconnected():
                raise ClientDisconnected
            await asyncio.sleep(_LOOK)
        raise Unavailable("The first try of this request is still being served. Please retry.")

    async def _claim_key(self, claim: _Claim, key: IdempotencyKey) -> HeldKey | None:
        values = {
            **claim.values,
            "key_seconds": int(key.ttl.total_seconds()),
            "web": self._lease.id,
        }
        claim.may_hold = True
        rows = await fetch_idempotent(self._pool, repeats.CLAIM_KEY, values)
        held = rows[0] if rows else None
        claim.may_hold = held is not None and held.claim == claim.id
        return held

    async def _make(self, claim: _Claim, make: Make) -> Json:
        token = _CLAIM.set(claim)
        try:
            made = await make()
            assert claim.is_noted, "the create has noted nothing"
        finally:
            _CLAIM.reset(token)
        return made

    async def _release(self, claim: _Claim) -> None:
        """The create was answered with an error. Without this the key would stay the create's as
        long as this process lives."""
        try:
            await fetch(self._pool, repeats.RELEASE_KEY, claim.values)
        except DATABASE_UNAVAILABLE:
            self._answers.release_later(claim.values)


def _sealer_key(request: Request) -> bytes:
    return hashlib.sha256(b"backburner answer " + read_api_key(request).encode()).digest()
