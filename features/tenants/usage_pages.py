"""What was used: by day, project and model."""

from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from features.console.errors import PageError
from features.console.page import Page
from features.console.paging import text_parameter
from features.console.visit import Visit
from models.db.database import fetch_idempotent
from models.db.queries.organization import FIND_PROJECTS
from models.db.queries.usage import USAGE_BY_DAY

_LOOKED_AT = 50_000
"""Rows of days that are summed up already, and as many entries of the others."""
_MOST_ROWS = 500
_DAYS = ("1", "7", "30")
_GROUPS = {
    "day": (False, False),
    "project": (True, False),
    "model": (False, True),
    "both": (True, True),
}
"""What a row is about, besides the day -> whether by project, and by model."""


async def show(visit: Visit) -> Response:
    """The page."""
    group, days = visit.query.get("by", "both"), visit.query.get("days", "7")
    if group not in _GROUPS or days not in _DAYS:
        raise PageError(400, "No such usage", "There is no such grouping, or no such time.")
    name, model = text_parameter(visit, "project"), text_parameter(visit, "model")
    by_project, by_model = _GROUPS[group]
    values: dict[str, object] = {
        "first": (datetime.now(UTC) - timedelta(days=int(days) - 1)).date(),
        "project": None,
        "model": model,
        "by_project": by_project,
        "by_model": by_model,
        "look_at": _LOOKED_AT,
        "max_rows": _MOST_ROWS,
    }
    mistake = None
    if name is not None:
        named = {"name": name, "digits": None}
        projects = await fetch_idempotent(visit.pool, FIND_PROJECTS, named)
        if projects:
            values["project"] = projects[0].id
        else:
            mistake = f"There is no project {name}."
    rows = [] if mistake else await fetch_idempotent(visit.pool, USAGE_BY_DAY, values)
    rolled = sum(row.rows for row in rows if row.is_rolled)
    open_days = sum(row.rows for row in rows if not row.is_rolled)
    return visit.page(
        "usage.html",
        rows=rows,
        most=max((row.input_tokens + row.output_tokens for row in rows), default=0),
        mistake=mistake,
        group=group,
        groups=tuple(_GROUPS),
        days=days,
        choices=_DAYS,
        project=name,
        model=model,
        is_cut=len(rows) == _MOST_ROWS,
        is_partial=max(rolled, open_days) >= _LOOKED_AT,
        looked_at=_LOOKED_AT,
    )


PAGES = (Page("/usage", show),)
