"""What a project uses of its quotas, for operators (docs/limits.md, "Per project")."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from redis.asyncio import Redis

from models.config.groups import CacheSettings, QuotaSettings
from models.db.database import Connection, Pool, fetch_idempotent
from models.db.queries.file_contents import STORED_FILES
from models.db.queries.quotas import COUNTED_BATCHES, QUOTA_STATE
from models.projects.quotas import ProjectQuotas
from models.redis.client import REDIS_ERRORS
from models.redis.quota_uses import read_counted_uses
from models.usage import used_tokens


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


async def quota_uses(
    on: Pool | Connection,
    redis: Redis | None,
    project: UUID,
    limits: Mapping[str, int | None],
    *,
    counts_unlimited: bool,
) -> list[QuotaUse]:
    """The quotas that limit the project, and those whose use is known. `redis` None, or one that
    does not answer: without what only it counts. `counts_unlimited`: also files, batches and tokens
    without a limit, which reads more rows."""
    used = await _stored_uses(on, project, limits, counts_unlimited=counts_unlimited)
    if redis is not None:
        with suppress(*REDIS_ERRORS):
            known = {name: limit for name, limit in limits.items() if limit}
            used |= await read_counted_uses(redis, project, known)
    return [
        QuotaUse(name, used.get(name), limit)
        for name, limit in limits.items()
        if limit is not None or name in used
    ]


async def _stored_uses(
    on: Pool | Connection,
    project: UUID,
    limits: Mapping[str, int | None],
    *,
    counts_unlimited: bool,
) -> dict[str, int]:
    """What the database counts, by the names of the quotas."""

    def is_counted(*names: str) -> bool:
        return counts_unlimited or any(limits[name] for name in names)

    values = {"project": project}
    [state] = await fetch_idempotent(on, QUOTA_STATE, values)
    used = {name: getattr(state, name) for name in ("running", "queued", "conversations")}
    if is_counted("batches"):
        [used["batches"]] = await fetch_idempotent(on, COUNTED_BATCHES, values)
    if is_counted("files", "file_bytes"):
        [files] = await fetch_idempotent(on, STORED_FILES, {**values, "id": UUID(int=0)})
        used |= {"files": files.count, "file_bytes": files.bytes}
    for name, since in _token_periods().items():
        if is_counted(name):
            used[name] = await used_tokens(on, project, since)
    return used


def _token_periods() -> dict[str, datetime]:
    """When the periods of the budgets of tokens have begun, in UTC."""
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return {"tokens_per_day": today, "tokens_per_month": today.replace(day=1)}
