"""What a run lets judge its input and output (features/moderation/), if the request wants that."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from models.errors import RunError
from models.wire.events import Item
from worker.run.attempt import Attempt
from worker.translation.turn import Turn
from worker.upstream.client import StreamEvent, Take, UpstreamCall

CONTENT_FILTER = "content_filter"
"""Why a response is incomplete whose input or output may not pass."""


class OutputFlagged(Exception):
    """What the model has written may reach no reader. `usage`: of its turn, as far as it is
    known."""

    def __init__(self, usage: dict[str, Any] | None) -> None:
        super().__init__()
        self.usage = usage


class NotJudged(Exception):
    """A gate could not judge. `failure`: why. The upstream of the turn has not failed: its circuit
    does not count this, and no other upstream is tried."""

    def __init__(self, failure: RunError) -> None:
        super().__init__(str(failure))
        self.failure = failure


class Gate(Protocol):
    """Holds back what a model writes in one turn until it is judged. What is held back is in no
    state of the run: a worker that dies, a cancel and an error leave nothing of it behind."""

    async def release(self, chunks: Sequence[StreamEvent]) -> Sequence[StreamEvent]:
        """Takes what the upstream has sent; returns what may be used now. Raises OutputFlagged, and
        RunError if it cannot be judged."""

    async def finish(self, *, done_seen: bool) -> Sequence[StreamEvent]:
        """The rest, at the end of the upstream's stream. Raises as `release`."""


class Moderation(Protocol):
    """The moderation of one run. It keeps its results in `Output.moderation`."""

    @property
    def holds_back(self) -> bool:
        """Whether the turns of the model need a gate."""

    async def admits_input(self) -> bool:
        """Whether an upstream may get the input. Also judges the output that earlier attempts have
        stored. Raises RunError if that is not known."""

    def gate(self, shadow: Turn[Any]) -> Gate:
        """A gate for a turn. `shadow`: one of the same kind that nobody sees."""

    async def judge(self, turn: Turn[Any]) -> None:
        """Judges a turn that had no gate, when it has ended."""


class GatedCall:
    """A call of an upstream behind a gate, as `UpstreamCall`."""

    def __init__(self, call: UpstreamCall, gate: Gate) -> None:
        self._call = call
        self._gate = gate
        self.redact = call.redact

    @property
    def done_seen(self) -> bool:
        """As that of the call."""
        return self._call.done_seen

    async def read(self, take: Take) -> None:
        """Gives to `take` what has passed. Raises OutputFlagged, NotJudged, and what the call
        raises."""

        async def pass_on(judging: Awaitable[Sequence[StreamEvent]]) -> None:
            if (pause := take(await _judged(judging))) is not None:
                await pause()

        await self._call.read(lambda chunks: lambda: pass_on(self._gate.release(chunks)))
        await pass_on(self._gate.finish(done_seen=self.done_seen))


async def _judged(passed: Awaitable[Sequence[StreamEvent]]) -> Sequence[StreamEvent]:
    try:
        return await passed
    except RunError as failure:
        raise NotJudged(failure) from failure


@dataclass(frozen=True, slots=True)
class RunInput:
    """What a run sends to its first upstream."""

    history: list[Item]
    own_count: int
    """how many of its last items are the input of the request"""
    with_files: Callable[[list[Item]], list[Item]]
    """puts stored files into items"""


OpenModeration = Callable[[Attempt, RunInput], Awaitable[Moderation | None]]
"""None: the request wants no moderation, or its upstreams moderate."""
