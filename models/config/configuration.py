"""Builds the settings of a process, or reports each mistake with its line or variable."""

import os
import re
import sys
from typing import Any, NoReturn

from pydantic import ValidationError
from pydantic_settings import SettingsError

from models.config.config_file import (
    BadSettings,
    ConfigFile,
    Mistake,
    find_config_file,
    read_config_file,
)
from models.config.config_source import UNPREFIXED_VARIABLES
from models.config.routes import Routes
from models.config.settings import Settings
from models.config.variables import unknown_variables

SETTINGS_ERRORS = (BadSettings, SettingsError, ValidationError)
"""What reading settings raises."""


def build(**overrides: Any) -> Settings:
    """The settings of this process; `overrides` replace every source. Raises BadSettings."""
    unknown = find_unknown_variables()
    try:
        settings = Settings(**overrides)
    except SETTINGS_ERRORS as error:
        raise _add_unknown(to_bad_settings(error), unknown) from error
    if unknown:
        raise BadSettings(unknown)
    return settings


def find_unknown_variables() -> list[Mistake]:
    """The variables of this environment that begin with `BACKBURNER_` and that nothing reads."""
    return unknown_variables(Settings, os.environ)  # noqa: TID251  (only the names)


def _add_unknown(bad: BadSettings, unknown: list[Mistake]) -> BadSettings:
    """All mistakes; a variable that types show to be unknown too is reported once."""
    names = {mistake.key.upper() for mistake in unknown if mistake.key is not None}
    others = [mistake for mistake in bad.mistakes if (mistake.key or "").upper() not in names]
    return BadSettings([*unknown, *others])


def to_bad_settings(error: Exception) -> BadSettings:
    """All mistakes behind one of SETTINGS_ERRORS, each with its place, without the wrong values."""
    match error:
        case BadSettings():
            return error
        case ValidationError():
            file = read_config_file(find_config_file())
            mistakes = [
                _mistake(tuple(map(str, each["loc"])), each["msg"], file)
                for each in error.errors(include_url=False, include_input=False)
            ]
            return BadSettings(sorted(mistakes, key=lambda mistake: mistake.line or 0))
        case _:
            field = re.search(r'field "(\w+)"', str(error))
            key = f"BACKBURNER_{field[1]}".upper() if field is not None else None
            message = "cannot be read: JSON is expected there"
            return BadSettings([Mistake("environment", "environment", message, key=key)])


def _mistake(place: tuple[str, ...], message: str, file: ConfigFile) -> Mistake:
    """A mistake with the innermost place that is set: a variable, or else a line of the file."""
    variables = _variables()
    for end in range(len(place), 0, -1):
        inner = place[:end]
        name = variable_of(inner)
        line = file.lines.get((inner[0].lower(), *inner[1:]))
        if name in variables or (
            line is None and any(variable.startswith(f"{name}__") for variable in variables)
        ):
            return Mistake(
                "environment",
                "environment",
                message,
                key=name if end == len(place) else f"{name}: {'.'.join(place)}",
            )
        if line is not None:
            return Mistake("file", str(file.path), message, line, ".".join(place))
    return Mistake(
        "default",
        "not set",
        message,
        key=place[0] if place[0] in UNPREFIXED_VARIABLES.values() else ".".join(place),
    )


def variable_of(place: tuple[str, ...]) -> str:
    """The environment variable that overrides this key of the file."""
    unprefixed = UNPREFIXED_VARIABLES.get(place[0].lower())
    return unprefixed or f"BACKBURNER_{'__'.join(place)}".upper()


def origin(place: tuple[str, ...], file: ConfigFile) -> str:
    """Where a value comes from: `environment NAME`, `file, line N` or `default`."""
    for end in range(len(place), 0, -1):
        if variable_of(place[:end]) in _variables():
            return f"environment {variable_of(place[:end])}"
    return f"file, line {file.line(place)}" if file.has(place) else "default"


def _variables() -> set[str]:
    return {variable.upper() for variable in os.environ}  # noqa: TID251  (only the names)


def load(process: str) -> Settings:
    """The settings of a web or worker process, which need an upstream. `process`: its kind, for the
    log.

    If they are wrong, writes one line for each mistake and exits with status 2.
    """
    try:
        settings = build()
    except BadSettings as error:
        _exit_with_mistakes(process, error.mistakes)
    if not any(upstream.base_url for upstream in Routes(settings).upstreams.values()):
        message = (
            "no upstream is configured: set this variable, or list upstreams in backburner.toml"
        )
        mistake = Mistake("default", "not set", message, key="BACKBURNER_UPSTREAM__BASE_URL")
        _exit_with_mistakes(process, [mistake])
    return settings


def _exit_with_mistakes(process: str, mistakes: list[Mistake]) -> NoReturn:
    """On a terminal the lines are text, elsewhere they are lines of the log."""
    from models import logs  # commands import this module too, and structlog takes long

    for mistake in mistakes:
        if sys.stderr.isatty():
            print(f"configuration: {mistake}", file=sys.stderr)  # noqa: T201  (before there is any logging)
            continue
        fields = {
            "process": process,
            "where": mistake.where,
            "line": mistake.line,
            "setting": mistake.key,
            "reason": mistake.message,
        }
        logs.write_at_once("configuration_mistake", fields, level="critical")
    sys.exit(2)
