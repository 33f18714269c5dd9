"""The purge of containers that have expired: their rows, and the files that only they have."""

from features.code import queries
from models.config.settings import Settings
from models.db.arrays import Uuids
from models.files.storage import FileStorage
from worker.process.purge import PurgeSteps

_ROWS = 500


async def purge(steps: PurgeSteps, settings: Settings, storage: FileStorage | None) -> None:  # noqa: ARG001 - as all purges
    """One round, until nothing is left. The purge of files deletes the contents."""
    while expired := await steps.once(queries.EXPIRED_CONTAINERS, {"rows": _ROWS}):
        values = {"ids": Uuids(expired), "project": None}
        await steps.once(queries.FORGET_CONTENTS, values)
        await steps.once(queries.DELETE_CONTAINERS, values)
