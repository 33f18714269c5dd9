"""The types that setting values have: durations, sizes and lists, with the unit of each."""

import json
import re
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_network
from typing import Annotated, Self
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SecretStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError
from pydantic_settings import NoDecode

from models.config.addresses import CELL_NAME, SCHEMA_NAME_RULE, require_schema_name
from models.time_text import parse_duration

_SENTINEL_PORT = 26379
HTTP_ADDRESS = r"https?://[^\s/?#@\\]+(/[^\s?#]*)?"
"""An http or https URL without user name, query and fragment."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a number, for `docs/settings.md`."""

    name: str


_SIZE_UNITS = {
    "GiB": 1024**3,
    "MiB": 1024**2,
    "KiB": 1024,
    "GB": 1000**3,
    "MB": 1000**2,
    "KB": 1000,
    "B": 1,
}
"""Binary ones first, because defaults are powers of two."""
_SIZE_FACTORS = {name.lower(): factor for name, factor in _SIZE_UNITS.items()}


def _parse_duration(value: object, parse: ValidatorFunctionWrapHandler) -> timedelta:
    """A duration from text with units, a number of seconds, or what pydantic parses."""
    try:
        given = parse_duration(value) if isinstance(value, str) else None
        duration: timedelta = parse(value if given is None else given)
    except (ValidationError, OverflowError):
        raise ValueError("must be a duration such as 90s, 15m, 2h or 3d") from None
    if duration < timedelta(0):
        raise ValueError("must not be negative")
    return duration


def _parse_size(value: object) -> object:
    """A number of bytes from text with a unit; pydantic parses other spellings."""
    if not isinstance(value, str) or value.strip().isdigit():
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", value.lower())
    factor = _SIZE_FACTORS.get(match[2]) if match is not None else None
    if match is None or factor is None:
        raise ValueError("must be a size such as 65536, 512KiB, 64MiB or 1GiB")
    return round(float(match[1]) * factor)


def format_size(count: int) -> str:
    """A number of bytes as an operator writes it: `64MiB`, in the largest exact unit."""
    for name, factor in _SIZE_UNITS.items():
        if count >= factor and count % factor == 0:
            return f"{count // factor}{name}"
    return f"{count}B"


def _parse_list(value: object) -> object:
    """A list from the environment: separated by commas, or JSON."""
    if not isinstance(value, str):
        return value
    try:
        return (
            json.loads(value)
            if value.startswith("[")
            else [entry.strip() for entry in value.split(",") if entry.strip()]
        )
    except ValueError:
        return value


def _check_schema_name(value: str) -> str:
    """A name that needs no quotes in SQL, and is none of Postgres's own schemas."""
    try:
        require_schema_name(value)
    except ValueError:
        raise PydanticCustomError("schema_name", SCHEMA_NAME_RULE) from None
    return value


def _check_cell_name(value: str) -> str:
    if value and not re.fullmatch(CELL_NAME, value):
        raise ValueError("must have 1 to 12 characters of a-z and 0-9")
    return value


def _check_http_address(value: str) -> str:
    if value and not re.fullmatch(HTTP_ADDRESS, value):
        raise ValueError(
            "must be an http:// or https:// address without user name, query or fragment"
        )
    return value


_HOST_NAME = re.compile(r"(\*\.)?(?=.*[A-Za-z])[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")


def check_destinations(entries: tuple[str, ...]) -> tuple[str, ...]:
    """The same entries of an allow-list: networks and host names. Raises ValueError for others."""
    for entry in entries:
        try:
            ip_network(entry, strict=False)
        except ValueError:
            if not _HOST_NAME.fullmatch(entry):
                raise ValueError(
                    f"{entry!r} is neither a network such as 10.1.0.0/16 nor a host name"
                ) from None
    return entries


Duration = Annotated[timedelta, WrapValidator(_parse_duration), Unit("duration")]
Bytes = Annotated[int, BeforeValidator(_parse_size), Unit("size")]
Tokens = Annotated[int, Unit("tokens")]
Characters = Annotated[int, Unit("characters")]
CellName = Annotated[str, AfterValidator(_check_cell_name)]
SchemaName = Annotated[str, AfterValidator(_check_schema_name)]
HttpAddress = Annotated[str, AfterValidator(_check_http_address)]
"""As HTTP_ADDRESS, or empty."""
EMPTY_IS_UNSET = BeforeValidator(lambda value: value or None)
"""For a setting that may be None."""
Secret = Annotated[SecretStr | None, EMPTY_IS_UNSET]
TextList = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_parse_list)]


@dataclass(frozen=True, slots=True)
class SentinelAddress:
    """A Redis that Sentinel watches: `sentinel://[user:password@]host[:port],…/[database]?master=NAME`.

    The user is that of Redis; `sentinel_password` in the query is the password of the Sentinels."""

    sentinels: tuple[tuple[str, int], ...]
    """host and port of each Sentinel"""
    master: str
    """the name under which the Sentinels know the primary"""
    database: int
    username: str | None
    password: str | None
    sentinel_password: str | None

    @classmethod
    def parse(cls, url: str) -> Self | None:
        """None for a URL of another scheme. Raises ValueError without repeating the URL, which has
        a password."""
        scheme, _, rest = url.partition("://")
        if scheme != "sentinel":
            return None
        parts = urlsplit(f"//{rest}")
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        master = query.pop("master", "")
        sentinel_password = query.pop("sentinel_password", None)
        hosts = parts.netloc.rpartition("@")[2].split(",")
        database = parts.path.strip("/") or "0"
        if query or not master or not all(hosts) or not database.isdigit():
            raise ValueError(
                "must be sentinel://[user:password@]host[:port],host[:port]/database?master=NAME"
            )
        return cls(
            sentinels=tuple(map(_host_and_port, hosts)),
            master=master,
            database=int(database),
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            sentinel_password=sentinel_password,
        )


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if colon and port.isdigit():
        return host.strip("[]"), int(port)
    return text.strip("[]"), _SENTINEL_PORT


class Group(BaseModel):
    """One table of `backburner.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
