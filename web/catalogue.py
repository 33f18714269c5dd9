"""/v1/models: what the upstream offers, remembered for a minute."""

import asyncio
import importlib
import time
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.errors import NotFound, RunFailed
from models.settings import UpstreamSettings
from web.answers import json_answer
from web.auth import Project

if TYPE_CHECKING:
    from openai import AsyncOpenAI

router = APIRouter(prefix="/v1/models")

_REMEMBERED = 60.0


class Catalogue:
    """The upstream's own list of models."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self._client: AsyncOpenAI | None = None
        self._models: list[dict[str, Any]] = []
        self._until = 0.0

    async def models(self) -> list[dict[str, Any]]:
        """The models, each `{id, object, created, owned_by}`. Raises RunFailed (502) when the upstream has no list for us."""
        if time.monotonic() >= self._until:
            self._models = await self._listed()
            self._until = time.monotonic() + _REMEMBERED
        return self._models

    async def _listed(self) -> list[dict[str, Any]]:
        # A second of CPU that only this route needs: not at start-up, and not in the event loop.
        openai = await asyncio.to_thread(importlib.import_module, "openai")
        if self._client is None:
            key = self._settings.api_key.get_secret_value()
            # No redirects: our credential goes where the operator said, and nowhere else.
            http = openai.DefaultAsyncHttpxClient(follow_redirects=False)
            self._client = openai.AsyncOpenAI(base_url=self._settings.base_url, api_key=key, max_retries=1, timeout=10.0, http_client=http)
        client: AsyncOpenAI = self._client
        try:
            listed = await client.models.list()
        except openai.OpenAIError as error:
            raise RunFailed(502, "The upstream's list of models could not be read.", kind="server_error", code=None) from error
        return [
            {"id": model.id, "object": "model", "created": int(model.created or 0), "owned_by": model.owned_by or "upstream"}
            for model in listed.data
        ]

    async def close(self) -> None:
        """Closes its connections."""
        if self._client is not None:
            await self._client.close()


@router.get("")
async def list_models(request: Request, _project: Project) -> Response:
    """All models."""
    return json_answer({"object": "list", "data": await request.app.state.front.catalogue.models()})


@router.get("/{model:path}")
async def one_model(model: str, request: Request, _project: Project) -> Response:
    """One model; a slash in its name may come as it is or as %2F."""
    for known in await request.app.state.front.catalogue.models():
        if known["id"] == model:
            return json_answer(known)
    raise NotFound(f"The model '{model}' does not exist.", param="model", code="model_not_found")
