"""The types that setting values have: durations, sizes and lists, with the unit of each."""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Self
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_settings import NoDecode

_SENTINEL_PORT = 26379
HTTP_ADDRESS = r"https?://[^\s/?#@\\]+(/[^\s?#]*)?"
"""An http or https URL without user name, query and fragment."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a number, for `docs/settings.md`."""

    name: str


def _parse_seconds(value: object) -> object:
    """A number of seconds from the environment; pydantic parses other spellings."""
    if isinstance(value, str):
        try:
            return timedelta(seconds=float(value))
        except ValueError:
            return value
    return value


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


Duration = Annotated[timedelta, BeforeValidator(_parse_seconds), Unit("seconds")]
Bytes = Annotated[int, Unit("bytes")]
Tokens = Annotated[int, Unit("tokens")]
Characters = Annotated[int, Unit("characters")]
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
