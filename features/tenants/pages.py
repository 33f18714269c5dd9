"""The projects and their keys (project_*.py, key_pages.py), and what was used by day, project
and model."""

from datetime import UTC, datetime, timedelta

from starlette.responses import Response

from features.console.access import EVERYONE
from features.console.page import Page, Visit, choice, project_of
from features.tenants import key_pages, project_changes, project_list, project_pages
from models.db.database import fetch_idempotent
from models.db.queries import usage

_LOOKED_AT = 50_000
"""Rows of days that are summed up already, and as many entries of the others."""
_MOST_ROWS = 500
_DAY_CHOICES = {"1": "today", "7": "7 days", "30": "30 days"}
_GROUPS = {
    "day": "day",
    "project": "project",
    "model": "model",
    "both": "project and model",
}
"""What a row is about, besides the day."""


async def show_usage(visit: Visit) -> Response:
    """What was used, by day, project and model."""
    group = choice(visit.query, "by", _GROUPS, "both")
    days = choice(visit.query, "days", _DAY_CHOICES, "7")
    name, model = visit.text("project"), visit.text("model")
    project = None if name is None else await project_of(visit, name)
    is_unknown = name is not None and project is None
    values = {
        "first": (datetime.now(UTC) - timedelta(days=int(days) - 1)).date(),
        "project": project,
        "model": model,
        "by_project": group in ("project", "both"),
        "by_model": group in ("model", "both"),
        "look_at": _LOOKED_AT,
        "max_rows": _MOST_ROWS,
    }
    rows = [] if is_unknown else await fetch_idempotent(visit.pool, usage.USAGE_BY_DAY, values)
    rolled = sum(row.rows for row in rows if row.is_rolled)
    open_days = sum(row.rows for row in rows if not row.is_rolled)
    return visit.page(
        "usage.html",
        rows=rows,
        most=max((row.input_tokens + row.output_tokens for row in rows), default=0),
        unknown_project=name if is_unknown else None,
        group=group,
        groups=_GROUPS.items(),
        days=days,
        day_choices=_DAY_CHOICES.items(),
        is_cut=len(rows) == _MOST_ROWS,
        is_partial=max(rolled, open_days) >= _LOOKED_AT,
        looked_at=_LOOKED_AT,
    )


PAGES = (
    *project_list.PAGES,
    *project_changes.PAGES,
    *key_pages.PAGES,
    *project_pages.PAGES,
    Page("/usage", show_usage, menu="Usage", roles=EVERYONE),
)
