"""What the fields of the filter of responses offer: names of projects, and values of the newest
responses."""

from dataclasses import dataclass
from difflib import get_close_matches

from features.console.page import Visit
from models.db.database import fetch_idempotent
from models.db.queries import listing

_MAX_PROJECTS = 500
_NEWEST = 500
"""Responses whose values are offered."""
_MAX_NEAR = 3


@dataclass(frozen=True, slots=True)
class Choices:
    """Known values, by the field."""

    projects: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    upstreams: tuple[str, ...] = ()
    metadata: tuple[str, ...] = ()
    """`key=` of each known key"""


async def read_choices(visit: Visit) -> Choices:
    """The values that are known now. Of other projects a project's login learns none."""
    if (own := visit.user.of_project) is not None:
        return Choices((own.project,))
    limit = {"max_rows": _MAX_PROJECTS}
    projects = await fetch_idempotent(visit.pool, listing.PROJECT_NAMES, limit)
    [recent] = await fetch_idempotent(visit.pool, listing.RECENT_VALUES, {"max_rows": _NEWEST})
    return Choices(
        tuple(projects),
        tuple(recent.models),
        tuple({*recent.upstreams, *visit.state.settings.upstreams}),
        tuple(f"{key}=" for key in recent.metadata),
    )


def near_model(model: str | None, choices: Choices) -> list[str]:
    """Models that may have been meant: similar names, and a pattern if some begin with this one."""
    if model is None or "*" in model or model in choices.models:
        return []
    near = get_close_matches(model, choices.models, n=_MAX_NEAR)
    begins = any(each.startswith(model) for each in choices.models)
    return [f"{model}*", *near] if begins else near
