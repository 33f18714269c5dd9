"""The configuration as processes will see it, without its secrets: `backburner config check`."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pydantic import BaseModel

from models.config.config_file import ConfigFile
from models.config.configuration import origin
from models.config.routes import DEFAULT, Routes
from models.config.settings import Settings, UpstreamSettings

_SECRET = frozenset(
    {
        "api_key",
        "headers",
        "query",
        "token",
        "database_url",
        "redis_url",
        "secret_keys",
        "bootstrap_key",
    }
)


@dataclass(frozen=True, slots=True)
class Value:
    """A setting that is not as by default. `source`: `environment NAME`, or `file, line N`."""

    key: str
    value: Any
    source: str


@dataclass(frozen=True, slots=True)
class Upstream:
    """A configured upstream; of its key only where it comes from, of headers and query only the names."""

    name: str
    base_url: str
    api: str
    api_key: str
    settings: list[Value]


@dataclass(frozen=True, slots=True)
class RouteTo:
    """One route; `targets` in the order in which they are asked."""

    pattern: str
    targets: list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Effective:
    """All of it. `routes` in the order in which they count for a model that several match."""

    file: str | None
    upstreams: list[Upstream]
    routes: list[RouteTo]
    settings: list[Value]


def effective(settings: Settings, file: ConfigFile) -> Effective:
    """What these settings amount to."""
    routes = Routes(settings)
    return Effective(
        file=str(file.path) if file.path is not None else None,
        upstreams=[
            _upstream(upstream, settings, file)
            for upstream in routes.upstreams.values()
            if upstream.base_url
        ],
        routes=[
            RouteTo(
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
            for value in _changed(getattr(settings, group), (group,), file)
        ],
    )


def _upstream(upstream: UpstreamSettings, settings: Settings, file: ConfigFile) -> Upstream:
    place = ("upstreams", upstream.name) if upstream.name in settings.upstreams else ("upstream",)
    assert upstream.name == DEFAULT or len(place) == 2
    key = origin((*place, "api_key"), file)
    if key == "default":
        key = "none" if upstream.api_key_env is None else f"environment {upstream.api_key_env}"
    shown = [
        value
        for value in _changed(upstream, place, file)
        if value.key not in ("name", "base_url", "api", "api_key", "api_key_env")
    ]
    return Upstream(upstream.name, upstream.base_url, upstream.api, key, shown)


def _changed(found: Any, place: tuple[str, ...], file: ConfigFile) -> list[Value]:
    """The values of a group that somebody has set; of secret ones only that they are."""
    if not isinstance(found, BaseModel):
        source = origin(place, file)
        return (
            []
            if source == "default"
            else [Value(".".join(place), _shown(place[-1], found), source)]
        )
    keys = type(found).model_fields
    sources = {key: origin((*place, key), file) for key in keys}
    return [
        Value(
            key if place[0].startswith("upstream") else ".".join((*place, key)),
            _shown(key, getattr(found, key)),
            source,
        )
        for key, source in sources.items()
        if source != "default"
    ]


def _shown(key: str, value: Any) -> Any:
    if key in _SECRET:
        return sorted(value) if isinstance(value, dict) else "(secret)"
    return (
        value.total_seconds()
        if isinstance(value, timedelta)
        else list(value)
        if isinstance(value, tuple)
        else value
    )
