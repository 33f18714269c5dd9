"""What projects use, counted in Redis for all processes, and compared with what the database says
(ADR 0040)."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import orjson
import structlog
from redis.asyncio import Redis
from redis.commands.core import AsyncScript

from models.projects.quotas import WINDOW, Limits, Quota, Usage
from models.redis.client import REDIS_ERRORS
from models.redis.quota_scripts import (
    ADMIT,
    KEPT_SECONDS,
    MEASURED,
    REPORT_CONNECTIONS,
    SETTLE,
)
from models.redis.raw_connection import pack

GRACE = 10.0
"""Seconds for which a response counts that is not in the database: its create is on its way."""


@dataclass(frozen=True, slots=True)
class Corrections:
    """What has to change in Redis. Ids as Redis has them."""

    ended: list[bytes]
    """they are not open"""
    missing: list[bytes]
    """they are open, and are not counted"""
    claimed: list[bytes]
    """they do not wait"""
    unclaimed: list[bytes]
    """they wait, and are not counted as waiting"""
    reserved: int
    """to be added to the sum of the reserved tokens"""


@dataclass(frozen=True, slots=True)
class CountedResponses:
    """What was counted at one moment, before the database was read."""

    now: int
    """that moment, in milliseconds of Redis' clock"""
    entries: dict[bytes, bytes]
    """id -> reserved tokens, until when they count, time of the create (quota_scripts.py)"""
    waiting: set[bytes]
    reserved: int

    def corrections(self, usage: Usage) -> Corrections:
        """Compares. What has changed since that moment is left alone: a response that is not
        counted although it is young may have ended already, and one that is not in the database may
        be stored soon. If nothing was counted, Redis has lost it, and all is added."""
        is_open, waits = set(map(_name, usage.open)), set(map(_name, usage.waiting))
        young = set(map(_name, usage.young)) if self.entries else set()
        ended = [
            each
            for each, entry in self.entries.items()
            if each not in is_open and self.now - _numbers(entry)[2] > GRACE * 1000
        ]
        left = sum(_numbers(entry)[0] for entry in self.entries.values())
        left -= sum(_numbers(self.entries[each])[0] for each in ended)
        return Corrections(
            ended=ended,
            missing=list(is_open - self.entries.keys() - young),
            claimed=[
                each for each in self.waiting - waits if each in is_open or each not in self.entries
            ],
            unclaimed=list(waits - self.waiting - young),
            reserved=left - self.reserved,
        )


def _name(response: UUID) -> bytes:
    return response.hex.encode()


def _numbers(entry: bytes) -> tuple[int, int, int]:
    estimate, drained, created = entry.split(b":")
    return int(estimate), int(drained), int(created)


logger = structlog.get_logger()

ResultT = TypeVar("ResultT")

CORRECT_AFTER = 5.0
"""Seconds after which the numbers of a project that sends requests are corrected."""
_STALE = 30.0
"""Seconds after which a request waits for the correction."""
_MEASURE_AFTER = 600.0
"""Seconds after which what a project stores is measured again."""
CONNECTIONS = (Quota.open_streams, Quota.open_sockets)
"""What each web process counts itself."""
CONNECTION_TIME = 30.0
"""Seconds for which the open connections of a process count that does not report them again."""
_PATIENCE = 0.25
"""Seconds that Redis has for an answer."""
_CORRECTION_PATIENCE = 5.0
"""The same for a correction, which may need many commands."""
_CHUNK = 500
"""Responses in one command of a correction."""
_PAUSE = 2.0
"""Seconds without commands after a failed one."""


class CountersUnavailable(Exception):
    """Redis does not answer."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request asks for."""

    response: UUID | None = None
    """the response that it makes"""
    requests: int = 1
    tokens: int = 0
    bytes: int = 0
    conversations: int = 0
    open_streams: int = 0
    open_sockets: int = 0

    @property
    def is_counted(self) -> bool:
        """Whether it may be refused because of what is counted in the database."""
        return self.response is not None or self.tokens > 0 or self.conversations > 0


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a request is admitted, and what is left of the rates."""

    refused: Quota | None
    wait: float
    """seconds until a rate admits the request; 0 for other quotas"""
    requests: float
    """seconds until the rate of requests is unused"""
    tokens: float
    """seconds until the rate of tokens is unused"""
    is_correction_due: bool = False
    """this process is to correct the numbers"""
    is_measurement_due: bool = False
    """this process is to measure what is stored"""
    stored_bytes: int = 0
    """as it was measured last, and what was added since"""


@dataclass(frozen=True, slots=True)
class Period:
    """The day and the month in UTC to which tokens belong."""

    day: str
    month: str

    @classmethod
    def at(cls, now: float) -> "Period":
        """`now`: seconds since the epoch."""
        date = time.gmtime(now)
        return cls(time.strftime("%Y-%m-%d", date), time.strftime("%Y-%m", date))


class QuotaCounters:
    """The counters as one process uses them. A method raises CountersUnavailable if Redis does not
    answer in time, and for two seconds after that."""

    def __init__(self, redis: Redis, process: UUID) -> None:
        self._redis = redis
        self._process = process.hex
        self._admit = redis.register_script(ADMIT)
        self._settle = redis.register_script(SETTLE)
        self._measured = redis.register_script(MEASURED)
        self._report = redis.register_script(REPORT_CONNECTIONS)
        self._unavailable_until = 0.0

    @property
    def are_available(self) -> bool:
        """Whether Redis has answered lately, or was not asked."""
        return time.monotonic() >= self._unavailable_until

    async def admit(
        self,
        project: UUID,
        limits: Limits,
        demand: Demand,
        own: Mapping[Quota, int],
        period: Period,
        *,
        is_corrected: bool = False,
        ended: Sequence[UUID] = (),
    ) -> Decision | None:
        """Decides and counts, with one command. None: the numbers must be corrected first.

        `own`: the open connections of this process. `is_corrected`: they have just been. `ended`:
        responses that do not count, although their workers have not settled them yet.
        """
        question = {
            "limits": asdict(limits),
            "demand": asdict(demand)
            | {
                "response": demand.response.hex if demand.response is not None else False,
                "own": {kind.name: own.get(kind, 0) for kind in CONNECTIONS},
            },
            "counted": limits.are_counted and demand.is_counted,
            "forced": is_corrected,
            "stale": _milliseconds(_STALE),
            "correct_after": _milliseconds(CORRECT_AFTER),
            "measure_after": _milliseconds(_MEASURE_AFTER),
            "connection_time": _milliseconds(CONNECTION_TIME),
            "window": _milliseconds(WINDOW),
            "day": period.day,
            "month": period.month,
            "web": self._process,
            "ended": [each.hex for each in ended],
        }
        answer = await self._run(self._admit, quota_keys(project), (orjson.dumps(question),))
        refused = answer[0].decode()
        if refused == "uncorrected":
            return None
        return Decision(
            Quota[refused] if refused else None,
            answer[1] / 1000,
            answer[2] / 1000,
            answer[3] / 1000,
            bool(answer[4]),
            bool(answer[5]),
            answer[6],
        )

    async def settle(
        self, project: UUID, limits: Limits, response: UUID, tokens: int | None, period: Period
    ) -> None:
        """The response has ended with so many tokens, or was not stored (0 tokens)."""
        await self._run(
            self._settle, quota_keys(project)[:3], _settlement(limits, response, tokens, period)
        )

    async def counted(self, project: UUID) -> list[UUID]:
        """The responses of the project that are counted as open now."""
        return [UUID(name.decode()) for name in (await self.snapshot(project)).entries]

    async def snapshot(self, project: UUID) -> CountedResponses:
        """The responses of the project that are counted now. To be read before the database."""
        numbers, open_responses, waiting, _ = quota_keys(project)

        async def read() -> CountedResponses:
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.time()
            pipeline.hgetall(open_responses)
            pipeline.smembers(waiting)
            pipeline.hget(numbers, "reserved")
            clock, entries, names, reserved = await pipeline.execute()
            now = clock[0] * 1000 + clock[1] // 1000
            return CountedResponses(now, entries, names, int(reserved or 0))

        return await self._limited(read)

    async def correct(
        self, project: UUID, counted: CountedResponses, usage: Usage, period: Period
    ) -> None:
        """Replaces what was counted by what the database has counted since. In short commands: a
        long one would stop all others of Redis."""
        numbers, open_responses, waiting, _ = quota_keys(project)
        change = counted.corrections(usage)

        async def write() -> None:
            for ids in _chunks(change.ended):
                await self._redis.hdel(open_responses, *ids)
                await self._redis.srem(waiting, *ids)
            for ids in _chunks(change.claimed):
                await self._redis.srem(waiting, *ids)
            for ids in _chunks(change.missing):
                entry = f"0:0:{counted.now}"
                pipeline = self._redis.pipeline(transaction=False)
                for each in ids:
                    pipeline.hsetnx(open_responses, each, entry)
                await pipeline.execute()
            for ids in _chunks(change.unclaimed):
                await self._redis.sadd(waiting, *ids)
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.hincrby(numbers, "reserved", change.reserved)
            values = {"conversations": usage.conversations, "corrected": counted.now}
            for name, value in (values | _budgets(usage, period)).items():
                pipeline.hset(numbers, name, value)
            for key in (numbers, open_responses, waiting):
                pipeline.expire(key, KEPT_SECONDS)
            await pipeline.execute()

        await self._limited(write, _CORRECTION_PATIENCE)

    async def set_stored(self, project: UUID, stored_bytes: int) -> None:
        """So many bytes of the project were measured now."""
        await self._run(self._measured, quota_keys(project)[:1], (stored_bytes,))

    async def report_connections(self, project: UUID, kind: Quota, count: int) -> None:
        """Reports how many connections of this kind the process has open for the project."""
        field_name = f"{kind.name}:{self._process}"
        arguments = (field_name, count, _milliseconds(CONNECTION_TIME))
        await self._run(self._report, quota_keys(project)[3:], arguments)

    async def _run(
        self,
        script: AsyncScript,
        keys: Sequence[str],
        arguments: Sequence[str | int | bytes],
    ) -> Any:
        return await self._limited(partial(script, keys, arguments))

    async def _limited(
        self, work: Callable[[], Awaitable[ResultT]], patience: float = _PATIENCE
    ) -> ResultT:
        """The result of commands that may take so many seconds."""
        if not self.are_available:
            raise CountersUnavailable
        try:
            async with asyncio.timeout(patience):
                return await work()
        except REDIS_ERRORS as error:
            self._unavailable_until = time.monotonic() + _PAUSE
            logger.warning("quota_counters_unavailable", error=repr(error))
            raise CountersUnavailable from error


def settle_command(
    project: UUID, limits: Limits, response: UUID, tokens: int | None, period: Period
) -> bytes:
    """`QuotaCounters.settle` as a command for a connection that reads no replies."""
    arguments = map(_encoded, _settlement(limits, response, tokens, period))
    keys = [key.encode() for key in quota_keys(project)[:3]]
    return pack(b"EVAL", SETTLE.encode(), b"3", *keys, *arguments)


def claimed_command(project: UUID, response: UUID) -> bytes:
    """The command with which a worker says that it has claimed a response of the project."""
    return pack(b"SREM", quota_keys(project)[2].encode(), response.hex.encode())


def _settlement(
    limits: Limits, response: UUID, tokens: int | None, period: Period
) -> list[str | int]:
    used = -1 if tokens is None else tokens
    return [response.hex, used, limits.tokens_per_minute, period.day, period.month]


def _encoded(argument: str | int) -> bytes:
    return str(argument).encode()


def _budgets(usage: Usage, period: Period) -> dict[str, int]:
    if not usage.are_tokens_new:
        return {}
    names = (f"day:{period.day}", f"month:{period.month}")
    return dict(zip(names, usage.tokens, strict=True))


def quota_keys(project: UUID) -> list[str]:
    """The keys of a project: numbers, open, waiting, connections
    (models/redis/quota_scripts.py)."""
    return [f"quota:{{{project.hex}}}:{name}" for name in _KEYS]


_KEYS = ("numbers", "open", "waiting", "connections")


def _chunks(ids: list[bytes]) -> Iterator[list[bytes]]:
    return (ids[first : first + _CHUNK] for first in range(0, len(ids), _CHUNK))


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)
