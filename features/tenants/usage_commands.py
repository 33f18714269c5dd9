"""The command for usage."""

from datetime import timedelta
from typing import Annotated

import typer

from cli.options import AsJson, Data, parse_duration
from features.operator.connection import EXIT_CODES_HELP, run, show

app = typer.Typer()

_SINCE = timedelta(days=30)


# Commands import when they run, as in cli/main.py.
@app.command("usage", epilog=EXIT_CODES_HELP)
def show_usage(
    project: Annotated[str | None, typer.Option(help="Only of this project.")] = None,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    since: Annotated[
        timedelta,
        typer.Option(parser=parse_duration, metavar="DURATION", help="From so long ago until now."),
    ] = _SINCE,
    by: Annotated[
        list[str] | None,
        typer.Option(
            help="Groups: day, hour, project, key, model, upstream, tier; several times for "
            "several. Hours are kept for some days.",
            show_default="day",
        ),
    ] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Show requests and tokens that projects have used. Days are those of UTC."""
    from features.tenants import usage_listing as usage

    wanted = usage.UsageFilter(project, model, since)
    facts = run(data, lambda database: usage.usage(database, wanted, by or ["day"]))
    show(facts, usage.usage_text, as_json=as_json)
