"""The upstreams of a worker process, and which of them a model's turns are put to."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.config.routes import Routes, limits_of
from models.config.settings import Settings
from models.errors import LimitReached, PutOff, RunError, UpstreamBusy, UpstreamFailed
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
            self._ways[name] = (
                Upstream(given, limits_of(settings.limits, given), limit or streams),
                Gate(given, limit),
            )

    def ways(self, model: str) -> list[Way]:
        """The upstreams to be asked for this model, in order; none when no route leads to one (any more)."""
        return [
            Way(*self._ways[found.upstream.name], found.model) for found in self._routes.find(model)
        ]

    async def close(self) -> None:
        """Closes all connections."""
        for upstream, _ in self._ways.values():
            await upstream.close()


def unserved(
    ways: Sequence[Way], failures: Sequence[UpstreamFailed | LimitReached], *, can_wait: bool
) -> RunError:
    """What is to be raised when none of these upstreams has said a word: PutOff, if that may pass and the response can wait for it.

    One that fails once has answered. One that has failed several times in a row is down: its circuit is open, and that can be waited out,
    as can that one is full. Who cannot wait hears of a failure before that nobody was asked.
    """
    pauses = [pause for way in ways if (pause := way.gate.pause(way.model)) > 0]
    pauses += [failure.seconds for failure in failures if isinstance(failure, UpstreamBusy)]
    if can_wait and pauses:
        return PutOff(min(pauses))
    asked = [failure for failure in failures if not isinstance(failure, UpstreamBusy)]
    return (asked or failures)[-1]
