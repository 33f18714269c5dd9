"""How the slots of a worker are divided: one in ten is reserved for foreground responses, and as
many are kept for background responses while some of them wait (ADR 0041).
"""

_RESERVED_FRACTION = 10
"""One slot in this many is reserved."""

QUARANTINE_SLOTS = 128
"""The slots of a quarantine worker. How many suspects run in them at a time follows from their
crashes (worker/quarantine.py)."""


def slots_for(background: int) -> int:
    """The slots of a worker that runs this many background responses at a time."""
    return -(-background * _RESERVED_FRACTION // (_RESERVED_FRACTION - 1))


def reserved_slots(slots: int) -> int:
    """How many of the slots only foreground responses use."""
    return slots // _RESERVED_FRACTION


def background_slots(slots: int) -> int:
    """How many of the slots foreground responses leave to background ones that wait: as many as are
    reserved for themselves, at least one, and never all."""
    return max(0, min(max(1, reserved_slots(slots)), slots - 1))
