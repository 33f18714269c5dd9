"""The models that clients can request: configured names, and models of upstreams with patterns."""

import asyncio
import importlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import structlog

from models.config.routes import Routes
from models.config.upstream import UpstreamSettings
from models.config.upstream_access import client_options
from models.errors import RunFailed
from web.state import AppState, Feature

if TYPE_CHECKING:
    from openai import AsyncOpenAI

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
        self._client: AsyncOpenAI | None = None
        self._models: list[ModelObject] | None = None
        self._expires_at = 0.0
        self._lock = asyncio.Lock()

    async def models(self) -> list[ModelObject] | None:
        """The upstream's models; None if they could not be read."""
        async with self._lock:
            if time.monotonic() >= self._expires_at:
                self._models = await self._fetch()
                self._expires_at = time.monotonic() + (
                    _CACHE_SECONDS if self._models is not None else _FAILURE_CACHE_SECONDS
                )
        return self._models

    async def _fetch(self) -> list[ModelObject] | None:
        # The import takes a second of CPU and only this route needs it: not at start, not in the
        # event loop.
        openai = await asyncio.to_thread(importlib.import_module, "openai")
        try:
            listed = await self._get_client(openai).models.list()
            return [
                {
                    "id": model.id,
                    "object": "model",
                    "created": int(model.created or 0),
                    "owned_by": model.owned_by or "upstream",
                }
                for model in listed.data
            ]
        # The SDK does not check what the upstream sends: a bad body raises any of these.
        except (openai.OpenAIError, TypeError, ValueError, AttributeError) as error:
            logger.warning(
                "model_list_failed", upstream=self._settings.name, error=type(error).__name__
            )
            return None

    def _get_client(self, openai: Any) -> "AsyncOpenAI":
        if self._client is None:
            # No redirects: the credential goes only to the configured address.
            http = openai.DefaultAsyncHttpxClient(follow_redirects=False)
            self._client = openai.AsyncOpenAI(
                **client_options(self._settings), max_retries=1, timeout=10.0, http_client=http
            )
        return self._client

    async def close(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.close()


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
        lists = await asyncio.gather(*(self._model_lists[name].models() for name in upstreams))
        for upstream, upstream_models in zip(upstreams, lists, strict=True):
            for model in upstream_models or ():
                for name in routes.client_names(upstream, model["id"]):
                    by_name.setdefault(name, {**model, "id": name})
        if not by_name and None in lists:
            raise RunFailed(
                502,
                "The upstream's list of models could not be read.",
                kind="server_error",
                code=None,
            )
        return list(by_name.values())

    async def close(self) -> None:
        """Closes the connections."""
        for model_list in self._model_lists.values():
            await model_list.close()


def _model_object(name: str, upstream: str) -> ModelObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": upstream}


class ModelList(Feature):
    """The list of models, in a web process."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self.catalog = ModelCatalog(state.routes.server.upstreams)

    async def close(self) -> None:
        """Closes the connections to upstreams."""
        await self.catalog.close()


FEATURE = ModelList
