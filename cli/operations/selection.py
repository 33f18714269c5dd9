"""The options that choose which responses a command is about (models/operator/filter.py)."""

from datetime import timedelta
from typing import Annotated

import typer

from cli.options import parse_duration
from models.lifecycle import Status

DEFAULT_LIMIT = 50
ACTION_LIMIT = 1000
"""Most responses that one action with a filter is for, unless --limit is given."""

Statuses = Annotated[
    list[Status] | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        help=f"Its status: {', '.join(Status)}. May be given several times.",
    ),
]
Project = Annotated[str | None, typer.Option(help="The name of its project.")]
Model = Annotated[str | None, typer.Option(help="Its model, as the client named it.")]
UpstreamName = Annotated[str | None, typer.Option(help="The upstream that answered its last turn.")]
Reason = Annotated[
    str | None, typer.Option(help="Why it failed or is incomplete: upstream_500, deadline, …")
]
Since = Annotated[
    timedelta | None,
    typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        help="How long ago it was created at most: 90s, 15m, 7d.",
        show_default="24h; any time if only open ones are wanted",
    ),
]
Limit = Annotated[
    int | None, typer.Option(min=1, metavar="COUNT", help="The most responses; the newest count.")
]
