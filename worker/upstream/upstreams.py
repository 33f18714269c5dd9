"""The upstreams of a worker process, and which of them a model's turns are put to."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.errors import UpstreamBusy
from models.settings import LimitSettings, Settings, UpstreamSettings
from models.upstreams import Routes
from worker.upstream.client import Upstream
from worker.upstream.gate import Gate


@dataclass(frozen=True, slots=True)
class Way:
    """An upstream that serves a model, the gate before it, and the model's name there."""

    upstream: Upstream
    gate: Gate
    model: str

    @property
    def name(self) -> str:
        """The upstream's."""
        return self.upstream.settings.name


class Upstreams:
    """All that are configured, each with its connections."""

    def __init__(self, settings: Settings, streams: int) -> None:
        """`streams`: the most turns at a time."""
        self._routes = Routes(settings)
        # One of several must not take every stream: while it is down or slow the others go on.
        share = None if len(self._routes.upstreams) == 1 else max(1, streams * 3 // 4)
        self._ways: dict[str, tuple[Upstream, Gate]] = {}
        for name, given in self._routes.upstreams.items():
            limit = given.concurrency or share
            self._ways[name] = Upstream(given, _limits(settings.limits, given), limit or streams), Gate(given, limit)

    def ways(self, model: str) -> list[Way]:
        """The upstreams to be asked for this model, in order; none when no route leads to one (any more)."""
        return [Way(*self._ways[found.upstream.name], found.model) for found in self._routes.find(model)]

    async def close(self) -> None:
        """Closes all connections."""
        for upstream, _ in self._ways.values():
            await upstream.close()


def time_to_wait(ways: Sequence[Way], failure: Exception) -> float | None:
    """Seconds after which one of these upstreams may answer what none has; None: the failure is the answer.

    One that fails once has answered. One that has failed several times in a row is down: its circuit is open, and that can be waited out.
    """
    pauses = [pause for way in ways if (pause := way.gate.pause(way.model)) > 0]
    if isinstance(failure, UpstreamBusy):
        pauses.append(failure.seconds)
    return min(pauses, default=None)


def _limits(limits: LimitSettings, upstream: UpstreamSettings) -> LimitSettings:
    own = {name: limit for name in ("first_token", "token_gap", "turn") if (limit := getattr(upstream, name)) is not None}
    return limits.model_copy(update=own)
