"""The commands for projects: what they have used, and the groups for projects and keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import RequestRefused
from cli.options import AsJson, Data, duration_option
from cli.output import clean, print_result, table
from features.operator.connection import EXIT_CODES_HELP, run, show
from features.tenants import key_commands, project_commands

if TYPE_CHECKING:
    from models.config.prices import PriceSettings
    from models.db.connection import Connection
    from models.db.queries.organization import KeyDetails
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
_UNPRICED = "requests_without_cost"


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
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for a spreadsheet.")] = False,
    data: Data = None,
) -> None:
    """Show requests and tokens that projects have used, and their cost. Days are those of UTC."""
    from cli.settings import configured_settings

    groups = by or ["day"]
    prices = configured_settings().prices

    async def sums(database: "Connection") -> list[dict[str, Any]]:
        rows = await _rows(database, project, model, since, groups)
        return _sums(rows, groups, await _names(database, rows, groups), prices)

    used = run(data, sums)
    if as_csv:
        print_result(_csv(used, groups).rstrip())
    else:
        show(used, _table, as_json=as_json)


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


@dataclass(frozen=True, slots=True)
class _Names:
    """What ids stand for."""

    projects: dict[str, str]
    keys: "dict[str, KeyDetails]"


async def _names(database: "Connection", rows: "Sequence[UsageRow]", by: Sequence[str]) -> _Names:
    from models.db.database import fetch
    from models.db.queries.organization import KEYS_BY_ID, LIST_PROJECTS

    every = {"include_archived": True, "after": None, "max_rows": 100_000}
    projects = await fetch(database, LIST_PROJECTS, every) if "project" in by else []
    ids = list({row.api_key_id for row in rows if row.api_key_id is not None})
    keys = await fetch(database, KEYS_BY_ID, {"ids": ids}) if ids else []
    return _Names({str(row.id): row.name for row in projects}, {str(row.id): row for row in keys})


def _sums(
    rows: "Sequence[UsageRow]", by: Sequence[str], names: _Names, prices: "PriceSettings"
) -> list[dict[str, Any]]:
    """Sums, one for each group: `by` names what they are grouped by, and their first fields."""
    from models.prices import exact_cost

    sums: dict[tuple[str, ...], dict[str, int]] = {}
    costs: dict[tuple[str, ...], int] = {}
    for row in rows:
        labels = tuple(_label(row, name) for name in by)
        group = sums.setdefault(labels, dict.fromkeys((*_COUNTS, _UNPRICED), 0))
        for count in _COUNTS:
            group[count] += getattr(row, count)
        group[_UNPRICED] += row.unpriced
        if row.cost is not None:
            costs[labels] = costs.get(labels, 0) + row.cost
    return [
        {
            **_named(dict(zip(by, labels, strict=True)), names),
            **{count: counts[count] for count in _COUNTS},
            "cost": exact_cost(costs[labels]) if labels in costs else None,
            "currency": prices.currency,
            _UNPRICED: counts[_UNPRICED],
            **({"price_factor": _factor(prices, labels, by)} if "window" in by else {}),
        }
        for labels, counts in sums.items()
    ]


def _factor(prices: "PriceSettings", labels: tuple[str, ...], by: Sequence[str]) -> float:
    return prices.factor_of(labels[by.index("window")])


def _label(row: "UsageRow", name: str) -> str:
    if name in ("day", "hour"):
        begin = datetime.fromtimestamp(row.bucket, UTC)
        return f"{begin:%Y-%m-%d}" if name == "day" else f"{begin:%Y-%m-%dT%H:00Z}"
    return str(getattr(row, _LABELS[name]) or "")


def _named(labels: dict[str, str], names: _Names) -> dict[str, str]:
    """The labels with names in place of ids: of a project its name, of a key its first characters,
    and with it its name and project. What is deleted keeps its id."""
    named: dict[str, str] = {}
    for label, value in labels.items():
        if label == "project":
            named[label] = names.projects.get(value, value)
        elif label == "key":
            key = names.keys.get(value)
            named[label] = value if key is None else key.prefix
            named["name"] = "" if key is None else key.name or ""
            if "project" not in labels:
                named["project"] = "" if key is None else key.project
        else:
            named[label] = value
    return named


def _table(facts: Sequence[dict[str, Any]]) -> str:
    """One line per group. What is not known of any is left out."""
    if not facts:
        return "nothing was used"
    known_costs = any(row["cost"] is not None for row in facts)
    hidden = {"currency", _UNPRICED} if known_costs else {"currency", _UNPRICED, "cost"}
    if known_costs and any(row[_UNPRICED] for row in facts):
        hidden.remove(_UNPRICED)
    shown = [{name: row[name] for name in row if name not in hidden} for row in facts]
    for row, fact in zip(shown, facts, strict=True):
        if known_costs:
            row["cost"] = f"{fact['cost']} {fact['currency']}" if fact["cost"] is not None else "-"
    head = [name.upper().replace("_", " ") for name in shown[0]]
    return table(head, [[clean(str(value)) for value in row.values()] for row in shown])


def _csv(facts: Sequence[dict[str, Any]], by: Sequence[str]) -> str:
    from models.csv_text import csv_text

    head = list(facts[0]) if facts else list(by)
    return csv_text(head, [list(row.values()) for row in facts])


COMMANDS = (("projects", project_commands.app), ("keys", key_commands.app), (None, app))
"""The name of a group of commands, or None, and the commands."""
