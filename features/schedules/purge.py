"""The purge of schedules."""

from features.schedules import queries
from models.config.settings import Settings
from models.files.storage import FileStorage
from worker.process.purge import PurgeSteps


async def purge(steps: PurgeSteps, settings: Settings, _storage: FileStorage | None) -> None:
    """Deletes old runs, schedules whose last slot is long ago, and deleted ones with their runs."""
    await steps.repeat(queries.REPAIR_SCHEDULES, {"longest_lease": queries.LONGEST_LEASE})
    retention = {"retention": settings.schedules.retention}
    await steps.repeat(queries.DELETE_OLD_RUNS, retention)
    await steps.repeat(queries.HIDE_COMPLETED, retention)
    await steps.repeat(queries.DELETE_RUNS_OF_DELETED, {})
    await steps.repeat(queries.DELETE_DELETED, {})
