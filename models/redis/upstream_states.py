"""What each worker knows of the upstreams, for the console: in Redis, for some seconds.

Nothing depends on it. A worker has its own limits and circuits (worker/upstream/upstreams.py) and
writes them here every few seconds; what a dead worker has written expires.
"""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import msgspec
import structlog
from redis.asyncio import Redis

from models.redis.channels import upstream_states_key

INTERVAL = 5.0
"""Seconds between two writes of a worker."""
_LIFETIME = timedelta(seconds=15)

logger = structlog.get_logger()


class OpenCircuit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A circuit that is open: calls are refused until it is tried again."""

    reason: str
    """of the last failure"""
    seconds: float
    """until the next call is permitted"""
    model: str | None = None
    """None: the upstream as a whole"""
    project: str | None = None
    """the id of the one whose calls are refused; None: those of all"""
    since: float = 0.0
    """when it opened first without a call that succeeded since, in seconds since the epoch"""


class UpstreamState(msgspec.Struct, frozen=True, omit_defaults=True):
    """An upstream as one worker process knows it."""

    name: str
    running: int
    """calls"""
    limit: int | None = None
    """calls at a time; None: as many as the worker has slots"""
    waiting: int = 0
    """calls that wait for one of these to end"""
    circuits: tuple[OpenCircuit, ...] = ()
    last_reason: str | None = None
    """of the last failed call; None: none has failed"""
    last_failed_at: float = 0.0
    """when that was, in seconds since the epoch"""


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(tuple[UpstreamState, ...])


async def write_states(redis: Redis, worker: UUID, states: Sequence[UpstreamState]) -> None:
    """Replaces what this worker has written. Raises what REDIS_ERRORS names."""
    await redis.set(upstream_states_key(worker), _ENCODER.encode(tuple(states)), ex=_LIFETIME)


async def read_states(redis: Redis, workers: Sequence[UUID]) -> list[tuple[UpstreamState, ...]]:
    """What these workers have written, of each that has. Raises what REDIS_ERRORS names."""
    if not workers:
        return []
    written = await redis.mget([upstream_states_key(worker) for worker in workers])
    found = []
    for text in written:
        try:
            if text is not None:
                found.append(_DECODER.decode(text))
        except msgspec.MsgspecError as error:
            # Of another release, during an upgrade.
            logger.warning("upstream_states_not_read", error=str(error))
    return found
