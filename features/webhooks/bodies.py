"""The bodies of the routes of webhook endpoints. Each function raises InvalidRequest."""

from datetime import timedelta
from typing import Any

from features.tenants.bodies import (
    boolean_field,
    integer_field,
    name_field,
    require_known,
    texts_field,
)
from features.webhooks.events import EventType
from features.webhooks.service import EndpointFields
from models.errors import InvalidRequest
from models.wire.checks.faults import missing, wrong_type

MAX_OVERLAP = 30 * 86_400
"""Seconds for which an old secret may stay valid."""
_A_DAY = 86_400


def create_fields(body: dict[str, Any]) -> EndpointFields:
    """Of a create: `url`, and if they are wanted `name` and `event_types`."""
    require_known(body, ("name", "url", "event_types"))
    if body.get("url") is None:
        raise missing("url")
    return _fields(body)


def update_fields(body: dict[str, Any]) -> EndpointFields:
    """Of an update: any of the same, and `enabled`."""
    require_known(body, ("name", "url", "event_types", "enabled"))
    return _fields(body)


def rotation_overlap(body: dict[str, Any]) -> timedelta:
    """How long the old secret stays valid: `overlap_seconds`, or a day with
    `keep_old_secret_active_for_24_hours`; else no time."""
    require_known(body, ("overlap_seconds", "keep_old_secret_active_for_24_hours"))
    keep = boolean_field(body, "keep_old_secret_active_for_24_hours")
    seconds = integer_field(body, "overlap_seconds", minimum=0, maximum=MAX_OVERLAP)
    if seconds is None:
        seconds = _A_DAY if keep else 0
    return timedelta(seconds=seconds)


def tested_type(body: dict[str, Any]) -> str | None:
    """`event_type` of a test."""
    require_known(body, ("event_type",))
    value = body.get("event_type")
    if value is None:
        return None
    if not isinstance(value, str):
        raise wrong_type("event_type", "a string", value)
    _require_types([value], "event_type")
    return value


def _fields(body: dict[str, Any]) -> EndpointFields:
    url = body.get("url")
    if url is not None and not isinstance(url, str):
        raise wrong_type("url", "a string", url)
    types = texts_field(body, "event_types")
    _require_types(types or [], "event_types")
    return EndpointFields(
        name_field(body, required=False), url, types, boolean_field(body, "enabled")
    )


def _require_types(types: list[str], param: str) -> None:
    known = [event.value for event in EventType]
    for name in types:
        if name not in known:
            raise InvalidRequest(
                f"Invalid value: '{name[:100]}'. Supported values are: {', '.join(known)}.",
                param=param,
                code="invalid_value",
            )
