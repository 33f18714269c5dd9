"""Routes: which upstreams serve a model.

A route is a pattern and one or more targets. `*` in a pattern stands for any characters, also none
and also `/`; no other character is special, and case counts. A pattern without `*` that equals the
model's name wins. Otherwise the matching pattern with the most characters besides `*` wins; of
equals the first one. The targets are tried in order (docs/upstreams.md).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import InitErrorDetails, PydanticCustomError

from models.config.groups import LimitSettings
from models.config.upstream import UpstreamSettings

DEFAULT = "default"
"""The name of the upstream that `BACKBURNER_UPSTREAM__*` or `[upstream]` configures."""

_NAME = re.compile(r"[a-z0-9]+([_-][a-z0-9]+)*")
"""Small letters, because environment variables ignore case; no `__`, which separates the parts of a
variable's name."""


class RouteTarget(BaseModel):
    """An upstream of a route, and the model's name there if it differs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    upstream: str
    model: str | None = Field(default=None, min_length=1)
    """A `*` in it is replaced by the characters that the pattern's `*` matched."""


def _as_tables(value: object) -> object:
    """A name, a table or a list of either, as a list of tables."""
    entries = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(entry, str | dict | RouteTarget) for entry in entries):
        raise ValueError(
            "must be an upstream's name, a table { upstream = NAME, model = NAME }, "
            "or a list of these"
        )
    return [{"upstream": entry} if isinstance(entry, str) else entry for entry in entries]


Route = Annotated[tuple[RouteTarget, ...], BeforeValidator(_as_tables), Field(min_length=1)]


class RoutingSettings(Protocol):
    """The settings that routes are made of."""

    @property
    def upstream(self) -> UpstreamSettings:
        """The upstream named `default`."""

    @property
    def upstreams(self) -> dict[str, UpstreamSettings]:
        """Upstreams by name."""

    @property
    def routes(self) -> dict[str, Route]:
        """Targets by pattern."""


@dataclass(frozen=True, slots=True)
class Destination:
    """An upstream that serves a model, and the model's name there."""

    upstream: UpstreamSettings
    model: str


class Routes:
    """The routes of a process, or of a project in it."""

    def __init__(self, settings: RoutingSettings, own: Mapping[str, Route] | None = None) -> None:
        """`own`: a project's routes, in place of those of the settings. Where they name upstreams
        that are not configured, those are left out."""
        named = dict(settings.upstreams)
        if settings.upstream.base_url or not named:
            named[DEFAULT] = settings.upstream
        self.upstreams: dict[str, UpstreamSettings] = {
            name: upstream.model_copy(update={"name": name}) for name, upstream in named.items()
        }
        """By name; each has its `name` set."""
        if own is None:
            own = settings.routes or {"*": (RouteTarget(upstream=next(iter(self.upstreams))),)}
        self.patterns: dict[str, Route] = dict(own)
        """Targets by pattern, in the configured order."""
        self.by_precedence = by_precedence(self.patterns)
        """The patterns, the one that wins first."""
        self._wildcards = [
            (pattern, pattern_expression(pattern))
            for pattern in self.by_precedence
            if "*" in pattern
        ]

    def find(self, model: str) -> tuple[Destination, ...]:
        """The upstreams of a model, in the order in which they are tried; empty if no route
        matches, or if no upstream of the route is configured."""
        targets, wildcard = self._match(model)
        return tuple(
            Destination(
                self.upstreams[target.upstream],
                model if target.model is None else target.model.replace("*", wildcard),
            )
            for target in targets
            if target.upstream in self.upstreams
        )

    def has_route(self, model: str) -> bool:
        """Whether a route matches the model, although none of its upstreams may be configured."""
        return bool(self._match(model)[0])

    @property
    def wildcard_upstreams(self) -> list[str]:
        """The upstreams of routes with a `*`, in order, each once."""
        return list(
            dict.fromkeys(
                target.upstream
                for pattern, targets in self.patterns.items()
                if "*" in pattern
                for target in targets
                if target.upstream in self.upstreams
            )
        )

    def client_names(self, upstream: str, model: str) -> Iterator[str]:
        """The names under which clients reach a model of an upstream through routes with a `*`.

        `model` is its name at the upstream.
        """
        for pattern, targets in self.patterns.items():
            for target in targets if "*" in pattern else ():
                name = _client_name(pattern, target, upstream, model)
                if name is not None and any(
                    end.upstream.name == upstream and end.model == model for end in self.find(name)
                ):
                    yield name

    @property
    def all_passthrough(self) -> list[str]:
        """The parameters outside the Responses API that any upstream accepts, sorted."""
        return passthrough_of(self.upstreams.values())

    def _match(self, model: str) -> tuple[Route, str]:
        """The targets of the route that wins, none if there is no route, and what its `*`
        matched."""
        if model in self.patterns:
            return self.patterns[model], model
        for pattern, expression in self._wildcards:
            if match := expression.fullmatch(model):
                return self.patterns[pattern], match[1]
        return (), model


def passthrough_of(upstreams: Iterable[UpstreamSettings]) -> list[str]:
    """The parameters outside the Responses API that any of these upstreams accepts, sorted."""
    return sorted({name for upstream in upstreams for name in upstream.passthrough})


def accepted_parameters(destinations: Iterable[Destination]) -> frozenset[str]:
    """The parameters outside the Responses API that one of these upstreams accepts."""
    return frozenset(
        name for destination in destinations for name in destination.upstream.accepted_parameters
    )


def _client_name(pattern: str, target: RouteTarget, upstream: str, model: str) -> str | None:
    """The client's name of an upstream's model by this target; None if the target does not
    match."""
    upstream_pattern = target.model or pattern
    if target.upstream != upstream or "*" not in upstream_pattern:
        return None
    match = pattern_expression(upstream_pattern).fullmatch(model)
    if match is None:
        return None
    return model if target.model is None else pattern.replace("*", match[1])


def limits_of(limits: LimitSettings, upstream: UpstreamSettings) -> LimitSettings:
    """The limits for calls of this upstream: its own settings override the common ones."""
    overrides = {
        name: limit
        for name in ("first_token", "token_gap", "turn")
        if (limit := getattr(upstream, name)) is not None
    }
    return limits.model_copy(update=overrides)


def by_precedence(patterns: Iterable[str]) -> list[str]:
    """Patterns, the one that wins first."""
    return sorted(patterns, key=lambda pattern: ("*" in pattern, _specificity(pattern)))


def _specificity(pattern: str) -> int:
    return -len(pattern.replace("*", ""))


def pattern_expression(pattern: str) -> re.Pattern[str]:
    """A regular expression for a pattern; its group is what the first `*` matches."""
    return re.compile(
        ".*".join(map(re.escape, pattern.split("*"))).replace(".*", "(.*)", 1), re.DOTALL
    )


def upstream_name_problem(name: str) -> str | None:
    """What is wrong with the name of an upstream; None: nothing."""
    if _NAME.fullmatch(name):
        return None
    return "an upstream's name is made of small letters and digits, separated by single - or _"


def pattern_problem(pattern: str, model: str | None) -> str | None:
    """What is wrong with a route; None: nothing. `model`: the name at the upstream, if it is
    another one."""
    if not pattern:
        return "must be a model name or a pattern with *"
    if model is not None and "*" in model and pattern.count("*") != 1:
        return "a * in 'model' needs exactly one * in the pattern"
    return None


def routing_errors(raw: Mapping[str, Any]) -> Iterator[InitErrorDetails]:
    """The mistakes in upstreams and routes of raw settings that types alone do not show."""
    named = raw.get("upstreams")
    upstreams: Mapping[str, Any] = named if isinstance(named, Mapping) else {}
    single = raw.get("upstream")
    has_default = bool(
        single.get("base_url") if isinstance(single, Mapping) else getattr(single, "base_url", "")
    )
    for name, upstream in upstreams.items():
        yield from _upstream_errors(name, upstream, is_default_taken=has_default)
    routes = raw.get("routes")
    if not routes:
        if len(upstreams) + has_default > 1:
            yield _routing_error(
                "is required when more than one upstream is configured",
                "routes",
            )
        return
    known = sorted({*upstreams, *([DEFAULT] if has_default else [])})
    for pattern, targets in routes.items() if isinstance(routes, Mapping) else ():
        yield from _route_errors(pattern, targets, known)


def _upstream_errors(
    name: str, upstream: Any, *, is_default_taken: bool
) -> Iterator[InitErrorDetails]:
    if problem := upstream_name_problem(name):
        yield _routing_error(problem, "upstreams", name)
    if name == DEFAULT and is_default_taken:
        yield _routing_error(
            "is configured twice: BACKBURNER_UPSTREAM__BASE_URL or [upstream] configures it too",
            "upstreams",
            name,
        )
    if isinstance(upstream, Mapping):
        if not upstream.get("base_url"):
            yield _routing_error(
                "must be given: the address that a client would use as base URL, with /v1",
                "upstreams",
                name,
                "base_url",
            )
        if "name" in upstream:
            yield _routing_error(
                "is not a setting: the name of the table is the upstream's name",
                "upstreams",
                name,
                "name",
            )


def _route_errors(pattern: str, targets: Any, known: list[str]) -> Iterator[InitErrorDetails]:
    for target in targets if isinstance(targets, list) else [targets]:
        upstream = target.get("upstream") if isinstance(target, Mapping) else target
        model = target.get("model") if isinstance(target, Mapping) else None
        if isinstance(upstream, str) and upstream not in known:
            configured = f"configured: {', '.join(known)}" if known else "none is configured"
            yield _routing_error(
                f"there is no upstream '{upstream}' ({configured})", "routes", pattern
            )
        if problem := pattern_problem(pattern, model if isinstance(model, str) else None):
            yield _routing_error(problem, "routes", pattern)


def _routing_error(message: str, *place: str) -> InitErrorDetails:
    return {
        "type": PydanticCustomError("routing", "{message}", {"message": message}),
        "loc": place,
        "input": None,
    }
