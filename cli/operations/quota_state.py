"""What a project uses of its quotas, for operators (docs/limits.md, "Per project")."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

from cli.operations.queries import Database
from models.config.groups import CacheSettings, QuotaSettings
from models.db.queries.files import STORED_FILES
from models.db.queries.quotas import QUOTA_STATE
from models.db.queries.usage import USED_TOKENS
from models.db.sync import fetch_sync
from models.projects.quotas import ProjectQuotas


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """One quota."""

    name: str
    used: int | None
    """None: only Redis counts it, and Redis did not answer, or it has no limit"""
    limit: int | None
    """None: there is none"""


def quota_state(
    database: Database, project: UUID, own: ProjectQuotas, data: Path | None
) -> list[QuotaUse]:
    """The quotas that limit the project, and those whose use the database knows. `data`: of the
    servers. The limits of projects without own quotas are those of the configuration here."""
    defaults, cache = _configured()
    limits: dict[str, int | None] = {}
    for name in QuotaSettings.model_fields:
        limit = getattr(own, name)
        limits[name] = (getattr(defaults, name) if limit is None else limit) or None
    limits["cache_bytes"] = own.cache_bytes or cache.project_bytes
    used = _stored_uses(database, project) | _counted_uses(project, limits, data)
    return [
        QuotaUse(name, used.get(name), limit)
        for name, limit in limits.items()
        if limit is not None or name in used
    ]


def _configured() -> tuple[QuotaSettings, CacheSettings]:
    """The settings of this environment; the defaults if they have mistakes."""
    from cli.settings import configured_settings
    from models.config.config_file import BadSettings

    try:
        settings = configured_settings()
    except BadSettings:
        return QuotaSettings(), CacheSettings()
    return settings.quotas, settings.cache


def _stored_uses(database: Database, project: UUID) -> dict[str, int]:
    """What the database counts, by the names of the quotas."""
    values = {"project": project}
    [state] = fetch_sync(database, QUOTA_STATE, values)
    [files] = fetch_sync(database, STORED_FILES, {**values, "id": UUID(int=0)})
    today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    [day] = fetch_sync(database, USED_TOKENS, {**values, "since": today})
    [month] = fetch_sync(database, USED_TOKENS, {**values, "since": today.replace(day=1)})
    return {
        "running": state.running,
        "queued": state.queued,
        "conversations": state.conversations,
        "files": files.count,
        "file_bytes": files.bytes,
        "tokens_per_day": day,
        "tokens_per_month": month,
    }


def _counted_uses(
    project: UUID, limits: Mapping[str, int | None], data: Path | None
) -> dict[str, int]:
    """What only Redis counts; nothing if it does not answer."""
    from cli.options import resolve_redis_url
    from cli.settings import NO_DATABASE, child_settings
    from models.redis.client import REDIS_ERRORS, redis_client
    from models.redis.quota_uses import read_counted_uses

    address = resolve_redis_url(data)
    if address is None:
        return {}
    settings = child_settings(NO_DATABASE, address)

    async def read() -> dict[str, int]:
        redis = redis_client(settings, "operator")
        try:
            known = {name: limit for name, limit in limits.items() if limit}
            return await read_counted_uses(redis, project, known)
        finally:
            await redis.aclose()

    try:
        return asyncio.run(read())
    except REDIS_ERRORS:
        return {}
