"""The form of a project in the console: its fields, their texts, and the body of the admin API that
they make. What is possible is decided there (bodies.py, service.py), as for commands and HTTP."""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from features.tenants.bodies import project_fields
from features.tenants.quota_uses import quota_limits
from features.tenants.service import ProjectFields
from models.config.settings import Settings
from models.config.values import format_size
from models.db.queries.organization import ProjectDetails
from models.projects.changes import format_routes, parse_routes
from models.projects.quotas import ProjectQuotas
from models.time_text import format_duration

_NO_ROUTES = "none"
"""In the field of routes: no model at all."""
_FLAGS = {"yes": True, "no": False}


@dataclass(frozen=True, slots=True)
class FormField:
    """A field: `name`, `weight`, or a place in the policy such as `quotas.running`."""

    name: str
    label: str
    default: str = ""
    """what holds if it is empty"""
    help: str = ""
    choices: tuple[str, ...] = ()
    """its values besides an empty one; none: any text"""
    has_lines: bool = False
    """It is a list, with one entry in a line."""


@dataclass(frozen=True, slots=True)
class FieldGroup:
    """Fields that belong together."""

    title: str
    help: str
    fields: tuple[FormField, ...]


def field_groups(settings: Settings) -> list[FieldGroup]:
    """The form, with the values that a project has which sets nothing."""
    egress = settings.egress
    return [
        FieldGroup("Project", "", (
            FormField("name", "Name"),
            FormField("weight", "Weight", "1", "Its share of the slots while projects compete."),
        )),
        FieldGroup("Quotas", "Empty: as the settings say. 0: no limit.", tuple(_quotas(settings))),
        FieldGroup("Models and requests", "", (
            FormField("highest_tier", "Highest tier", "any", choices=("default", "flex")),
            FormField("limits.body", "Largest request", format_size(settings.limits.body)),
            FormField("limits.text", "The same without files", format_size(settings.limits.text)),
            FormField("models", "Models", "all", "Names and patterns, one in a line.",
                      has_lines=True),
            FormField("routes", "Routes of its own", "those of the configuration",
                      "PATTERN=UPSTREAM[:MODEL],… in each line, in place of those of the "
                      f"configuration. {_NO_ROUTES}: no model at all.", has_lines=True),
        )),
        FieldGroup("Storage and network", "", (
            FormField("retention", "Responses are kept for", format_duration(settings.retention)),
            FormField("zero_retention", "Zero retention", "no",
                      "Nothing is kept for longer than its client needs it.", choices=("yes",)),
            FormField("egress.public", "May reach the internet", _yes_or_no(egress.public),
                      choices=tuple(_FLAGS)),
            FormField("egress.allow", "May reach besides", ", ".join(egress.allow) or "nothing",
                      "Networks and host names, one in a line.", has_lines=True),
        )),
    ]  # fmt: skip


def _quotas(settings: Settings) -> Iterator[FormField]:
    for name, limit in quota_limits(settings.quotas, settings.cache, ProjectQuotas()).items():
        default = "no limit" if limit is None else _number(name, limit)
        yield FormField(f"quotas.{name}", name.replace("_", " ").capitalize(), default)


def _yes_or_no(flag: bool) -> str:
    return "yes" if flag else "no"


def _number(name: str, value: int) -> str:
    is_size = name.endswith("_bytes") or name in ("body", "text")
    return format_size(value) if is_size and value else str(value)


def texts_of(project: ProjectDetails, groups: Collection[FieldGroup]) -> dict[str, str]:
    """The text of each field, for what is stored; empty: the project does not set it."""
    stored = {"name": project.name, "weight": project.weight, **project.policy}
    names = (field.name for group in groups for field in group.fields)
    return {name: _text(name, _at(stored, name)) for name in names}


def _at(stored: Mapping[str, Any], place: str) -> Any:
    outer, _, inner = place.partition(".")
    value = stored.get(outer)
    return _at(value or {}, inner) if inner else value


def _text(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return _yes_or_no(value)
    if name == "routes":
        return "\n".join(format_routes(value)) or _NO_ROUTES
    if isinstance(value, list):
        return "\n".join(value)
    return _number(name.rpartition(".")[2], value) if isinstance(value, int) else str(value)


def changes_of(texts: Mapping[str, str], stored: Mapping[str, str]) -> ProjectFields:
    """What the texts of a form change. `stored`: those of the project; empty for a new one. Raises
    InvalidRequest and BadPolicy."""
    changed = {
        name: text for name, text in texts.items() if _lines(text) != _lines(stored.get(name, ""))
    }
    body: dict[str, Any] = {}
    policy: dict[str, Any] = {}
    routes: dict[str, Any] | None = None
    for name, text in changed.items():
        if name == "name":
            body["name"] = text.strip()
        elif name == "weight":
            body["weight"] = _value(name, text)
        elif name == "routes" and text.strip():
            is_none = text.strip() == _NO_ROUTES
            routes = {} if is_none else parse_routes(_lines(text))
        else:
            _put(policy, name, _value(name, text))
    fields = project_fields(body | ({"policy": policy} if policy else {}), required=not stored)
    return replace(fields, routes=routes)


def _value(name: str, text: str) -> Any:
    """What the admin API would get; None: the project does not set it."""
    text = text.strip()
    if not text:
        return None
    if name in ("models", "egress.allow"):
        return _lines(text)
    if name in ("zero_retention", "egress.public"):
        return _FLAGS.get(text, text)
    is_number = text.isascii() and text.isdecimal() and len(text) < 20
    return int(text) if is_number and name != "retention" else text


def _put(policy: dict[str, Any], place: str, value: Any) -> None:
    outer, _, inner = place.partition(".")
    if inner:
        policy.setdefault(outer, {})[inner] = value
    else:
        policy[outer] = value


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def field_at(place: str, texts: Collection[str]) -> str:
    """The field that a mistake at this place of a body or policy is about; empty: none."""
    parts = place.removeprefix("policy.").split(".")
    beginnings = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((name for name in beginnings if name in texts), "")


def revision_of(project: ProjectDetails) -> str:
    """A text that another one who changes the project changes."""
    content = json.dumps([project.name, project.weight, project.policy], sort_keys=True)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
