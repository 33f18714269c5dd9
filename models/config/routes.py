"""Which upstreams serve a model: the routes of `backburner.toml` (design §7).

A route is a pattern and one or more targets. `*` in a pattern stands for any characters, also none and also `/`; nothing else is special,
and case counts. A name that is a pattern itself goes first; then the pattern with the most characters besides `*`, of equals the one that
stands first. The first target is asked; the others, in order, where it cannot serve and has not said a word.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import InitErrorDetails, PydanticCustomError

if TYPE_CHECKING:
    from models.config.settings import LimitSettings, Settings, UpstreamSettings

DEFAULT = "default"
"""The name of the one upstream that `BACKBURNER_UPSTREAM__*` or `[upstream]` configures."""

_NAME = re.compile(r"[a-z0-9]+([_-][a-z0-9]+)*")
"""Small letters, because variables of the environment know no case; no `__`, which parts a variable's name."""


class RouteTarget(BaseModel):
    """One end of a route: an upstream, and what the model is called there if not as here."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    upstream: str
    model: str | None = Field(default=None, min_length=1)
    """With a `*` that stands for what the pattern's `*` stood for."""


def _targets(value: object) -> object:
    """A name, a table or a list of either, as a list of tables."""
    given = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(entry, str | dict | RouteTarget) for entry in given):
        raise ValueError(
            "must be an upstream's name, a table { upstream = NAME, model = NAME }, or a list of these"
        )
    return [{"upstream": entry} if isinstance(entry, str) else entry for entry in given]


Route = Annotated[tuple[RouteTarget, ...], BeforeValidator(_targets), Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Destination:
    """An upstream that serves a model, and the model's name there."""

    upstream: "UpstreamSettings"
    model: str


class Routes:
    """The routes of a process; read once, the same in web and worker."""

    def __init__(self, settings: "Settings") -> None:
        named = dict(settings.upstreams)
        if settings.upstream.base_url or not named:
            named[DEFAULT] = settings.upstream
        self.upstreams: dict[str, UpstreamSettings] = {
            name: upstream.model_copy(update={"name": name}) for name, upstream in named.items()
        }
        """By name, each knowing its own."""
        self.configured = bool(settings.routes)
        """Whether anybody has said which models there are. If not, the one upstream is asked for all."""
        self.patterns: dict[str, tuple[RouteTarget, ...]] = dict(settings.routes) or {
            "*": (RouteTarget(upstream=next(iter(self.upstreams))),)
        }
        """As they were given, in order."""
        self.by_precedence = sorted(
            self.patterns, key=lambda pattern: ("*" in pattern, _specificity(pattern))
        )
        """The patterns in the order in which they count."""
        self._wildcards = [
            (pattern, _expression(pattern)) for pattern in self.by_precedence if "*" in pattern
        ]

    def find(self, model: str) -> tuple[Destination, ...]:
        """The upstreams of a model, in the order in which they are asked; empty when no route matches."""
        if model in self.patterns:
            return self._destinations(self.patterns[model], model, model)
        for pattern, expression in self._wildcards:
            if found := expression.fullmatch(model):
                return self._destinations(self.patterns[pattern], model, found[1])
        return ()

    def passthrough(self, model: str) -> frozenset[str]:
        """The parameters outside the Responses API that an upstream of this model wants handed on."""
        return frozenset(
            name for destination in self.find(model) for name in destination.upstream.passthrough
        )

    @property
    def wildcard_upstreams(self) -> list[str]:
        """The upstreams that patterns lead to, in order, each once."""
        return list(
            dict.fromkeys(
                target.upstream
                for pattern, targets in self.patterns.items()
                if "*" in pattern
                for target in targets
            )
        )

    def client_names(self, upstream: str, model: str) -> Iterator[str]:
        """By which names clients reach a model of an upstream through patterns; `model` is its name there."""
        for pattern, targets in self.patterns.items():
            for target in targets if "*" in pattern else ():
                there = target.model or pattern
                found = (
                    _expression(there).fullmatch(model)
                    if target.upstream == upstream and "*" in there
                    else None
                )
                if found is None:
                    continue
                name = model if target.model is None else pattern.replace("*", found[1])
                if any(
                    end.upstream.name == upstream and end.model == model for end in self.find(name)
                ):
                    yield name

    @property
    def all_passthrough(self) -> list[str]:
        """The same of all upstreams, sorted."""
        return sorted(
            {name for upstream in self.upstreams.values() for name in upstream.passthrough}
        )

    def _destinations(
        self, targets: tuple[RouteTarget, ...], model: str, wildcard: str
    ) -> tuple[Destination, ...]:
        return tuple(
            Destination(
                self.upstreams[target.upstream],
                model if target.model is None else target.model.replace("*", wildcard),
            )
            for target in targets
        )


def limits_of(limits: "LimitSettings", upstream: "UpstreamSettings") -> "LimitSettings":
    """The limits of turns there: the upstream's own go first."""
    own = {
        name: limit
        for name in ("first_token", "token_gap", "turn")
        if (limit := getattr(upstream, name)) is not None
    }
    return limits.model_copy(update=own)


def _specificity(pattern: str) -> int:
    return -len(pattern.replace("*", ""))


def _expression(pattern: str) -> re.Pattern[str]:
    """What the first `*` stands for is the group."""
    return re.compile(
        ".*".join(map(re.escape, pattern.split("*"))).replace(".*", "(.*)", 1), re.DOTALL
    )


def routing_errors(raw: Mapping[str, Any]) -> Iterator[InitErrorDetails]:
    """What is wrong with the upstreams and routes of settings that are not checked yet, beyond the types of single values."""
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
                "must say which of the upstreams serves which model, for several are configured",
                "routes",
            )
        return
    known = sorted({*upstreams, *([DEFAULT] if has_default else [])})
    for pattern, targets in routes.items() if isinstance(routes, Mapping) else ():
        yield from _route_errors(pattern, targets, known)


def _upstream_errors(
    name: str, upstream: Any, *, is_default_taken: bool
) -> Iterator[InitErrorDetails]:
    if not _NAME.fullmatch(name):
        yield _routing_error(
            "an upstream's name is made of small letters and digits, parted by single - or _",
            "upstreams",
            name,
        )
    if name == DEFAULT and is_default_taken:
        yield _routing_error(
            "is given twice: BACKBURNER_UPSTREAM__BASE_URL or [upstream] configures the upstream of this name",
            "upstreams",
            name,
        )
    if isinstance(upstream, Mapping):
        if not upstream.get("base_url"):
            yield _routing_error(
                "must be given: what a client would use as base URL, with /v1",
                "upstreams",
                name,
                "base_url",
            )
        if "name" in upstream:
            yield _routing_error(
                "is no setting: the table's own name is the upstream's", "upstreams", name, "name"
            )


def _route_errors(pattern: str, targets: Any, known: list[str]) -> Iterator[InitErrorDetails]:
    if not pattern:
        yield _routing_error(
            "the name of a model, or a pattern with *, must stand here", "routes", pattern
        )
    for target in targets if isinstance(targets, list) else [targets]:
        upstream = target.get("upstream") if isinstance(target, Mapping) else target
        model = target.get("model") if isinstance(target, Mapping) else None
        if isinstance(upstream, str) and upstream not in known:
            among = f"there are: {', '.join(known)}" if known else "none is configured"
            yield _routing_error(f"there is no upstream '{upstream}' ({among})", "routes", pattern)
        if isinstance(model, str) and "*" in model and pattern.count("*") != 1:
            yield _routing_error(
                "a * in 'model' needs exactly one * in the pattern", "routes", pattern
            )


def _routing_error(message: str, *place: str) -> InitErrorDetails:
    return {
        "type": PydanticCustomError("routing", "{message}", {"message": message}),
        "loc": place,
        "input": None,
    }
