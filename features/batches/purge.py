"""The purge of batches."""

from features.batches import queries
from models.config.settings import Settings
from models.files.storage import FileStorage
from worker.process.purge import PurgeSteps


async def purge(steps: PurgeSteps, settings: Settings, _storage: FileStorage | None) -> None:
    """Deletes batches that have outlived their retention."""
    await steps.repeat(queries.REPAIR_BATCHES, {})
    await steps.repeat(queries.DELETE_OLD_BATCHES, {"retention": settings.batches.retention})
