"""/v1/models: what is routed. Of patterns, what their upstreams offer; each upstream's list is remembered for a minute."""

import asyncio
import importlib
import time
from typing import TYPE_CHECKING, Any

import structlog
from fastapi import APIRouter, Request
from starlette.responses import Response

from models.config.routes import Routes
from models.config.settings import Settings
from models.config.upstream import UpstreamSettings
from models.errors import NotFound, RunFailed
from web.http.auth import Project
from web.http.json_responses import json_response

if TYPE_CHECKING:
    from openai import AsyncOpenAI

router = APIRouter(prefix="/v1/models")
logger = structlog.get_logger()

_CACHE_SECONDS = 60.0
_FAILURE_CACHE_SECONDS = 5.0
"""Seconds in which an upstream that gave no list is not asked again: nobody waits for it twice."""

ModelObject = dict[str, Any]
"""`{id, object, created, owned_by}`."""


class UpstreamModelList:
    """One upstream's own list of models."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self._client: AsyncOpenAI | None = None
        self._models: list[ModelObject] | None = None
        self._expires_at = 0.0
        self._lock = asyncio.Lock()

    async def models(self) -> list[ModelObject] | None:
        """Its models; None when it has no list for us."""
        async with self._lock:
            if time.monotonic() >= self._expires_at:
                self._models = await self._fetch()
                self._expires_at = time.monotonic() + (
                    _CACHE_SECONDS if self._models is not None else _FAILURE_CACHE_SECONDS
                )
        return self._models

    async def _fetch(self) -> list[ModelObject] | None:
        # A second of CPU that only this route needs: not at start-up, and not in the event loop.
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
        except (
            openai.OpenAIError,
            TypeError,
            ValueError,
            AttributeError,
        ) as error:  # the SDK checks nothing of what it is sent
            logger.warning(
                "models_not_listed", upstream=self._settings.name, error=type(error).__name__
            )
            return None

    def _get_client(self, openai: Any) -> "AsyncOpenAI":
        if self._client is None:
            settings = self._settings
            # No redirects: our credential goes where the operator said, and nowhere else.
            http = openai.DefaultAsyncHttpxClient(follow_redirects=False)
            self._client = openai.AsyncOpenAI(
                base_url=settings.base_url,
                api_key=settings.api_key.get_secret_value(),
                default_headers={
                    name: value.get_secret_value() for name, value in settings.headers.items()
                },
                default_query=dict(settings.query),
                max_retries=1,
                timeout=10.0,
                http_client=http,
            )
        return self._client

    async def close(self) -> None:
        """Closes its connections."""
        if self._client is not None:
            await self._client.close()


class ModelCatalog:
    """The models that clients can ask for."""

    def __init__(self, settings: Settings) -> None:
        self._routes = Routes(settings)
        self._model_lists = {
            name: UpstreamModelList(upstream) for name, upstream in self._routes.upstreams.items()
        }

    async def models(self) -> list[ModelObject]:
        """Those with a route of their own first. Raises RunFailed (502) when there is nothing to show because no upstream has a list."""
        by_name: dict[str, ModelObject] = {
            name: _model_object(name, targets[0].upstream)
            for name, targets in self._routes.patterns.items()
            if "*" not in name
        }
        upstreams = self._routes.wildcard_upstreams
        listings = await asyncio.gather(*(self._model_lists[name].models() for name in upstreams))
        for upstream, listed in zip(upstreams, listings, strict=True):
            for model in listed or ():
                for name in self._routes.client_names(upstream, model["id"]):
                    by_name.setdefault(name, {**model, "id": name})
        if not by_name and None in listings:
            raise RunFailed(
                502,
                "The upstream's list of models could not be read.",
                kind="server_error",
                code=None,
            )
        return list(by_name.values())

    async def close(self) -> None:
        """Closes its connections."""
        for listing in self._model_lists.values():
            await listing.close()


def _model_object(name: str, upstream: str) -> ModelObject:
    return {"id": name, "object": "model", "created": 0, "owned_by": upstream}


@router.get("")
async def list_models(request: Request, _project: Project) -> Response:
    """All models."""
    return json_response(
        {"object": "list", "data": await request.app.state.app_state.model_catalog.models()}
    )


@router.get("/{model:path}")
async def one_model(model: str, request: Request, _project: Project) -> Response:
    """One model; a slash in its name may come as it is or as %2F."""
    for known in await request.app.state.app_state.model_catalog.models():
        if known["id"] == model:
            return json_response(known)
    raise NotFound(f"The model '{model}' does not exist.", param="model", code="model_not_found")
