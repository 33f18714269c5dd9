"""The purge of webhooks."""

from features.webhooks import queries
from features.webhooks.sender import EXPIRY, LONGEST_ENDPOINT_PAUSE
from models.config.settings import Settings
from models.files.storage import FileStorage
from worker.process.purge import MAX_ROWS, PurgeSteps


async def purge(steps: PurgeSteps, settings: Settings, _storage: FileStorage | None) -> None:
    """Deletes old deliveries of webhooks, and deleted endpoints with theirs."""
    await steps.repeat(queries.REPAIR_DELIVERIES, {})
    await steps.repeat(queries.REPAIR_ENDPOINTS, {"longest_pause": LONGEST_ENDPOINT_PAUSE})
    keep = settings.webhooks.retention
    values = {"retention": keep, "waiting": max(keep, EXPIRY)}
    await steps.repeat(queries.DELETE_OLD_DELIVERIES, values)
    await steps.repeat(queries.DELETE_DELIVERIES_OF_DELETED, {})
    await steps.once(queries.DELETE_DELETED_ENDPOINTS, {"rows": MAX_ROWS})
