"""Options that several commands have, and how a command ends when it fails."""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from cli.errors import CommandFailed
from cli.output import print_status
from models import time_text
from models.config.config_file import BadSettings

EXIT_FAILED = 1
EXIT_BAD_CONFIGURATION = 2
"""The exit status if `backburner.toml` has mistakes."""

Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder of databases, credentials and logs.",
        show_default=".data in the checkout, else ~/.local/share/backburner",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]


@contextmanager
def exit_on_failure(status: int = EXIT_FAILED) -> Iterator[None]:
    """Ends the process with `status` and one sentence, or with 2 and a line for each mistake.

    Other exceptions keep their traceback.
    """
    try:
        yield
    except CommandFailed as failure:
        print_status(f"backburner: {failure}")
        raise typer.Exit(status) from failure
    except BadSettings as bad:
        for mistake in bad.mistakes:
            print_status(f"backburner: {mistake}")
        raise typer.Exit(EXIT_BAD_CONFIGURATION) from bad


def parse_duration(value: str | timedelta) -> timedelta:
    """A duration of the command line: a number of seconds, or with units as in `90s`, `2h`."""
    try:
        duration = value if isinstance(value, timedelta) else time_text.parse_duration(value)
    except OverflowError:
        duration = None
    if duration is None or duration < timedelta(0):
        raise typer.BadParameter("must be a duration such as 90s, 15m, 2h or 3d")
    return duration


def duration_option(meaning: str, show_default: bool | str = True) -> Any:
    """An option whose value is a duration. `show_default`: as of `typer.Option`."""
    return typer.Option(
        parser=parse_duration, metavar="DURATION", help=meaning, show_default=show_default
    )


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: in place of a parameter that is a dataclass, with its fields.
    A field has its option in its type (`Annotated`), and a default."""
    signature = inspect.signature(command, eval_str=True)
    parameters = signature.parameters.values()
    groups: dict[str, Any] = {
        each.name: each.annotation for each in parameters if is_dataclass(each.annotation)
    }

    @functools.wraps(command)
    def flat(**values: Any) -> None:
        for name, group in groups.items():
            options = {each.name: values.pop(each.name) for each in fields(group)}
            values[name] = group(**options)
        command(**values)

    options = [option for each in parameters for option in _options_of(each, groups.get(each.name))]
    del flat.__wrapped__
    flat.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    flat.__annotations__ = {each.name: each.annotation for each in options}
    return flat


def _options_of(parameter: inspect.Parameter, group: Any) -> Iterator[inspect.Parameter]:
    """The options that a parameter stands for: itself, or the fields of its group."""
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    if group is None:
        yield parameter.replace(kind=keyword_only)
        return
    types = get_type_hints(group, include_extras=True)
    for each in fields(group):
        yield inspect.Parameter(
            each.name, keyword_only, default=each.default, annotation=types[each.name]
        )
