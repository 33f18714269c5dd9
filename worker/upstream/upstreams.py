"""The upstreams of a worker process, and which of them a model's turns are put to."""

from dataclasses import dataclass

from models.settings import Settings
from models.upstreams import Routes
from worker.upstream.client import Upstream


@dataclass(frozen=True, slots=True)
class Way:
    """An upstream that serves a model, and the model's name there."""

    upstream: Upstream
    model: str


class Upstreams:
    """All that are configured, each with its connections."""

    def __init__(self, settings: Settings, streams: int) -> None:
        """`streams`: the most turns at a time."""
        self._routes = Routes(settings)
        self._upstreams = {name: Upstream(given, settings.limits, streams) for name, given in self._routes.upstreams.items()}

    def ways(self, model: str) -> list[Way]:
        """The upstreams to be asked for this model, in order; none when no route leads to one (any more)."""
        return [Way(self._upstreams[found.upstream.name], found.model) for found in self._routes.find(model)]

    async def close(self) -> None:
        """Closes all connections."""
        for upstream in self._upstreams.values():
            await upstream.close()
