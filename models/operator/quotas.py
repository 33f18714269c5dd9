"""What a project uses of its quotas, for operators (docs/limits.md, "Per project")."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from models.config.groups import CacheSettings, QuotaSettings
from models.projects.quotas import ProjectQuotas


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """One quota."""

    name: str
    used: int | None
    """None: it was not counted, or it has no limit and only Redis counts it"""
    limit: int | None
    """None: there is none"""


def quota_limits(
    defaults: QuotaSettings, cache: CacheSettings, own: ProjectQuotas
) -> dict[str, int | None]:
    """The limits of a project by the names of the quotas. None: there is none."""
    limits: dict[str, int | None] = {}
    for name in QuotaSettings.model_fields:
        limit = getattr(own, name)
        limits[name] = (getattr(defaults, name) if limit is None else limit) or None
    limits["cache_bytes"] = own.cache_bytes or cache.project_bytes
    return limits


def quota_uses(limits: Mapping[str, int | None], used: Mapping[str, int]) -> list[QuotaUse]:
    """The quotas that limit the project, and those whose use is known."""
    return [
        QuotaUse(name, used.get(name), limit)
        for name, limit in limits.items()
        if limit is not None or name in used
    ]


def token_periods() -> dict[str, datetime]:
    """When the periods of the budgets of tokens have begun, in UTC."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return {"tokens_per_day": today, "tokens_per_month": today.replace(day=1)}
