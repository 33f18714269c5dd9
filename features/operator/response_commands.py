"""The commands for responses: list, show, tail, and what an operator does to them."""

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import AsJson, Data, duration_option, with_groups
from cli.output import print_result, print_status
from features.operator.connection import (
    EXIT_CODES_HELP,
    EXIT_INTERRUPTED,
    EXIT_NOT_COMPLETED,
    EXIT_PENDING,
    EXIT_REFUSED,
    database_errors,
    run,
    show,
)
from features.operator.filter import Filter
from models.lifecycle import OperatorStatus, Status
from models.windows import CompletionWindow

if TYPE_CHECKING:
    from features.operator.operations import OperatorRequest
    from models.db.database import Connection

app = typer.Typer(help="Responses.", no_args_is_help=True)

DEFAULT_LIMIT = 50
ACTION_LIMIT = 1000
"""Most responses that one action with a filter is for, unless --limit is given."""

Response = Annotated[
    str,
    typer.Argument(
        metavar="RESPONSE_ID",
        help="The id that clients see, or its beginning; or the id of the request that made it.",
    ),
]
Wait = Annotated[float, typer.Option(min=0, help="Seconds to wait until it is acted on.")]
Statuses = Annotated[
    list[OperatorStatus] | None,
    typer.Option(
        "--status",
        metavar="STATUS",
        help=f"Its status: {', '.join(OperatorStatus)}. May be given several times.",
    ),
]
Project = Annotated[
    str | None, typer.Option(help="The name of its project; `*` stands for any characters.")
]
Model = Annotated[
    str | None,
    typer.Option(help="Its model, as the client named it; `*` stands for any characters."),
]
UpstreamName = Annotated[
    str | None, typer.Option(help="The upstream that failed, else that answered its last turn.")
]
Reason = Annotated[
    str | None, typer.Option(help="Why it failed or is incomplete: upstream_500, deadline, …")
]
Window = Annotated[
    CompletionWindow | None,
    typer.Option(metavar="WINDOW", help=f"Its completion window: {', '.join(CompletionWindow)}."),
]
Missed = Annotated[
    bool, typer.Option("--missed", help="Only those that have missed their completion window.")
]
Continuation = Annotated[
    str | None, typer.Option(metavar="ID", help="The continuation_id that the client gave it.")
]
Text = Annotated[
    str | None,
    typer.Option(
        metavar="WORDS",
        help='Words of its input and output: all of them; "a phrase"; a or b; -not. The audit log '
        "records it.",
    ),
]
User = Annotated[str | None, typer.Option(help="The `user` of the request.")]
SafetyIdentifier = Annotated[
    str | None, typer.Option(metavar="ID", help="The `safety_identifier` of the request.")
]
PromptCacheKey = Annotated[
    str | None, typer.Option(metavar="KEY", help="The `prompt_cache_key` of the request.")
]
Key = Annotated[
    str | None,
    typer.Option(help="The name of the API key of the request, or its first characters."),
]
Metadata = Annotated[
    str | None, typer.Option(metavar="KEY=VALUE", help="An entry of its metadata.")
]
Since = Annotated[
    timedelta | None,
    duration_option(
        "How long ago it was created at most: 90s, 15m, 7d.",
        "24h; any time for open ones, words, a user, key, metadata or identifier",
    ),
]
Limit = Annotated[
    int | None, typer.Option(min=1, metavar="COUNT", help="The most responses; the newest count.")
]
Responses = Annotated[
    list[str] | None, typer.Argument(metavar="RESPONSE_ID", help="Ids, or the beginnings of ids.")
]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Do it for all that fit the filter; else only show.")
]


@dataclass(frozen=True, slots=True)
class FilterOptions:
    """The options of a filter."""

    statuses: Statuses = None
    project: Project = None
    model: Model = None
    upstream: UpstreamName = None
    reason: Reason = None
    since: Since = None
    window: Window = None
    missed: Missed = False
    continuation: Continuation = None
    text: Text = None
    user: User = None
    safety_identifier: SafetyIdentifier = None
    prompt_cache_key: PromptCacheKey = None
    key: Key = None
    metadata: Metadata = None

    def filter(self) -> Filter:
        """What a response must fit. Raises BadParameter."""
        return Filter(
            self.statuses,
            self.project,
            self.model,
            self.upstream,
            self.reason,
            self.since,
            window=self.window,
            missed=self.missed,
            continuation=self.continuation,
            text=self.text,
            user=self.user,
            safety_identifier=self.safety_identifier,
            prompt_cache_key=self.prompt_cache_key,
            key=self.key,
            metadata=None if self.metadata is None else _metadata(self.metadata),
        )


def _metadata(text: str) -> tuple[str, str]:
    """A key of metadata, and its value."""
    key, mark, value = text.partition("=")
    if not mark or not key:
        raise typer.BadParameter("--metadata must be KEY=VALUE")
    return key, value


# Commands import when they run, as in cli/main.py.
@app.command("list", epilog=EXIT_CODES_HELP)
@with_groups
def list_responses(
    wanted: FilterOptions,
    limit: Limit = DEFAULT_LIMIT,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List responses, the newest first."""
    from features.operator import operations, report

    most = limit or DEFAULT_LIMIT
    found = run(data, lambda database: operations.list_responses(database, wanted.filter(), most))
    show(found, report.responses, report.responses_fields, as_json=as_json)


@app.command("show", epilog=EXIT_CODES_HELP)
def show_response(
    response: Response,
    output: Annotated[bool, typer.Option("--output", help="Also show its stored output.")] = False,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Show what is stored about a response. `explain` shows what happened to it."""
    from features.operator import operations, report

    shown = run(data, lambda database: operations.show(database, response, with_output=output))
    show(shown, report.response, report.response_fields, as_json=as_json)


@app.command("tail", epilog=f"{EXIT_CODES_HELP} {EXIT_INTERRUPTED} Ctrl-C.")
def tail_response(
    response: Response,
    after: Annotated[
        int, typer.Option(min=-1, help="The number of the last event that is not shown.")
    ] = -1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one event a line.")] = False,
    data: Data = None,
) -> None:
    """Show a response's events by number, from the first on, until it has ended."""
    from features.operator import tail

    with database_errors():
        try:
            is_whole = tail.run(response, after, data, as_json=as_json)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        if not is_whole:
            print_status("backburner: the stream broke off: the response was deleted")
            raise typer.Exit(EXIT_REFUSED)


@app.command(
    "watch",
    epilog=f"{EXIT_CODES_HELP} {EXIT_NOT_COMPLETED} it ended, but not as completed. "
    f"{EXIT_INTERRUPTED} Ctrl-C.",
)
def watch_response(
    response: Response,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object a line.")] = False,
    data: Data = None,
) -> None:
    """Show how far a response is, once a second, until it has ended.

    Its place in line, turns, tool calls and output tokens; on a terminal with a bar, else a line
    for each change. Nothing of its content is shown.
    """
    from features.operator import watch

    with database_errors():
        try:
            status = watch.run(response, data, as_json=as_json)
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None
        if status is None:
            print_status("backburner: the response was deleted")
            raise typer.Exit(EXIT_REFUSED)
        raise typer.Exit(0 if status == Status.COMPLETED else EXIT_NOT_COMPLETED)


@dataclass(frozen=True, slots=True)
class _Order:
    """Which responses an action is for, and how long it waits for its effect."""

    names: list[str]
    wanted: Filter
    limit: int
    is_confirmed: bool
    wait: float


def _add_action(action: str, description: str) -> None:
    """Adds the command of an action."""

    @app.command(action, help=description, epilog=EXIT_CODES_HELP)
    @with_groups
    def command(
        *,
        responses: Responses = None,
        chosen: FilterOptions,
        limit: Limit = ACTION_LIMIT,
        yes: Yes = False,
        wait: Wait = 10,
        as_json: AsJson = False,
        data: Data = None,
    ) -> None:
        wanted, names = chosen.filter(), responses or []
        if wanted.text is not None:
            raise typer.BadParameter("--text finds only responses that have ended")
        if bool(names) is not wanted.is_empty:
            raise typer.BadParameter("name responses, or give a filter such as --model; not both")
        _act(action, _Order(names, wanted, limit or ACTION_LIMIT, yes, wait), as_json, data)


_add_action("cancel", "Cancel responses, as their clients could. Output so far is kept.")
_add_action(
    "requeue",
    "Let workers release responses and claim them again; deferred ones are claimed at once.\n\n"
    "Output so far is kept, and the current turn is repeated. A tool call that is running then is "
    "repeated only if that is safe; else the model gets the result that its outcome is unknown.",
)
_add_action("fail", "End responses as failed, reason failed_by_operator. Output so far is kept.")


def _act(action: str, order: _Order, as_json: bool, data: Data) -> None:
    """Does the action for the named responses, or for the open ones that fit the filter."""
    from features.operator import operations, report
    from features.operator.service import Action

    async def request(database: "Connection") -> "tuple[list[OperatorRequest], list[str]]":
        names = order.names or await _names_of_matching(database, action, order)
        ids, refusals = await operations.resolve_ids(database, names)
        return await operations.request(database, Action(action), ids, order.wait, data), refusals

    results, refusals = run(data, request)
    show(results, report.requests, as_json=as_json)
    for refusal in refusals:
        print_status(f"backburner: {refusal}")
    if refusals or any(result.refused for result in results):
        raise typer.Exit(EXIT_REFUSED)
    raise typer.Exit(0 if all(result.acted for result in results) else EXIT_PENDING)


async def _names_of_matching(database: "Connection", action: str, order: _Order) -> list[str]:
    """The open responses that fit the filter. Ends the command if it was not confirmed."""
    from features.operator import operations, report

    wanted = order.wanted.restricted_to_open()
    found = await operations.list_responses(database, wanted, order.limit)
    if found.responses and not order.is_confirmed:
        print_result(report.responses(found))
    if not found.responses or not order.is_confirmed:
        print_status(report.intention(action, found))
        raise typer.Exit(EXIT_REFUSED if found.responses else 0)
    if found.more:
        print_status(f"More than {order.limit} fit; the newest are taken.")
    return [each.public_id for each in found.responses]
