"""The policy of a project: the column `projects.policy` (docs/projects.md)."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, PlainSerializer

from models.config.units import format_duration
from models.config.values import Bytes, Duration, Group
from models.projects.egress import ProjectEgress
from models.projects.policy_routes import PolicyRoutes
from models.projects.quotas import ProjectQuotas

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

    @classmethod
    def from_json(cls, stored: Any) -> Self:
        """The policy of a row. Fields of a later release are ignored. Raises ValidationError for a
        row that was changed by hand to something else."""
        return cls.model_validate(stored, extra="ignore")

    def to_json(self) -> dict[str, Any]:
        """What is stored and shown: only what differs from the settings."""
        return self.model_dump(mode="json", exclude_defaults=True)


DEFAULT_POLICY = ProjectPolicy()
