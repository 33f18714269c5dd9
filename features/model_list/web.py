"""The models that clients can request: configured names, and models of upstreams with patterns."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import structlog

from models.config.routes import Routes
from models.config.upstream import UpstreamSettings
from models.errors import RunFailed
from models.upstream_probe import UpstreamProbe, probe_upstream
from web.state import AppState, Feature

logger = structlog.get_logger()

_CACHE_SECONDS = 60.0
_FAILURE_CACHE_SECONDS = 5.0
"""Seconds without a new request after a failure: not every client waits for a broken upstream."""

ModelObject = dict[str, Any]
"""`{id, object, created, owned_by}`."""


class UpstreamModelList:
    """The models of one upstream, cached for a minute."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self._probe = UpstreamProbe()
        self._expires_at = 0.0
        self._lock = asyncio.Lock()

    async def probe(self) -> UpstreamProbe:
        """The upstream's models, or why they could not be read."""
        async with self._lock:
            if time.monotonic() >= self._expires_at:
                self._probe = await asyncio.to_thread(probe_upstream, self._settings)
                problem = self._probe.problem
                if problem is not None:
                    logger.warning(
                        "model_list_failed", upstream=self._settings.name, problem=problem
                    )
                self._expires_at = time.monotonic() + (
                    _CACHE_SECONDS if problem is None else _FAILURE_CACHE_SECONDS
                )
        return self._probe


class ModelCatalog:
    """The models that clients can request."""

    def __init__(self, upstreams: Mapping[str, UpstreamSettings]) -> None:
        """`upstreams`: all that are configured, by name."""
        self._model_lists = {
            name: UpstreamModelList(upstream) for name, upstream in upstreams.items()
        }

    async def models(self, routes: Routes) -> list[ModelObject]:
        """The names that these routes have, then the models of upstreams with patterns.

        Raises RunFailed (502) if there are none and an upstream's models could not be read.
        """
        by_name: dict[str, ModelObject] = {
            name: _model_object(name, targets[0].upstream)
            for name, targets in routes.patterns.items()
            if "*" not in name and routes.find(name)
        }
        upstreams = routes.wildcard_upstreams
        probes = await asyncio.gather(*(self._model_lists[name].probe() for name in upstreams))
        for upstream, probe in zip(upstreams, probes, strict=True):
            for model in probe.listed:
                for name in routes.client_names(upstream, model.id):
                    by_name.setdefault(name, _model_object(name, model.owned_by, model.created))
        failed = [probe.answer for probe in probes if probe.problem is not None]
        if not by_name and failed:
            message = f"The upstream's list of models could not be read: it {failed[0]}."
            raise RunFailed(502, message, kind="server_error", code=None)
        return list(by_name.values())


def _model_object(name: str, owner: str, created: int = 0) -> ModelObject:
    return {"id": name, "object": "model", "created": created, "owned_by": owner}


class ModelList(Feature):
    """The list of models, in a web process."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self.catalog = ModelCatalog(state.routes.server.upstreams)


FEATURE = ModelList
