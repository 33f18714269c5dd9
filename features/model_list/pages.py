"""A model for the first request that the overview shows."""

from features.console.page import Page
from features.model_list.web import ModelList
from models.errors import RunFailed
from models.upstream_probe import chat_models
from web.state import AppState

PAGES: tuple[Page, ...] = ()


async def first_model(state: AppState) -> str | None:
    """The name of a model that clients of the default project can request; None if none is
    known."""
    try:
        models = await ModelList.in_state(state).catalog.models(state.routes.server)
    except RunFailed:
        return None
    return next(iter(chat_models(model["id"] for model in models)), None)
