"""The configuration that processes use, without its secrets, as objects and as lines for people:
`backburner config check`."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from cli.output import table
from models.config.config_file import ConfigFile
from models.config.configuration import origin
from models.config.dialect import PRESETS
from models.config.routes import Routes
from models.config.settings import Settings
from models.config.upstream import UpstreamSettings
from models.config.values import Unit, format_size
from models.time_text import format_duration


@dataclass(frozen=True, slots=True)
class ChangedSetting:
    """A setting that is set. `source` is `environment NAME`, `file, line N` or `preset NAME`.

    `value` is in seconds or bytes for a duration or a size; `text` has units.
    """

    key: str
    value: Any
    text: str
    source: str


@dataclass(frozen=True, slots=True)
class UpstreamSummary:
    """A configured upstream: the source of its key, and the names of its headers and parameters."""

    name: str
    base_url: str
    api: str
    api_key: str
    settings: list[ChangedSetting]


@dataclass(frozen=True, slots=True)
class RouteSummary:
    """One route; `targets` in the order in which they are tried."""

    pattern: str
    targets: list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class EffectiveConfiguration:
    """The configuration. Of several routes that match a model, the first one wins."""

    file: str | None
    upstreams: list[UpstreamSummary]
    routes: list[RouteSummary]
    settings: list[ChangedSetting]


def effective_configuration(settings: Settings, file: ConfigFile) -> EffectiveConfiguration:
    """Summarises settings; `file` gives the line of each key."""
    routes = Routes(settings)
    return EffectiveConfiguration(
        file=str(file.path) if file.path is not None else None,
        upstreams=[
            _summarize_upstream(upstream, settings, file)
            for upstream in routes.upstreams.values()
            if upstream.base_url
        ],
        routes=[
            RouteSummary(
                pattern,
                [
                    {"upstream": target.upstream, "model": target.model or "as asked"}
                    for target in routes.patterns[pattern]
                ],
            )
            for pattern in routes.by_precedence
            if settings.routes or any(upstream.base_url for upstream in routes.upstreams.values())
        ],
        settings=[
            value
            for group in Settings.model_fields
            if group not in ("upstream", "upstreams", "routes")
            for value in _changed_settings(getattr(settings, group), (group,), file)
        ],
    )


def _summarize_upstream(
    upstream: UpstreamSettings, settings: Settings, file: ConfigFile
) -> UpstreamSummary:
    place = ("upstreams", upstream.name) if upstream.name in settings.upstreams else ("upstream",)
    key = origin((*place, "api_key"), file)
    if key == "default":
        key = "none" if upstream.api_key_env is None else f"environment {upstream.api_key_env}"
    own = _changed_settings(upstream, place, file)
    own_keys = {value.key for value in own}
    preset = [
        _changed_setting(
            key,
            UpstreamSettings.model_fields[key],
            getattr(upstream, key),
            f"preset {upstream.preset}",
        )
        for key in PRESETS.get(upstream.preset, {})
        if key not in own_keys
    ]
    settings_of_upstream = [
        value
        for value in [*own, *preset]
        if value.key not in ("name", "base_url", "api", "api_key", "api_key_env")
    ]
    return UpstreamSummary(
        upstream.name, upstream.base_url, upstream.api, key, settings_of_upstream
    )


def _changed_settings(
    setting: Any, place: tuple[str, ...], file: ConfigFile
) -> list[ChangedSetting]:
    """The values of a group that are set; secret values are hidden."""
    if not isinstance(setting, BaseModel):
        source = origin(place, file)
        return (
            []
            if source == "default"
            else [
                _changed_setting(".".join(place), Settings.model_fields[place[0]], setting, source)
            ]
        )
    keys = type(setting).model_fields
    sources = {key: origin((*place, key), file) for key in keys}
    return [
        _changed_setting(
            key if place[0].startswith("upstream") else ".".join((*place, key)),
            keys[key],
            getattr(setting, key),
            source,
        )
        for key, source in sources.items()
        if source != "default"
    ]


def _changed_setting(key: str, info: FieldInfo, value: Any, source: str) -> ChangedSetting:
    if "SecretStr" in str(info.annotation):
        value = sorted(value) if isinstance(value, dict) else "(secret)"
    elif isinstance(value, timedelta):
        return ChangedSetting(key, value.total_seconds(), format_duration(value), source)
    elif any(isinstance(entry, Unit) and entry.name == "size" for entry in info.metadata):
        return ChangedSetting(key, value, format_size(value), source)
    elif isinstance(value, tuple):
        value = list(value)
    elif isinstance(value, dict) and any(isinstance(each, BaseModel) for each in value.values()):
        value = {name: each.model_dump(exclude_unset=True) for name, each in value.items()}
        tables = (f"{name} ({_format_table(each)})" for name, each in value.items())
        return ChangedSetting(key, value, ", ".join(tables), source)
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return ChangedSetting(key, value, text, source)


def _format_table(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def configuration_text(facts: EffectiveConfiguration) -> str:
    """The file, upstreams and routes, and the settings that differ from their defaults."""
    lines = [f"file: {facts.file or 'none'}", ""]
    if facts.upstreams:
        upstreams = [
            (upstream.name, upstream.api, upstream.base_url, upstream.api_key)
            for upstream in facts.upstreams
        ]
        routes = [
            (route.pattern, ", then ".join(map(_format_target, route.targets)))
            for route in facts.routes
        ]
        lines += [table(("UPSTREAM", "API", "BASE URL", "KEY"), upstreams), ""]
        lines += [table(("MODEL", "GOES TO"), routes), ""]
    else:
        lines += ["no upstream is configured; `up` starts a demo", ""]
    values = [
        (f"{upstream.name}: {setting.key}", setting.text, setting.source)
        for upstream in facts.upstreams
        for setting in upstream.settings
    ]
    values += [(setting.key, setting.text, setting.source) for setting in facts.settings]
    return "\n".join(
        [*lines, table(("SETTING", "VALUE", "FROM"), values)] if values else lines
    ).rstrip()


def _format_target(target: dict[str, str]) -> str:
    return (
        target["upstream"]
        if target["model"] == "as asked"
        else f"{target['upstream']} as {target['model']}"
    )
