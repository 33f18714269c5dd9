"""The upstreams of a worker process, and which of them are called for a model."""

from collections.abc import Sequence
from dataclasses import dataclass

from models.config.routes import Routes, limits_of
from models.config.settings import Settings
from models.errors import Deferred, LimitReached, RunError, UpstreamBusy, UpstreamFailed
from worker.upstream.client import Upstream
from worker.upstream.gate import ConcurrencyLimiter


@dataclass(frozen=True, slots=True)
class Candidate:
    """An upstream that serves a model, its limiter, and the model's name there."""

    upstream: Upstream
    limiter: ConcurrencyLimiter
    model: str

    @property
    def name(self) -> str:
        """The upstream's name."""
        return self.upstream.settings.name


class Upstreams:
    """All configured upstreams, each with its connections."""

    def __init__(self, settings: Settings, streams: int) -> None:
        """`streams`: the maximum number of turns at a time."""
        self._routes = Routes(settings)
        # One of several must not take all slots: while it is slow the others still have some.
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
        """The upstreams for this model, in order; empty if no route leads to one (any more)."""
        return [
            Candidate(*self._by_name[destination.upstream.name], destination.model)
            for destination in self._routes.find(model)
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
    """The error to raise when all upstreams failed without output: Deferred if an upstream is down
    or full and the response can wait.

    An upstream is down when its circuit is open; a single failure does not count. A response that
    cannot wait gets a real failure rather than UpstreamBusy.
    """
    pauses = [
        pause
        for candidate in candidates
        if (pause := candidate.limiter.seconds_open(candidate.model)) > 0
    ]
    pauses += [failure.seconds for failure in failures if isinstance(failure, UpstreamBusy)]
    if can_wait and pauses:
        return Deferred(min(pauses))
    real_failures = [failure for failure in failures if not isinstance(failure, UpstreamBusy)]
    return (real_failures or failures)[-1]
