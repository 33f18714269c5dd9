"""The quotas of a project: its own, those that the settings give to all, and what it uses
(docs/limits.md)."""

import math
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Annotated, Self
from uuid import UUID

from pydantic import Field

from models.config.groups import QuotaSettings
from models.config.values import Bytes

ASSUMED_OUTPUT = 1000
"""Output tokens that a request is taken to produce if it does not limit them."""
CHARACTERS_PER_TOKEN = 4
_MOST_TOKENS = 10**12
"""A larger limit of the output is reserved as this: Redis counts in numbers of 53 bits."""
_MAX_PROJECTS = 10_000
"""Projects whose limits a process keeps. Above it all are forgotten."""
WINDOW = 60.0
"""Seconds in which a rate counts."""


class ProjectQuotas(QuotaSettings):
    """The quotas that one project has. Unset: the quota of the settings; 0: no limit."""

    batches: Annotated[int, Field(ge=0)] | None = None
    """Its batches that have not ended."""
    cache_bytes: Annotated[Bytes, Field(ge=1)] | None = None
    """Most bytes of its cached answers, in place of `cache.project_bytes`."""


class Quota(Enum):
    """A quota, by the name of its setting. The value: how a message calls it."""

    tokens_per_day = "tokens per day"
    tokens_per_month = "tokens per month"
    stored_bytes = "stored bytes"
    conversations = "stored conversations"
    running = "responses that have not ended"
    queued = "waiting responses"
    open_streams = "open streams"
    open_sockets = "open WebSockets"
    requests_per_minute = "requests per min (RPM)"
    tokens_per_minute = "tokens per min (TPM)"

    @property
    def is_budget(self) -> bool:
        """A retry does not help soon: the client gets `insufficient_quota`."""
        return self in _BUDGETS


_BUDGETS = frozenset(
    (Quota.tokens_per_day, Quota.tokens_per_month, Quota.stored_bytes, Quota.conversations)
)


@dataclass(frozen=True, slots=True)
class Limits:
    """The quotas that hold for one project. 0: no limit."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    running: int = 0
    queued: int = 0
    open_streams: int = 0
    open_sockets: int = 0
    stored_bytes: int = 0
    conversations: int = 0
    tokens_per_day: int = 0
    tokens_per_month: int = 0

    @classmethod
    def of(cls, defaults: QuotaSettings, own: QuotaSettings | None) -> Self | None:
        """The project's own quotas, else the defaults. None: nothing limits the project."""
        limits = {
            name: default if (value := own and getattr(own, name)) is None else value
            for name, default in ((name, getattr(defaults, name)) for name in _NAMES)
        }
        return (
            cls(**{name: value or 0 for name, value in limits.items()})
            if any(limits.values())
            else None
        )

    @property
    def are_counted(self) -> bool:
        """Whether a quota limits what is counted in the database."""
        return bool(
            self.running
            or self.queued
            or self.conversations
            or self.tokens_per_day
            or self.tokens_per_month
        )

    @property
    def use_tokens(self) -> bool:
        """Whether a quota limits tokens."""
        return bool(self.tokens_per_minute or self.tokens_per_day or self.tokens_per_month)

    @property
    def follow_responses(self) -> bool:
        """Whether the end of a response changes what is left of a quota."""
        return bool(self.running or self.queued or self.use_tokens)

    def share(self, processes: int) -> Self:
        """The part of each rate and count for one of so many processes, at least 1. Budgets, and
        what is stored, are not divided: the database has their sums."""
        shared = (name for name in _SHARED if getattr(self, name))
        parts = {name: -(-getattr(self, name) // processes) for name in shared}
        return type(self)(**{name: getattr(self, name) for name in _NAMES} | parts)


class ProjectQuotaCache:
    """The limits of each project, as one process knows them."""

    def __init__(self, defaults: QuotaSettings) -> None:
        self._defaults = defaults
        self._known: dict[UUID, tuple[QuotaSettings, Limits | None]] = {}

    def of(self, project: UUID, own: QuotaSettings) -> Limits | None:
        """The limits of this project, whose own quotas are `own`."""
        known = self._known.get(project)
        if known is not None and known[0] is own:
            return known[1]
        if len(self._known) >= _MAX_PROJECTS:
            self._known.clear()
        limits = Limits.of(self._defaults, own)
        self._known[project] = own, limits
        return limits

    def last_known(self, project: UUID) -> Limits | None:
        """Its limits when a request of it came last. None also for a project without a request."""
        known = self._known.get(project)
        return None if known is None else known[1]


_NAMES = tuple(each.name for each in fields(Limits))
_SHARED = ("requests_per_minute", "tokens_per_minute", "open_streams", "open_sockets")


def estimate_tokens(characters: int, max_output: int | None, limits: Limits) -> int:
    """The tokens that are reserved for a request with so many characters of input.

    An output limit that the client has not given never makes a request too large for the rate.
    """
    tokens = math.ceil(characters / CHARACTERS_PER_TOKEN)
    if max_output is not None:
        return min(tokens + max_output, _MOST_TOKENS)
    assumed = ASSUMED_OUTPUT
    if limits.tokens_per_minute:
        assumed = min(assumed, max(0, limits.tokens_per_minute - tokens))
    return tokens + assumed


@dataclass(frozen=True, slots=True)
class Usage:
    """What a project uses, as the database says."""

    open: list[UUID] = field(default_factory=list)
    """the responses that have not ended"""
    waiting: list[UUID] = field(default_factory=list)
    """those that no worker has claimed"""
    young: frozenset[UUID] = frozenset()
    """those whose creates and first notices may be on their way"""
    tokens: tuple[int, int] = (0, 0)
    """of this day and of this month"""
    are_tokens_new: bool = True
    """They were read now, not within the last minute."""
    conversations: int = 0
