"""The partitions of the event log, which the purge makes and drops (ADR 0078).

A partition has the logs of the responses of a stretch of time, a tenth of the longest retention. So
there are about fifteen: each statement that reads logs locks all of them.

Where a response ends its retention shortly before its partition does, the purge deletes no rows of
the log: the partition goes as a whole, with all that is left in it. If too many responses in it are
kept, such as those that others continue, what was left is deleted row by row one width later.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final
from uuid import UUID

from models.config.settings import Settings
from models.db.arrays import Uuids
from models.db.queries import log_partitions as queries
from models.db.queries.log_partitions import LogPartition
from models.ids import first_id_at, unix_seconds
from models.projects.policy import ProjectPolicy

if TYPE_CHECKING:
    from worker.process.purge import PurgeSteps

_PARTS: Final = 10
"""Partitions of a retention."""
_OLDEST_PARTS: Final = 20
"""Partitions up to the oldest one, if responses are kept for longer than a retention."""
_HOUR: Final = timedelta(hours=1)
"""The least width. Limits of partitions are full hours."""
_MAX_ROWS: Final = 5_000
"""Rows that one statement looks at."""
_MAX_BYTES: Final = 16 * 1024 * 1024
"""Up to so many rows and bytes of kept responses move when their partition is dropped, while all
statements for logs wait."""


class LogPartitions:
    """What is known of the partitions in one round of the purge."""

    def __init__(
        self, partitions: Sequence[LogPartition], retention: timedelta, now: datetime
    ) -> None:
        """`partitions`: in the order of time. `retention`: the longest one."""
        self._partitions = partitions
        self._retention = retention
        self._now = now
        self.width = max(_HOUR, retention / _PARTS)

    def _age(self, partition: LogPartition) -> timedelta:
        """Since the newest responses of the partition were made."""
        return self._now - _time(partition.ends)

    def left(self) -> dict[str, object]:
        """Parameters of DELETE_LOG: the partitions that end soon, with all their responses."""
        left = [
            each
            for each in self._partitions
            if timedelta(0) <= self._age(each)
            and -self.width <= self._age(each) - self._retention < self.width
        ]
        return {
            "begins": Uuids([each.begins for each in left]),
            "ends": Uuids([each.ends for each in left]),
        }

    def ended(self) -> list[LogPartition]:
        """Those whose responses have all outlived the longest retention."""
        return [each for each in self._partitions if self._age(each) >= self._retention]

    def overdue(self) -> list[LogPartition]:
        """Those that were to be dropped a width ago."""
        limit = self._retention + self.width
        return [each for each in self._partitions if self._age(each) >= limit]

    def next(self) -> LogPartition | None:
        """The one that is to be made now; None: the last one lasts for long enough.

        No response has an id in it yet. If none was made for long, a gap stays, whose logs are in
        the default partition."""
        ends = [_time(each.ends) for each in self._partitions] or [self._now]
        first, last = ends[0], ends[-1]
        width = max(self.width, (self._now - first) / _OLDEST_PARTS)
        if last > self._now + width:
            return None
        begin = max(_full_hour(last), _full_hour(self._now + _HOUR))
        end = _full_hour(begin + width)
        begins = first_id_at(begin.timestamp())
        if self._partitions:
            begins = max(begins, self._partitions[-1].ends)
        name = f"event_log_{begin:%Y%m%d_%H}"
        return LogPartition(name, begins, first_id_at(end.timestamp()))


def _time(limit: UUID) -> datetime:
    return datetime.fromtimestamp(unix_seconds(limit), UTC)


def _full_hour(time: datetime) -> datetime:
    """The time, or the next full hour."""
    hour = time.replace(minute=0, second=0, microsecond=0)
    return hour if hour == time else hour + _HOUR


async def read_partitions(steps: "PurgeSteps", settings: Settings) -> LogPartitions:
    """Reads what a round of the purge needs."""
    stored = await steps.once(queries.PROJECT_RETENTIONS, {})
    own = [ProjectPolicy.from_json({"retention": each}).retention for each in stored]
    longest = max([settings.retention, *(each for each in own if each is not None)])
    partitions = await steps.once(queries.PARTITIONS, {})
    return LogPartitions(partitions, longest, datetime.now(UTC))


class PartitionCare:
    """Makes and drops partitions at the end of a round of the purge."""

    def __init__(self) -> None:
        self._cleaned: set[str] = set()
        """The names of the overdue partitions in which nothing is left."""

    async def round(self, steps: "PurgeSteps", partitions: LogPartitions) -> None:
        """Each step is tried again in the next round if the table is in use."""
        following = partitions.next()
        if following is not None:
            await steps.once(queries.ADD, _values(following))
        for each in partitions.ended():
            kept = await steps.once(queries.KEPT, {**_values(each), "rows": _MAX_ROWS})
            if kept[0].rows < _MAX_ROWS and kept[0].size < _MAX_BYTES:
                await steps.once(queries.DROP, _values(each))
            elif each in partitions.overdue() and each.name not in self._cleaned:
                await _clean(steps, each)
                self._cleaned.add(each.name)


async def _clean(steps: "PurgeSteps", partition: LogPartition) -> None:
    """Deletes what deleted responses have left in a partition."""
    position: dict[str, object] = {"id": UUID(int=0), "number": 0}
    while True:
        values = {**_values(partition), **position, "rows": _MAX_ROWS}
        [done] = await steps.once(queries.CLEAN, values)
        if done.looked_at < _MAX_ROWS:
            return
        position = {"id": done.id, "number": done.number}


def _values(partition: LogPartition) -> dict[str, object]:
    return {"name": partition.name, "begins": partition.begins, "ends": partition.ends}
