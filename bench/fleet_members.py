"""Workers and web processes of a simulated fleet: many of them in one process.

All of their code is the product's, and so is their traffic to Postgres and Redis. Two things are
left out, so that one process can be a fleet: the calls of upstreams, whose answers are made here by
a plan, and HTTP.
"""

import asyncio
import dataclasses
from base64 import b64decode
from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

import orjson

from bench.paced_upstream import PLAN
from models.config.routes import limits_of
from models.config.settings import Settings
from models.projects.policy import ProjectPolicy
from models.redis.channels import BACKGROUND, INTERACTIVE
from worker.celery.wakeups import WakeUps
from worker.process.engine import Engine
from worker.process.limits import slots_for
from worker.upstream.chat_chunks import parse_chunk
from worker.upstream.client import StreamEvent, Take, Upstream, UpstreamCall
from worker.upstream.request_body import RequestFiles
from worker.upstream.request_sender import NO_FILES
from worker.upstream.upstreams import Candidate, ConcurrencyLimiter, Upstreams

_DELTA = parse_chunk(
    b'{"choices":[{"index":0,"delta":{"content":"some words "},"finish_reason":null}]}'
)
_LAST = parse_chunk(
    b'{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}'
)


class _PlannedCall:
    """A call whose answer follows the plan in the model's name, as in bench/paced_upstream.py."""

    done_seen = True

    def __init__(self, model: str) -> None:
        plan = PLAN.fullmatch(model)
        assert plan is not None
        self._deltas, self._interval, self._delay = int(plan[1]), float(plan[2]), float(plan[3])

    async def read(self, take: Take) -> None:
        """Gives the deltas at their times to `take`, then the end."""
        due = asyncio.get_running_loop().time() + self._delay
        if not self._interval:
            await asyncio.sleep(self._delay)
            await _take([_DELTA] * self._deltas, take)
        else:
            for _ in range(self._deltas):
                await asyncio.sleep(due - asyncio.get_running_loop().time())
                await _take([_DELTA], take)
                due += self._interval
        await _take([_LAST], take)


async def _take(events: list[StreamEvent], take: Take) -> None:
    if (pause := take(events)) is not None:
        await pause()


class _PlannedUpstream(Upstream):
    def call(
        self,
        body: dict[str, Any],
        traceparent: str | None = None,  # noqa: ARG002
        files: RequestFiles = NO_FILES,  # noqa: ARG002
    ) -> UpstreamCall:
        return cast("UpstreamCall", _PlannedCall(body["model"]))


class _PlannedUpstreams(Upstreams):
    def __init__(self, settings: Settings, streams: int) -> None:
        super().__init__(settings, streams)
        upstream = _PlannedUpstream(
            settings.upstream, limits_of(settings.limits, settings.upstream), streams
        )
        self._planned = upstream, ConcurrencyLimiter(settings.upstream, None)

    def candidates(
        self,
        model: str,
        project: UUID,
        policy: ProjectPolicy,  # noqa: ARG002
    ) -> list[Candidate]:
        return [Candidate(*self._planned, model, project)]


class FleetWorker(Engine):
    """A worker. It reads its queues beside the engine, like worker/celery/pool.py."""

    def __init__(self, settings: Settings, streams: int) -> None:
        super().__init__(settings, slots_for(streams), self._wake_readers)
        self._wake_ups: WakeUps | None = None

    async def start(self) -> None:
        """As `Engine.start`, and takes messages from then on."""
        await super().start()
        slots = self._capacity.slots
        upstreams = _PlannedUpstreams(self._settings, slots)
        self._resources = dataclasses.replace(self._resources, upstreams=upstreams)
        queues = (INTERACTIVE, BACKGROUND)
        self._wake_ups = WakeUps(self._settings, "fleet-queues", queues, self.intake, self._deliver)
        self.start_side_task(self._wake_ups.run(), "wake-ups")

    async def stop(self) -> None:
        """As `Engine.stop`, after the last message."""
        if self._wake_ups is not None:
            await self._wake_ups.stop()
        await super().stop()

    def _wake_readers(self) -> None:
        if self._wake_ups is not None:
            self._wake_ups.on_capacity_changed()

    def _deliver(self, queue: str, message: bytes) -> None:
        self.intake.run_from_message(_response_ids(message), queue)


def _response_ids(message: bytes) -> Sequence[UUID]:
    """The arguments of a Celery message as it is in Redis."""
    arguments, _, _ = orjson.loads(b64decode(orjson.loads(message)["body"]))
    return [UUID(hex=argument) for argument in arguments]
