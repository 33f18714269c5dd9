"""The upstreams of a worker process, and which of them a model's turns are put to."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.config.routes import Routes, limits_of
from models.config.settings import Settings
from models.errors import Deferred, LimitReached, RunError, UpstreamBusy, UpstreamFailed
from worker.upstream.client import Upstream
from worker.upstream.gate import ConcurrencyLimiter


@dataclass(frozen=True, slots=True)
class Candidate:
    """An upstream that serves a model, the gate before it, and the model's name there."""

    upstream: Upstream
    limiter: ConcurrencyLimiter
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
        self._by_name: dict[str, tuple[Upstream, ConcurrencyLimiter]] = {}
        for name, upstream_settings in self._routes.upstreams.items():
            limit = upstream_settings.concurrency or share
            self._by_name[name] = (
                Upstream(
                    upstream_settings,
                    limits_of(settings.limits, upstream_settings),
                    limit or streams,
                ),
                ConcurrencyLimiter(upstream_settings, limit),
            )

    def candidates(self, model: str) -> list[Candidate]:
        """The upstreams to be asked for this model, in order; none when no route leads to one (any more)."""
        return [
            Candidate(*self._by_name[found.upstream.name], found.model)
            for found in self._routes.find(model)
        ]

    async def close(self) -> None:
        """Closes all connections."""
        for upstream, _ in self._by_name.values():
            await upstream.close()


def failure_of_all(
    candidates: Sequence[Candidate],
    failures: Sequence[UpstreamFailed | LimitReached],
    *,
    can_wait: bool,
) -> RunError:
    """What is to be raised when none of these upstreams has said a word: PutOff, if that may pass and the response can wait for it.

    One that fails once has answered. One that has failed several times in a row is down: its circuit is open, and that can be waited out,
    as can that one is full. Who cannot wait hears of a failure before that nobody was asked.
    """
    pauses = [pause for way in candidates if (pause := way.limiter.seconds_open(way.model)) > 0]
    pauses += [failure.seconds for failure in failures if isinstance(failure, UpstreamBusy)]
    if can_wait and pauses:
        return Deferred(min(pauses))
    refusals = [failure for failure in failures if not isinstance(failure, UpstreamBusy)]
    return (refusals or failures)[-1]
