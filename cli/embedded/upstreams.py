"""One request to each upstream of `up` while everything starts: for warnings, and for a model that
the example can name."""

from collections.abc import Iterator
from threading import Thread

from models.config.routes import Routes
from models.upstream_probe import TIMEOUT, UpstreamProbe, chat_models, probe_upstream


class UpstreamProbes:
    """One request to each upstream that has a route, each in a thread of its own."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._probes: dict[str, UpstreamProbe] = {}
        used = {target.upstream for targets in routes.patterns.values() for target in targets}
        self._threads = [
            # a daemon, so that the end of `up` does not wait for it
            Thread(target=self._probe, args=(name,), daemon=True)
            for name in routes.upstreams
            if name in used
        ]
        for thread in self._threads:
            thread.start()

    def _probe(self, name: str) -> None:
        self._probes[name] = probe_upstream(self._routes.upstreams[name])

    def problems(self) -> list[str]:
        """One line for each upstream that does not work; waits for the answers."""
        return [
            f"Warning: {probe.problem}."
            for probe in self._answers().values()
            if probe.problem is not None
        ]

    def example_model(self) -> str:
        """A model name that clients can use: one that an upstream lists, else one of a route, else
        `MODEL`. Waits for the answers."""
        names = (pattern for pattern in self._routes.patterns if "*" not in pattern)
        return next(self._listed_names(), None) or next(names, "MODEL")

    def _listed_names(self) -> Iterator[str]:
        """The client's names of listed models, those of routes without a `*` first."""
        answers = self._answers()
        for pattern, targets in self._routes.patterns.items():
            for target in targets if "*" not in pattern else ():
                probe = answers.get(target.upstream)
                if probe is not None and (target.model or pattern) in probe.models:
                    yield pattern
        for name, probe in answers.items():
            for model in chat_models(probe.models):
                yield from self._routes.client_names(name, model)

    def _answers(self) -> dict[str, UpstreamProbe]:
        """By name of the upstream, in the order of the configuration."""
        for thread in self._threads:
            thread.join(2 * TIMEOUT)
        return {name: self._probes[name] for name in self._routes.upstreams if name in self._probes}
