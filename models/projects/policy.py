"""The policy of a project: the column `projects.policy` (docs/projects.md).

Commands import this module: it needs no log.
"""

import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, PlainSerializer, field_validator

from models.config.routes import Route, pattern_problem, upstream_name_problem
from models.config.values import Bytes, Duration, Group, HttpAddress, check_destinations
from models.projects.quotas import ProjectQuotas
from models.time_text import format_duration

ZERO_RETENTION_SECONDS = 15
"""So long after its end a response of a project with zero retention is kept, for a client that
polls. Then the purge deletes it."""


class ProjectEgress(Group):
    """Which addresses the server may reach for a project, itself or by an upstream. None: as the
    settings say."""

    allow: tuple[str, ...] | None = None
    """In place of `egress.allow`: networks and host names that may be reached, on any port."""
    public: bool | None = None
    """In place of `egress.public`: whether the public internet may be reached besides."""

    @field_validator("allow")
    @classmethod
    def _check_entries(cls, value: tuple[str, ...] | None) -> tuple[str, ...] | None:
        return None if value is None else check_destinations(value)


SERVER_EGRESS = ProjectEgress()
"""Of a project without rules of its own."""


def _check(routes: dict[str, Route]) -> dict[str, Route]:
    for pattern, targets in routes.items():
        for target in targets:
            problem = pattern_problem(pattern, target.model)
            if problem := problem or upstream_name_problem(target.upstream):
                raise ValueError(f"{pattern!r}: {problem}")
    return routes


def _as_written(routes: dict[str, Route]) -> dict[str, list[Any]]:
    """As an operator writes them: an upstream is its name if the model's name is not changed."""
    return {
        pattern: [
            target.upstream if target.model is None else target.model_dump() for target in targets
        ]
        for pattern, targets in routes.items()
    }


def unconfigured_upstreams(own: dict[str, Route] | None, configured: Collection[str]) -> list[str]:
    """The upstreams that a project's routes name and that are not among the configured ones,
    sorted."""
    named = {target.upstream for targets in (own or {}).values() for target in targets}
    return sorted(named.difference(configured))


PolicyRoutes = Annotated[
    dict[str, Route], AfterValidator(_check), PlainSerializer(_as_written, when_used="json")
]
"""Upstreams by pattern, in the form of `[routes]`. The upstreams need not be configured: a policy
is judged where there may be no configuration."""

PolicyDuration = Annotated[Duration, PlainSerializer(format_duration, when_used="json")]
"""A duration, stored as an operator writes it: `30d`."""


HighestTier = Literal["default", "flex"]


class ProjectLimits(Group):
    """How large a request of the project may be; never larger than the settings allow."""

    body: Annotated[Bytes, Field(ge=1)] | None = None
    """Largest request body."""
    text: Annotated[Bytes, Field(ge=1)] | None = None
    """The same without inline files."""


class ProjectPolicy(Group):
    """What one project may do. None, or a field that is left out: as the settings say."""

    retention: PolicyDuration | None = None
    """How long a stored response is kept after its end."""
    zero_retention: bool = False
    """Nothing is stored for longer than it is needed: `store` counts as false."""
    text_search: bool | None = None
    """Whether operators find its responses by words of input and output. Never with zero
    retention."""
    models: tuple[str, ...] | None = None
    """The models that it may use: names, or patterns with `*`."""
    highest_tier: HighestTier | None = None
    """The highest `service_tier` that its requests get: `default` or `flex`. A request for a higher
    one gets this one."""
    routes: PolicyRoutes | None = None
    """Which upstreams serve which models for it, in place of the routes of the server."""
    limits: ProjectLimits = ProjectLimits()
    quotas: ProjectQuotas = ProjectQuotas()
    egress: ProjectEgress = ProjectEgress()
    moved_to: HttpAddress | None = None
    """The address of the cell to which the project has moved (docs/cells.md)."""
    moved_at: int = Field(default=0, ge=0, lt=1 << 53)
    """When, in ms since 1970: of several moves, the later one counts."""

    @classmethod
    def from_json(cls, stored: Any) -> Self:
        """The policy of a row. Fields of a later release are ignored. Raises ValidationError for a
        row that was changed by hand to something else."""
        return cls.model_validate(stored, extra="ignore")

    def to_json(self) -> dict[str, Any]:
        """What is stored and shown: only what differs from the settings."""
        return self.model_dump(mode="json", exclude_defaults=True)


DEFAULT_POLICY = ProjectPolicy()


@lru_cache(4096)
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def may_use(model: str, *allowed: Iterable[str] | None) -> bool:
    """Whether each of these lists of names and patterns has the model. None: all models."""
    return all(
        names is None or any(_expression(name).fullmatch(model) for name in names)
        for names in allowed
    )
