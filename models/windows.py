"""Completion windows: how long a background response may wait behind others, and in which lane
(ADR 0072).

What is in a window waits behind all that is not, the shorter window first, until only a share of
its window is left, the *margin*. From then on it is *urgent*: it counts as `default`. When that is,
and when the window ends, is set once, at the creation, by the clock of the database.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from models.lifecycle import Lane, lane_of


class CompletionWindow(StrEnum):
    """A window that has an end. `soonest`, the value without one, is none."""

    TWO_HOURS = "2h"
    EIGHT_HOURS = "8h"
    BATCH = "batch"
    """that of a batch, which has a length of its own"""


_SECONDS: Final = {CompletionWindow.TWO_HOURS: 2 * 3600, CompletionWindow.EIGHT_HOURS: 8 * 3600}
LANE_OF_WINDOW: Final = {
    CompletionWindow.TWO_HOURS: Lane.WINDOW_2H,
    CompletionWindow.EIGHT_HOURS: Lane.WINDOW_8H,
    CompletionWindow.BATCH: Lane.BATCH,
}
WINDOW_OF_LANE: Final[Mapping[int, CompletionWindow]] = {
    lane: window for window, lane in LANE_OF_WINDOW.items()
}
"""Only lanes of windows."""


@dataclass(frozen=True, slots=True)
class WindowTimes:
    """The window of a new response, in whole seconds from its creation; below 0: before it."""

    ends_in: int
    urgent_in: int

    @classmethod
    def of(cls, seconds: float, margin: float, left: float) -> "WindowTimes":
        """A window of so many seconds, of which `left` are left. `margin`: the share of it in which
        the response is urgent."""
        return cls(int(left), int(left - margin * seconds))


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a new response waits for a slot."""

    lane: Lane
    window: WindowTimes | None = None
    continuation: str | None = None
    """the client's name for the thread of responses that it belongs to"""


def placement_of(parameters: Mapping[str, Any], margin: float) -> Placement:
    """That of a response to a request with these checked parameters. `margin`: as in
    `WindowTimes.of`."""
    options = parameters.get("background_options", {})
    continuation = options.get("continuation_id")
    name = options.get("completion_window", "soonest")
    if name == "soonest":
        return Placement(lane_of(parameters.get("service_tier")), None, continuation)
    window = CompletionWindow(name)
    seconds = _SECONDS[window]
    times = WindowTimes.of(seconds, margin, left=seconds)
    return Placement(LANE_OF_WINDOW[window], times, continuation)
