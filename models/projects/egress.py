"""Which addresses the server may reach for a project, itself or by an upstream."""

from pydantic import field_validator

from models.config.values import Group, check_destinations


class ProjectEgress(Group):
    """The rules of one project. None: as the settings say."""

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
