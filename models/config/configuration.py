"""Builds the settings of a process, or reports each mistake with its line or variable: also each
variable that begins with `BACKBURNER_` and is not known.

A misspelt variable would otherwise be ignored without a word, and a default used in its place.
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, NoReturn, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_settings import SettingsError

from models.config.config_file import (
    PATH_VARIABLE,
    BadSettings,
    ConfigFile,
    Mistake,
    find_config_file,
    read_config_file,
)
from models.config.routes import Routes
from models.config.settings import UNPREFIXED_VARIABLES, Settings

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
                _mistake(place, f"{each['msg']}{_hint_of_key(place, each['type'])}", file)
                for each in error.errors(include_url=False, include_input=False)
                for place in [tuple(map(str, each["loc"]))]
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


PREFIX = "BACKBURNER_"

UP_VARIABLES = frozenset({"BACKBURNER_PG_BIN"})
"""Variables that only `up` reads; StackSettings has their meaning."""
FOREIGN_VARIABLES = {
    **dict.fromkeys(
        [
            *("BACKBURNER_TOML", "BACKBURNER_IMAGE", "BACKBURNER_LISTEN"),
            *("BACKBURNER_WEBS", "BACKBURNER_WORKERS", "BACKBURNER_STREAMS"),
            *("BACKBURNER_WEB_STOP", "BACKBURNER_WORKER_STOP"),
            *("BACKBURNER_WEB_MEMORY", "BACKBURNER_WORKER_MEMORY"),
            *("BACKBURNER_SANDBOX_IMAGE", "BACKBURNER_SANDBOX_MEMORY"),
            *("BACKBURNER_SANDBOX_DISK", "BACKBURNER_SANDBOX_CPUS", "BACKBURNER_SANDBOX_INTERNAL"),
        ],
        "docker-compose.yml ([deploy.md](deploy.md#variables))",
    ),
    **dict.fromkeys(
        [
            *("BACKBURNER_RECORDINGS", "BACKBURNER_REQUIRE_RECORDINGS"),
            *("BACKBURNER_REQUIRE_BROWSER", "BACKBURNER_STATE_MACHINE"),
        ],
        "tests ([testing.md](testing.md))",
    ),
}
"""Variables of other programs that have the same prefix -> the program, and its page."""

_SERVICE_LINK = re.compile(
    r"BACKBURNER(_[A-Z0-9]+)*"
    r"_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://")
"""The value of `<SERVICE>_PORT`."""


def unknown_variables(settings: type[BaseModel], environment: Mapping[str, str]) -> list[Mistake]:
    """One mistake for each variable with the prefix that neither these settings nor another program
    reads, with the nearest known name. Values are not part of a message."""
    known = {PATH_VARIABLE, *UP_VARIABLES, *FOREIGN_VARIABLES}
    mistakes = []
    for name in sorted(environment):
        variable = name.upper()
        if not variable.startswith(PREFIX) or variable in known:
            continue
        place = variable.removeprefix(PREFIX).split("__")
        names = {*known, *_names(settings, PREFIX, place)}
        if variable in names or _is_service_link(variable, environment[name]):
            continue
        message = f"is not a setting{_hint(variable, names)}"
        mistakes.append(Mistake("environment", "environment", message, key=name))
    return mistakes


def _is_service_link(variable: str, value: str) -> bool:
    """Whether Kubernetes made it for a Service whose name begins with `backburner`."""
    return _SERVICE_LINK.fullmatch(variable) is not None or (
        variable.endswith("_PORT") and _SERVICE_ADDRESS.match(value) is not None
    )


def _hint(variable: str, known: set[str]) -> str:
    # without the prefix, which would make all names alike
    names = {name.removeprefix(PREFIX): name for name in sorted(known)}
    nearest = get_close_matches(variable.removeprefix(PREFIX), names, n=1)
    return f"; the nearest name is {names[nearest[0]]}" if nearest else "; docs/settings.md has all"


def _hint_of_key(place: tuple[str, ...], kind: str) -> str:
    """The nearest name for a key of the file that is no setting; empty for other mistakes, and if
    no name is near. `kind`: the type of pydantic's error."""
    if kind != "extra_forbidden":
        return ""
    table = f"{PREFIX}{''.join(f'{key}__' for key in place[:-1])}".upper()
    known = _names(Settings, PREFIX, [key.upper() for key in place])
    names = [name.removeprefix(table).lower() for name in known if name.startswith(table)]
    beside = [name for name in names if "__" not in name and name != place[-1]]
    nearest = get_close_matches(place[-1], beside, n=1)
    return f"; the nearest name is {nearest[0]}" if nearest else ""


def _names(kind: Any, prefix: str, place: Sequence[str]) -> Iterator[str]:
    """The variables of all settings; where names are free, with the name that `place` has."""
    kind = _plain(kind)
    if get_origin(kind) is dict and place and place[0]:
        yield f"{prefix}{place[0]}"
        yield from _names(get_args(kind)[1], f"{prefix}{place[0]}__", place[1:])
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, info in kind.model_fields.items():
            yield UNPREFIXED_VARIABLES.get(name, f"{prefix}{name.upper()}")
            yield from _names(info.annotation, f"{prefix}{name.upper()}__", place[1:])


def _plain(kind: Any) -> Any:
    """The type without `Annotated` and without None."""
    if get_origin(kind) is Annotated:
        return _plain(get_args(kind)[0])
    if get_origin(kind) in (Union, UnionType):
        inner = [argument for argument in get_args(kind) if argument is not NoneType]
        return _plain(inner[0]) if len(inner) == 1 else kind
    return kind
