"""Which environment variables that begin with `BACKBURNER_` are known. Pure.

A misspelt variable would otherwise be ignored without a word, and a default used in its place.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from models.config.config_file import PATH_VARIABLE, Mistake
from models.config.config_source import UNPREFIXED_VARIABLES

PREFIX = "BACKBURNER_"

UP_VARIABLES = frozenset({"BACKBURNER_PG_BIN"})
"""Variables that only `up` reads; StackSettings has their meaning."""
FOREIGN_VARIABLES = {
    "BACKBURNER_TOML": "docker-compose.yml: the path of `backburner.toml` on the host",
    "BACKBURNER_IMAGE": "docker-compose.yml: the name of the image",
    "BACKBURNER_LISTEN": "docker-compose.yml: the published address of web",
    "BACKBURNER_WEBS": "docker-compose.yml: the number of web containers",
    "BACKBURNER_WORKERS": "docker-compose.yml: the number of worker containers",
    "BACKBURNER_STREAMS": "docker-compose.yml: background responses that a worker runs at a time",
    "BACKBURNER_WEB_STOP": "docker-compose.yml: time until a stopping web is killed",
    "BACKBURNER_WORKER_STOP": "docker-compose.yml: time until a stopping worker is killed",
    "BACKBURNER_WEB_MEMORY": "docker-compose.yml: memory of a web container",
    "BACKBURNER_WORKER_MEMORY": "docker-compose.yml: memory of a worker container",
    "BACKBURNER_RECORDINGS": "tests: the folder of recorded streams",
    "BACKBURNER_REQUIRE_BROWSER": "tests: `1` makes a missing browser a failure",
    "BACKBURNER_REQUIRE_RECORDINGS": "tests: `1` makes a missing recording a failure",
    "BACKBURNER_STATE_MACHINE": "tests: the number of examples of the state machine",
}
"""Variables of other programs that have the same prefix, with their meanings."""

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
