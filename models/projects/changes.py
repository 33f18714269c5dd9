"""Changes of a policy, as commands and the admin API make them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from models.projects.policy import ProjectPolicy

MAX_NAME = 100
"""Characters of the name of a project, a key or a service account."""
MAX_WEIGHT = 1000
_MAX_POLICY = 64 * 1024
"""Bytes. Each look-up of a key reads the policy, and a list of projects has a hundred."""


class BadPolicy(ValueError):
    """A policy has a field that does not exist, or a value that is not possible. `place`: the
    field, as `quotas.requests`."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.place = place
        self.message = message


def changed_policy(stored: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The policy to store: `stored` with `changes` as a JSON Merge Patch (RFC 7396), in which null
    removes a field. Fields of a later release stay. Raises BadPolicy."""
    try:
        ProjectPolicy.model_validate(_without_nulls(changes))
        merged = _merge(stored, changes)
        normal = ProjectPolicy.from_json(merged).to_json()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            message = "there is no such field"
        raise BadPolicy(".".join(map(str, first["loc"])), message) from None
    policy = _unknown(stored) | normal
    if len(json.dumps(policy)) > _MAX_POLICY:
        raise BadPolicy("", f"it has more than {_MAX_POLICY} bytes as JSON")
    return policy


def _merge(stored: Any, changes: Any) -> Any:
    if not isinstance(changes, Mapping):
        return changes
    merged = dict(stored) if isinstance(stored, Mapping) else {}
    for name, value in changes.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = _merge(merged.get(name), value)
    return merged


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: _without_nulls(part) for name, part in value.items() if part is not None}


def _unknown(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The top-level fields that only a later release knows."""
    return {name: value for name, value in stored.items() if name not in ProjectPolicy.model_fields}


def parse_routes(lines: Iterable[str]) -> dict[str, Any]:
    """Routes of a project, as people write them: `gpt-*=cloud-a,local`, and
    `fast=cloud-a:gpt-5-mini` for another name there. Raises BadPolicy."""
    routes = {}
    for line in lines:
        pattern, equals, targets = (part.strip() for part in line.partition("="))
        if not equals or not pattern or not targets:
            raise BadPolicy("routes", f"{line[:100]!r} is no PATTERN=UPSTREAM")
        routes[pattern] = [_target(target.strip()) for target in targets.split(",")]
    return routes


def _target(text: str) -> str | dict[str, str]:
    upstream, colon, model = text.partition(":")
    return {"upstream": upstream, "model": model} if colon else upstream


def format_routes(routes: Mapping[str, Any]) -> list[str]:
    """What `parse_routes` reads. `routes`: as a policy is stored."""
    return [
        f"{pattern}={','.join(map(_target_text, targets))}" for pattern, targets in routes.items()
    ]


def _target_text(target: str | Mapping[str, str]) -> str:
    return target if isinstance(target, str) else f"{target['upstream']}:{target['model']}"


def is_name(text: str) -> bool:
    """Whether something may have this name."""
    return 0 < len(text) <= MAX_NAME and text.isprintable() and text == text.strip()
