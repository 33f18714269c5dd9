"""The types that setting values have: durations, sizes and lists, with the unit of each."""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_settings import NoDecode

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


class Group(BaseModel):
    """One table of `backburner.toml`."""

    model_config = ConfigDict(frozen=True, extra="forbid")
