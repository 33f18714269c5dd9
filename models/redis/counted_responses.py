"""The responses of a project as Redis counts them, compared with what the database says."""

from dataclasses import dataclass
from uuid import UUID

from models.projects.usage import Usage

GRACE = 10.0
"""Seconds for which a response counts that is not in the database: its create is on its way."""


@dataclass(frozen=True, slots=True)
class Corrections:
    """What has to change in Redis. Ids as Redis has them."""

    ended: list[bytes]
    """they are not open"""
    missing: list[bytes]
    """they are open, and are not counted"""
    claimed: list[bytes]
    """they do not wait"""
    unclaimed: list[bytes]
    """they wait, and are not counted as waiting"""
    reserved: int
    """to be added to the sum of the reserved tokens"""


@dataclass(frozen=True, slots=True)
class CountedResponses:
    """What was counted at one moment, before the database was read."""

    now: int
    """that moment, in milliseconds of Redis' clock"""
    entries: dict[bytes, bytes]
    """id -> reserved tokens, until when they count, time of the create (quota_scripts.py)"""
    waiting: set[bytes]
    reserved: int

    def corrections(self, usage: Usage) -> Corrections:
        """Compares. What has changed since that moment is left alone: a response that is not
        counted although it is young may have ended already, and one that is not in the database may
        be stored soon. If nothing was counted, Redis has lost it, and all is added."""
        is_open, waits = set(map(_name, usage.open)), set(map(_name, usage.waiting))
        young = set(map(_name, usage.young)) if self.entries else set()
        ended = [
            each
            for each, entry in self.entries.items()
            if each not in is_open and self.now - _numbers(entry)[2] > GRACE * 1000
        ]
        left = sum(_numbers(entry)[0] for entry in self.entries.values())
        left -= sum(_numbers(self.entries[each])[0] for each in ended)
        return Corrections(
            ended=ended,
            missing=list(is_open - self.entries.keys() - young),
            claimed=[
                each for each in self.waiting - waits if each in is_open or each not in self.entries
            ],
            unclaimed=list(waits - self.waiting - young),
            reserved=left - self.reserved,
        )


def _name(response: UUID) -> bytes:
    return response.hex.encode()


def _numbers(entry: bytes) -> tuple[int, int, int]:
    estimate, drained, created = entry.split(b":")
    return int(estimate), int(drained), int(created)
