"""The purge of containers that are deleted, or expired an hour ago, with the files that only they
have, and of the records of old calls."""

from features.code import queries
from models.config.settings import Settings
from models.db.arrays import Uuids
from models.files.storage import FileStorage
from worker.process.purge import PurgeSteps

_ROWS = 500


async def purge(steps: PurgeSteps, settings: Settings, storage: FileStorage | None) -> None:  # noqa: ARG001 - as all purges
    """One round, until nothing is left. The purge of files deletes the contents."""
    while gone := await steps.once(queries.GONE_CONTAINERS, {"rows": _ROWS}):
        values = {"ids": Uuids(gone)}
        await steps.once(queries.FORGET_CONTENTS, values)
        await steps.once(queries.DROP_CONTAINERS, values)
    await steps.repeat(queries.DELETE_OLD_CELLS, {})
