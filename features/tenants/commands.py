"""The commands for projects: what they have used, and the groups for projects and keys."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import RequestRefused
from cli.options import AsJson, Data, duration_option
from cli.output import clean, table
from features.operator.connection import EXIT_CODES_HELP, run, show
from features.tenants import key_commands, project_commands

if TYPE_CHECKING:
    from models.db.connection import Connection
    from models.db.queries.usage import UsageRow

app = typer.Typer()

_SINCE = timedelta(days=30)
_HOUR, _DAY = 3600, 86_400
_LABELS = {
    "project": "project_id",
    "key": "api_key_id",
    "model": "model",
    "upstream": "upstream",
    "tier": "service_tier",
    "window": "completion_window",
}
_GROUPS = ("day", "hour", *_LABELS)
_COUNTS = ("requests", "input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


# Commands import when they run, as in cli/main.py.
@app.command("usage", epilog=EXIT_CODES_HELP)
def show_usage(
    project: Annotated[str | None, typer.Option(help="Only of this project.")] = None,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    since: Annotated[timedelta, duration_option("From so long ago until now.")] = _SINCE,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="Groups: day, hour, project, key, model, upstream, tier, window (with its price); "
            "several times for several. Hours are kept for some days.",
            show_default="day",
        ),
    ] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Show requests and tokens that projects have used. Days are those of UTC."""
    groups, keys = by or ["day"], dict[str, str]()

    async def sums(database: "Connection") -> list[dict[str, Any]]:
        rows = await _rows(database, project, model, since, groups)
        names = await _project_names(database) if "project" in groups else {}
        if "key" in groups and not as_json:
            keys.update(await _key_names(database))
        return _sums(rows, groups, names)

    used = run(data, sums)
    show(
        _with_factors(used) if "window" in groups else used,
        partial(_table, keys=keys),
        as_json=as_json,
    )


def _with_factors(sums: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sums with the factor of the price of each one's window."""
    from cli.settings import configured_settings

    prices = configured_settings().prices
    return [each | {"price_factor": prices.factor_of(each["window"])} for each in sums]


async def _rows(
    database: "Connection",
    project: str | None,
    model: str | None,
    since: timedelta,
    by: Sequence[str],
) -> "list[UsageRow]":
    """What was used in each bucket of time. Raises RequestRefused."""
    from models.db.database import fetch
    from models.db.queries.leases import NOW
    from models.db.queries.usage import USAGE, usage_values

    unknown = sorted(set(by) - set(_GROUPS))
    if unknown:
        raise RequestRefused(f"usage cannot be grouped by {clean(unknown[0])}")
    [now] = await fetch(database, NOW, {})
    width = _HOUR if "hour" in by else _DAY
    values = usage_values(
        int((now - since).timestamp()) // width * width,
        int(now.timestamp()) + 1,
        width,
        [_LABELS[name] for name in by if name in _LABELS],
        project_ids=None
        if project is None
        else [(await project_commands.find_project(database, project)).id],
        models=None if model is None else [model],
    )
    return await fetch(database, USAGE, values)


def _sums(
    rows: "Sequence[UsageRow]", by: Sequence[str], projects: dict[str, str]
) -> list[dict[str, Any]]:
    """Sums, one for each group: `by` names what they are grouped by, and their first keys."""
    sums: dict[tuple[str, ...], dict[str, int]] = {}
    for row in rows:
        labels = tuple(_label(row, name, projects) for name in by)
        group = sums.setdefault(labels, dict.fromkeys(_COUNTS, 0))
        for count in _COUNTS:
            group[count] += getattr(row, count)
    return [dict(zip(by, labels, strict=True)) | counts for labels, counts in sums.items()]


def _table(facts: Sequence[dict[str, Any]], keys: Mapping[str, str]) -> str:
    """One line per group. `keys`: what people recognise each key by, by its id."""
    if not facts:
        return "nothing was used"
    head = [name.upper().replace("_", " ") for name in facts[0]]

    def text(name: str, value: object) -> str:
        shown = keys.get(str(value), value) if name == "key" else value
        return clean(str(shown))

    return table(head, [[text(name, value) for name, value in row.items()] for row in facts])


async def _key_names(database: "Connection") -> dict[str, str]:
    """First characters, name and project of each key, by its id."""
    from models.db.database import fetch
    from models.db.queries.organization import LIST_KEYS

    return {
        str(key.id): " ".join(filter(None, (f"{key.prefix}…", key.name, f"of {key.project}")))
        for key in await fetch(database, LIST_KEYS, {"project": None})
    }


async def _project_names(database: "Connection") -> dict[str, str]:
    from models.db.database import fetch
    from models.db.queries.organization import LIST_PROJECTS

    values = {"include_archived": True, "after": None, "max_rows": 100_000}
    return {str(row.id): row.name for row in await fetch(database, LIST_PROJECTS, values)}


def _label(row: "UsageRow", name: str, projects: dict[str, str]) -> str:
    if name in ("day", "hour"):
        begin = datetime.fromtimestamp(row.bucket, UTC)
        return f"{begin:%Y-%m-%d}" if name == "day" else f"{begin:%Y-%m-%dT%H:00Z}"
    value = str(getattr(row, _LABELS[name]) or "")
    return projects.get(value, value) if name == "project" else value


COMMANDS = (("projects", project_commands.app), ("keys", key_commands.app), (None, app))
"""The name of a group of commands, or None, and the commands."""
