"""Where a background response waits by its completion window, and when the window is missed."""

from itertools import pairwise
from typing import Any

import pytest

from features.batches.expander import batch_request
from models.config.groups import LineSettings
from models.config.prices import PriceSettings
from models.errors import InvalidRequest
from models.lifecycle import LANE_ORDER, Lane
from models.windows import WINDOW_OF_LANE, CompletionWindow, WindowTimes, placement_of
from models.wire.checks.parameters import LONG_WINDOWS
from models.wire.request import CreateRequest
from tests.support.memory_process import claim
from worker.metrics import REGISTRY, count_missed_window

HOUR = 3600
MARGIN = LineSettings().window_margin


@pytest.mark.parametrize(
    ("parameters", "lane", "times", "continuation"),
    [
        ({}, Lane.DEFAULT, None, None),
        ({"background_options": {}}, Lane.DEFAULT, None, None),
        ({"background_options": {"continuation_id": "a"}}, Lane.DEFAULT, None, "a"),
        (
            {"service_tier": "flex", "background_options": {"completion_window": "soonest"}},
            *(Lane.FLEX, None, None),
        ),
        (
            {"background_options": {"completion_window": "2h"}},
            *(Lane.WINDOW_2H, WindowTimes(2 * HOUR, HOUR), None),
        ),
        # the tier is that of the project then (`highest_tier`)
        (
            {"service_tier": "flex", "background_options": {"completion_window": "8h"}},
            *(Lane.WINDOW_8H, WindowTimes(8 * HOUR, 4 * HOUR), None),
        ),
    ],
)
def test_a_window_has_a_lane_and_an_end(
    parameters: Any, lane: Lane, times: WindowTimes | None, continuation: str | None
) -> None:
    placement = placement_of(parameters, MARGIN)
    assert (placement.lane, placement.window, placement.continuation) == (
        lane,
        times,
        continuation,
    )


def test_a_late_line_of_a_batch_is_urgent_at_once() -> None:
    assert WindowTimes.of(24 * HOUR, 0.5, left=6 * HOUR) == WindowTimes(6 * HOUR, -6 * HOUR)


@pytest.mark.parametrize("margin", [1 / 3, 0.5, 1])
def test_the_order_of_the_lanes_is_that_of_their_ends(margin: float) -> None:
    """What waits in a lane ends sooner than all of the next one, until it is urgent."""
    lengths = [2 * HOUR, 8 * HOUR, 24 * HOUR]
    assert list(map(WINDOW_OF_LANE.get, LANE_ORDER[3:])) == ["2h", "8h", "batch"]
    for length, longer in pairwise(lengths):
        assert length <= margin * longer


def test_each_window_of_a_request_has_a_lane() -> None:
    assert {*LONG_WINDOWS, "batch"} == set(CompletionWindow)
    prices = PriceSettings(window_2h=0.75, window_8h=0.5, batch=0.4)
    assert [prices.factor_of(window) for window in (None, *CompletionWindow)] == [1, 0.75, 0.5, 0.4]


def test_only_an_end_after_the_window_is_counted_as_missed() -> None:
    def counted() -> float:
        return REGISTRY.get_sample_value("backburner_windows_missed_total", {"window": "8h"}) or 0

    before = counted()
    row = claim(lane=Lane.WINDOW_8H, window_ends_at=1000.5).row
    for completed_at in (999, 1000):
        count_missed_window(row, completed_at)
    count_missed_window(claim(lane=Lane.DEFAULT).row, 2000)
    assert counted() == before
    count_missed_window(row, 1001)
    assert counted() == before + 1


def test_a_request_in_a_batch_has_no_window_of_its_own() -> None:
    options = {"background_options": {"completion_window": "2h"}}
    request = CreateRequest("m", [], options, background=True)
    with pytest.raises(InvalidRequest, match="has the batch's") as refusal:
        batch_request(request, {})
    assert refusal.value.param == "background_options"
