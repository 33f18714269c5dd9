"""A worker process in memory, for tests of runs: what PostgreSQL, Redis and the upstream would get
is kept in lists."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

from models.config.groups import LimitSettings
from models.config.settings import Settings
from models.config.upstream import UpstreamSettings
from models.db.queries.claim import CheckpointedItem, ClaimedRow
from models.egress import EgressPolicy
from models.errors import FailedCall
from models.ownership.claims import ReleaseReason
from models.ownership.steps import Ending, Step, Tail
from models.ownership.takeover import Claim, EndReason
from models.prices import PriceList
from models.projects.policy import DEFAULT_POLICY
from models.secrets import Sealer
from models.tracing.spans import NO_SPAN
from models.wire.events import Event, Item, decode_frame, split_frames
from models.wire.purpose import Purpose
from tests.support.api import JSON
from worker.log.event_log import Block, EventLog
from worker.outbound.download import FileMemory
from worker.process.limits import MemoryBudget
from worker.run.attachments import Attachments
from worker.run.attempt import Attempt
from worker.run.attempt_writer import AttemptWriter
from worker.run.compaction import Compactions
from worker.run.context import RunContext
from worker.run.resources import Resources
from worker.run.sealing import CallOrigins
from worker.tools.provider import ToolContext, ToolProviderFactory
from worker.tools.toolbox import Toolbox
from worker.translation.upstream_events import ChatChunk
from worker.upstream.client import Take, dialect_of
from worker.upstream.upstreams import Candidate, ConcurrencyLimiter

PROJECT = UUID(int=2)
Answer = Sequence[ChatChunk] | Exception
"""What the upstream sends for one call, or how the call fails."""


def _message(text: str) -> Item:
    part = {"type": "input_text", "text": text}
    return {"type": "message", "role": "user", "content": [part]}


def claim(*, end_reason: EndReason | None = None, **row: Any) -> Claim:
    """The claim of a background response. `row`: columns that differ from the usual ones."""
    values: dict[str, Any] = dict.fromkeys(each.name for each in fields(ClaimedRow))
    values |= {"id": UUID(int=1), "project_id": PROJECT, "attempt": 1, "crashes": 0}
    values |= {"background": True, "store": True, "model": "m", "parameters": {}, "created_at": 0}
    values |= {"seconds_left": 60.0, "seconds_queued": 0.0, "checkpoint_number": -1}
    values |= {"next_output_index": 0, "turns": 0, "turn_repeats": 0, "lane": 0}
    values |= {"input": [_message("Go.")]}
    return Claim(ClaimedRow(**values | row), log_end=1, end_reason=end_reason, is_first=True)


@dataclass
class MemoryOwnership:
    """Notes what a run stores. `refuse` names a step and what it raises, each once."""

    steps: list[str] = field(default_factory=list)
    refuse: dict[str, list[Exception]] = field(default_factory=dict)
    ending: Ending | None = None
    delay: timedelta | None = None
    """of the release"""
    frames: list[bytes] = field(default_factory=list)
    """that a checkpoint, a result or the ending has stored"""
    steers: int = 0
    """that have arrived"""
    outputs: dict[int, Any] = field(default_factory=dict)
    """position of a call -> its item and what the model gets"""

    def _note(self, step: str, tail: Tail | None = None) -> None:
        if errors := self.refuse.get(step.split(maxsplit=1)[0]):
            raise errors.pop(0)
        self.steps.append(step)
        if tail is not None:
            self.frames += split_frames(tail.frames)

    async def checkpoint(self, _claim: Claim, tail: Tail, step: Step) -> int:
        self._note(f"checkpoint {len(step.items)}", tail)
        return self.steers

    async def start_call(self, _claim: Claim, position: int) -> None:
        self._note(f"start {position}")

    async def finish_call(
        self, _claim: Claim, tail: Tail, position: int, item: Item, tool_output: Any
    ) -> int:
        self._note(f"finish {position}", tail)
        self.outputs[position] = (item, tool_output)
        return self.steers

    async def end(self, _claim: Claim, ending: Ending) -> None:
        self._note(f"end {ending.status.value}", ending.tail)
        self.ending = ending

    async def release(
        self,
        _claim: Claim,
        tail: Tail,
        reason: ReleaseReason,
        delay: timedelta | None,
        _failures: Sequence[FailedCall],
    ) -> None:
        self._note(f"release {reason.name.lower()}", tail)
        self.delay = delay

    async def record_failures(self, _claim: Claim, _failures: Iterable[FailedCall]) -> None:
        self._note("failures")

    async def wait_until_fresh(self) -> None:
        """The lease is always fresh."""

    def now(self) -> int:
        return 7


class MemoryJournal:
    """Publishes at once what a run writes. The logs are real."""

    def __init__(self) -> None:
        self.published: list[JSON] = []

    def open(self, log: EventLog) -> None:
        """Nothing is kept of it."""

    def close(self, log: EventLog) -> None:
        """Nothing is kept of it."""

    def write(self, log: EventLog, events: Iterable[Event], *, may_wait: bool = False) -> None:
        log.write(events)

    async def store_then_publish(
        self, log: EventLog, events: Iterable[Event], store: Callable[[Tail], Awaitable[None]]
    ) -> None:
        async with log.lock:
            log.write(events)
            tail = log.unflushed()
            await store(tail)
            self._publish(log.take_stored(tail.last))

    async def store_last(self, log: EventLog, store: Callable[[], Awaitable[Any]]) -> Any:
        async with log.lock:
            return await store()

    def has_room(self, log: EventLog) -> bool:
        return True

    async def wait_for_room(self, log: EventLog) -> None:
        """There is room."""

    wait_until_journaled = wait_for_room

    @asynccontextmanager
    async def large_output(self, _log: EventLog, _size: int) -> AsyncIterator[None]:
        yield

    def unpublished(self, log: EventLog, tail: Tail) -> Block | None:
        return log.unpublished(tail, 0, 1_000_000)

    def publish_end(self, _log: EventLog, block: Block | None) -> None:
        self._publish(block)

    def _publish(self, block: Block | None) -> None:
        if block is not None:
            self.published += [decode_frame(each) for each in split_frames(block.frames)]


class _Call:
    """One call of the upstream."""

    done_seen = True

    def __init__(self, answer: Answer, on_read: Callable[[], None]) -> None:
        self._answer = answer
        self._on_read = on_read

    async def read(self, take: Take) -> None:
        if isinstance(self._answer, Exception):
            raise self._answer
        for chunk in self._answer:
            await asyncio.sleep(0)  # so that a run can be stopped here
            self._on_read()
            if (pause := take([chunk])) is not None:
                await pause()

    def redact(self, failure: Exception) -> None:
        """It has no secrets."""


class MemoryUpstream:
    """Answers the calls of a run in order."""

    is_native = False

    def __init__(self, answers: Sequence[Answer]) -> None:
        self.settings = UpstreamSettings(name="double")
        self.dialect = dialect_of(self.settings)
        self.bodies: list[JSON] = []
        self.on_read: Callable[[], None] = lambda: None
        """Called before each chunk is sent."""
        self._answers = list(answers)
        self._limiter = ConcurrencyLimiter(self.settings, None)

    def call(self, body: JSON, _traceparent: str | None, _files: object) -> _Call:
        self.bodies.append(body)
        return _Call(self._answers.pop(0), self.on_read)

    def candidates(self, model: str, project: UUID, _policy: object) -> list[Candidate]:
        return [Candidate(cast("Any", self), self._limiter, model, project)]


class _Nothing:
    """Stands for what a run without quotas, history or cache does not use."""

    async def policy(self, _project: UUID) -> Any:
        return DEFAULT_POLICY

    async def limits_of(self, _claim: Claim) -> None:
        return None

    on_claimed = limits_of


@dataclass
class MemoryProcess:
    """What the runs of a process share."""

    upstream: MemoryUpstream
    limits: LimitSettings = field(default_factory=LimitSettings)
    ownership: MemoryOwnership = field(default_factory=MemoryOwnership)
    journal: MemoryJournal = field(default_factory=MemoryJournal)
    enqueued: list[UUID] = field(default_factory=list)
    exits: list[str] = field(default_factory=list)

    @property
    def resources(self) -> Resources:
        """For a run."""
        unused = Settings(database_url="postgresql://unused", redis_url="redis://unused")
        settings = unused.model_copy(update={"limits": self.limits})
        return Resources(
            settings=settings,
            ownership=cast("Any", self.ownership),
            journal=cast("Any", self.journal),
            pool=cast("Any", None),
            upstreams=cast("Any", self.upstream),
            job_queue=cast("Any", self),
            egress=EgressPolicy(settings.egress),
            prices=PriceList(settings.prices, settings),
            sealer=Sealer(()),
            token_counter=cast("Any", None),
            cache=cast("Any", None),
            memory=MemoryBudget(None),
            policies=cast("Any", _Nothing()),
            quotas=cast("Any", _Nothing()),
            file_memory=FileMemory(settings.egress.memory),
            storage=None,
            redis=cast("Any", None),
            side_tasks=cast("Any", None),
            due_poll=cast("Any", None),
            tools={},
            tracer=None,
            exit_process=cast("Any", lambda: self.exits.append("exit")),
        )

    def enqueue(self, response_id: UUID, _queue: str) -> None:
        """As JobQueue."""
        self.enqueued.append(response_id)


def tool_context(
    process: MemoryProcess,
    tools: Sequence[JSON],
    kinds: dict[str, ToolProviderFactory],
    *,
    rows: Sequence[CheckpointedItem] = (),
    is_draining: Callable[[], bool] = lambda: False,
    **row: Any,
) -> RunContext:
    """A run whose tools are of these kinds, with the output that earlier attempts have stored."""
    resources = process.resources
    parameters = {"tools": list(tools), **row.pop("parameters", {})}
    attempt = Attempt(claim(parameters=parameters, **row))
    if rows:
        attempt.resume(list(rows))
    writer = AttemptWriter(attempt, resources.journal, resources.ownership)
    return RunContext(
        attempt=attempt,
        writer=writer,
        resources=resources,
        purpose=Purpose.ANSWER,
        history=list(attempt.claim.row.input or []),
        attachments=Attachments(resources.egress, resources.file_memory, stored=cast("Any", None)),
        call_origins=CallOrigins(cast("Any", None), resources.sealer, PROJECT, {}),
        toolbox=Toolbox(tools, ToolContext(resources.settings, resources.egress), kinds),
        moderation=None,
        compactions=Compactions(
            PROJECT,
            resources.sealer,
            resources.settings.compaction,
            parameters,
            history_parameter="input",
        ),
        is_draining=is_draining,
        span=NO_SPAN,
    )
