"""Filters of the list of responses that somebody has saved under a name, and what the fields of the
filter offer: names of projects, and values of the newest responses.

Saved filters belong to the login: each user whom a proxy names has their own, and all who use one
token share theirs.
"""

from dataclasses import dataclass
from difflib import get_close_matches
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.console.access import STAFF
from features.console.page import Page, PageError, Visit
from models.db.database import execute, fetch, fetch_idempotent
from models.db.queries import console, listing

_MAX_FILTERS = 50
"""Of one login."""
_MAX_NAME = 60
_MAX_QUERY = 2_000
_NOT_SAVED = ("before", "id")
"""Parameters that are no part of a filter: the position of a page, and the search for one id."""


@dataclass(frozen=True, slots=True)
class SavedLink:
    """A saved filter, and where its link leads."""

    name: str
    address: str
    is_shown: bool
    """it is what the page shows"""


def _normal(pairs: list[tuple[str, str]]) -> str:
    return urlencode(
        sorted((name, value) for name, value in pairs if value and name not in _NOT_SAVED)
    )


async def read_saved_filters(visit: Visit) -> list[SavedLink]:
    """Those of this login, by name. A project's login has none: its name is that of a key."""
    if visit.user.of_project is not None:
        return []
    values = {"login": visit.user.name, "max_rows": _MAX_FILTERS}
    rows = await fetch_idempotent(visit.pool, console.SAVED_FILTERS, values)
    shown = _normal(visit.query.multi_items())
    return [
        SavedLink(row.name, f"{visit.url('/responses')}?{row.query}", row.query == shown)
        for row in rows
    ]


def _name(fields: QueryParams) -> str:
    """Raises PageError (400) for none, and for one that is too long."""
    name = " ".join(fields.get("name", "").split())
    if not name or len(name) > _MAX_NAME:
        raise PageError(
            400, "A name is needed", f"Give the filter a name of at most {_MAX_NAME} characters."
        )
    return name


async def save(visit: Visit) -> Response:
    """Saves the filter that the page has shown; in place of one of the same name."""
    fields = await visit.form(visit.user.token)
    query = _normal(parse_qsl(fields.get("query", "")))
    if not query or len(query) > _MAX_QUERY:
        raise PageError(400, "No filter", "Set a filter first. It may have 2 000 characters.")
    values = {"login": visit.user.name, "name": _name(fields), "query": query}
    if not await fetch(visit.pool, console.SAVE_FILTER, values | {"max_rows": _MAX_FILTERS}):
        raise PageError(
            409, "Too many filters", f"A login has at most {_MAX_FILTERS}. Delete one first."
        )
    return visit.redirect(visit.own_path(fields.get("next", "")))


async def delete(visit: Visit) -> Response:
    """Deletes a saved filter, and shows what it has shown."""
    fields = await visit.form(visit.user.token)
    values = {"login": visit.user.name, "name": _name(fields)}
    await execute(visit.pool, console.DELETE_FILTER, values)
    return visit.redirect(visit.own_path(fields.get("next", "")))


PAGES = (
    Page("/responses/filters", save, method="POST", roles=STAFF),
    Page("/responses/filters/delete", delete, method="POST", roles=STAFF),
)


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
