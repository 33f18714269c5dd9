"""What a project uses of its quotas, for operators (docs/limits.md, "Per project")."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from cli.operations.queries import Database
from models.config.groups import CacheSettings, QuotaSettings
from models.db.queries.batches import COUNTED_BATCHES
from models.db.queries.files import STORED_FILES
from models.db.queries.quotas import QUOTA_STATE
from models.db.queries.usage import USED_TOKENS
from models.db.sync import fetch_sync
from models.operator.quotas import QuotaUse, quota_limits, quota_uses, token_periods
from models.projects.quotas import ProjectQuotas


def quota_state(
    database: Database, project: UUID, own: ProjectQuotas, data: Path | None
) -> list[QuotaUse]:
    """The quotas that limit the project, and those whose use the database knows. `data`: of the
    servers. The limits of projects without own quotas are those of the configuration here."""
    defaults, cache = _configured()
    limits = quota_limits(defaults, cache, own)
    used = _stored_uses(database, project) | _counted_uses(project, limits, data)
    return quota_uses(limits, used)


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
    return {
        "running": state.running,
        "queued": state.queued,
        "conversations": state.conversations,
        "files": files.count,
        "file_bytes": files.bytes,
        "batches": fetch_sync(database, COUNTED_BATCHES, values)[0],
        **{
            name: fetch_sync(database, USED_TOKENS, {**values, "since": since})[0]
            for name, since in token_periods().items()
        },
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
