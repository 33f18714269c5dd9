"""The bodies of the admin API."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from models.errors import InvalidRequest
from models.projects.changes import MAX_NAME, is_name
from models.wire.checks.faults import missing, out_of_bounds, unknown_parameter, wrong_type

MAX_SECONDS = 10 * 366 * 86_400
_MAX_TEXTS = 1000
_MAX_CHARACTERS = 64 * 1024
"""Of a list of strings. Each look-up of a key reads its models."""


def require_known(body: dict[str, Any], known: Collection[str]) -> None:
    """Raises InvalidRequest for a field that the route does not have, unless it is null."""
    for name, value in body.items():
        if name not in known and value is not None:
            raise unknown_parameter(name)


def name_field(body: dict[str, Any], *, required: bool) -> str | None:
    """`name`. Raises InvalidRequest."""
    name = body.get("name")
    if name is None:
        if required:
            raise missing("name")
        return None
    if not isinstance(name, str):
        raise wrong_type("name", "a string", name)
    if not is_name(name):
        raise InvalidRequest(
            f"Invalid 'name': expected 1 to {MAX_NAME} characters that can be printed.",
            param="name",
            code="invalid_value",
        )
    return name


def integer_field(body: dict[str, Any], name: str, *, minimum: int, maximum: int) -> int | None:
    """An optional integer. Raises InvalidRequest."""
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int:
        raise wrong_type(name, "an integer", value)
    if not minimum <= value <= maximum:
        raise out_of_bounds(name, "integer", minimum=minimum, maximum=maximum, value=value)
    return value


def lifetime_field(body: dict[str, Any]) -> timedelta | None:
    """`expires_in_seconds`. Raises InvalidRequest."""
    seconds = integer_field(body, "expires_in_seconds", minimum=1, maximum=MAX_SECONDS)
    return None if seconds is None else timedelta(seconds=seconds)


def boolean_field(body: dict[str, Any], name: str) -> bool | None:
    """An optional boolean. Raises InvalidRequest."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong_type(name, "a boolean", value)
    return value


def object_field(body: dict[str, Any], name: str) -> dict[str, Any] | None:
    """An optional object. Raises InvalidRequest."""
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise wrong_type(name, "an object", value)
    return value


def texts_field(body: dict[str, Any], name: str, allowed: Collection[str] = ()) -> list[str] | None:
    """An optional list of strings, each one of `allowed` if there are any. Raises
    InvalidRequest."""
    value = body.get(name)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise wrong_type(name, "an array of strings", value)
    if len(value) > _MAX_TEXTS or sum(map(len, value)) > _MAX_CHARACTERS:
        raise InvalidRequest(
            f"Invalid '{name}': expected at most {_MAX_TEXTS} strings, with {_MAX_CHARACTERS} "
            "characters together.",
            param=name,
            code="array_above_max_length",
        )
    wrong = [text for text in value if allowed and text not in allowed]
    if wrong:
        raise InvalidRequest(
            f"Invalid value: '{wrong[0][:100]}'. Supported values are: {', '.join(allowed)}.",
            param=name,
            code="invalid_value",
        )
    return value
