"""Which responses a command is about: a filter, and what a list shows of each."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Self

import typer

from cli.options import parse_duration
from models.lifecycle import TERMINAL, Status

DEFAULT_SINCE = timedelta(hours=24)
"""How old a response may be that a list shows, unless only open ones are requested."""
DEFAULT_LIMIT = 50
ACTION_LIMIT = 1000
"""Most responses that one action with a filter is for, unless --limit is given."""
OPEN = [status for status in Status if status not in TERMINAL]

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


@dataclass(frozen=True, slots=True)
class Filter:
    """Conditions that a response must fit; None: any."""

    statuses: list[Status] | None = None
    project: str | None = None
    model: str | None = None
    upstream: str | None = None
    reason: str | None = None
    since: timedelta | None = None

    @property
    def is_empty(self) -> bool:
        """No condition is given."""
        return self == Filter()

    @property
    def is_open_only(self) -> bool:
        """Only responses that have not ended fit it."""
        return bool(self.statuses) and set(self.statuses or ()) <= set(OPEN)

    def restricted_to_open(self) -> Self:
        """The same conditions, for an action that only an open response permits."""
        return type(self)(
            self.statuses or OPEN, self.project, self.model, self.upstream, self.reason, self.since
        )

    def values(self, max_rows: int) -> dict[str, Any]:
        """The parameters of the statements in models/db/queries/listing.py."""
        since = self.since
        if since is None and not self.is_open_only:
            since = DEFAULT_SINCE
        return {
            "statuses": [status.value for status in self.statuses] if self.statuses else None,
            "project": self.project,
            "model": self.model,
            "upstream": self.upstream,
            "reason": self.reason,
            "since": since,
            "max_rows": max_rows,
        }
