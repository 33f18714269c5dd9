"""What a project uses, as the database says."""

from dataclasses import dataclass, field
from uuid import UUID


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
