"""How runs are stopped from outside: by cancels, and when the process stops.

Redis delivers cancels at once, on the control channel. While it is unavailable the heartbeat
delivers them, within two seconds (I10). The runs of a stopping worker end by themselves, or are
handed over to other workers.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from typing import Any
from uuid import UUID

import structlog

from models.config.groups import WorkerSettings
from models.config.settings import Settings
from models.redis.channels import control
from models.redis.client import redis_client
from models.redis.raw_connection import RawConnection
from models.redis.reconnect import listen, stay_connected, subscribe
from worker.run.end_state import StopReason
from worker.run.runner import Run

logger = structlog.get_logger()

_SILENCE = 4.0
"""Seconds without a reply after which the channel is connected again."""


class ControlListener:
    """Receives the ids of responses with a recorded cancel."""

    def __init__(
        self, settings: Settings, worker_id: UUID, on_cancel: Callable[[UUID], None]
    ) -> None:
        self._settings = settings
        self._worker_id = worker_id
        self._on_cancel = on_cancel

    async def run(self) -> None:
        """Listens, and reconnects after an error. Never returns."""
        redis = redis_client(self._settings, f"control-{self._worker_id.hex}", timeout=None)
        try:
            await stay_connected(redis, self._listen, "control_channel_unavailable")
        finally:
            await redis.aclose()

    async def _listen(self, connection: RawConnection) -> None:
        for reply in await subscribe(connection, control(self._worker_id)):
            self._receive(reply)
        await listen(connection, self._receive, _SILENCE)

    def _receive(self, reply: Any) -> None:
        if reply[0] != b"message":
            return
        try:
            response_id = UUID(hex=reply[2].decode())
        except ValueError:
            # Anything may be published to a channel.
            logger.exception("control_message_unreadable")
        else:
            self._on_cancel(response_id)


_PER_SECOND = 1000
"""Responses that are handed over in a second: about what a statement of PostgreSQL releases and
other workers claim in that time."""
_PORTION = 50
"""Responses that are handed over at a time."""


class HandOver:
    """Ends the runs of a stopping worker.

    Runs that do not end within the grace period are handed over, with their logs stored. Many runs
    are handed over in portions, so that the last portion is due at the end of the grace period: all
    at once would keep the responses from running for as long as all of them take together. Those
    that began last come first; they lose the least. A run with a tool call that must not be
    repeated has a longer grace period (`worker.call_grace`).
    """

    def __init__(
        self, runs: Mapping[UUID, Run], claiming: Collection[UUID], settings: WorkerSettings
    ) -> None:
        """`runs`, `claiming`: what the worker runs and claims, now and later."""
        self._runs = runs
        self._claiming = claiming
        self._grace = settings.grace.total_seconds()
        self._longest_grace = settings.longest_grace.total_seconds()
        self._clock = asyncio.get_running_loop().time

    async def run(self) -> None:
        """Returns when nothing runs any more."""
        stopping_at = self._clock()
        # Portions begin in the second half of the grace period at the earliest.
        in_portions = min(self._grace / 2, len(self._runs) / _PER_SECOND)
        if not await self._is_idle_at(stopping_at + self._grace - in_portions):
            await self._hand_over_in_portions(in_portions)
        if not await self._is_idle_at(stopping_at + self._longest_grace):
            for run in list(self._runs.values()):
                run.stop(StopReason.HAND_OVER)
            await self._wait_until_idle()

    async def _hand_over_in_portions(self, seconds: float) -> None:
        """Begins the last portion after about `seconds`."""
        started_at = self._clock()
        runs = sorted(self._runs.values(), key=lambda run: run.started_at, reverse=True)
        for start in range(0, len(runs), _PORTION):
            due = started_at + seconds * min(1.0, (start + _PORTION) / len(runs))
            if await self._is_idle_at(due):
                return
            for run in runs[start : start + _PORTION]:
                if not run.has_unrepeatable_call:
                    run.stop(StopReason.HAND_OVER)

    async def _is_idle_at(self, deadline: float) -> bool:
        """Waits until nothing runs, or until the deadline (of the loop's clock)."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self._wait_until_idle()
        return not self._runs and not self._claiming

    async def _wait_until_idle(self) -> None:
        while self._runs or self._claiming:  # noqa: ASYNC110  (only while stopping)
            await asyncio.sleep(0.02)
