"""What is left of a batch after a slice of work."""

from enum import Enum


class Outcome(Enum):
    """Whether there is more to do."""

    MORE = "more, at once"
    WAITS = "nothing until something else has happened"
    COMPLETE = "nothing any more"
