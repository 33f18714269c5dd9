"""What `backburner responses watch` writes about a response."""

import pytest

from features.operator.watch import bar, text
from models.wire.progress import Progress, Wait, WaitsForSlot, WaitsForUpstream, Work
from web.responses.shown import Watched

NOW = 1_800_000_000
_NOTHING = Work(0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0, None])
def test_a_bar_has_one_width(share: float | None) -> None:
    bars = [bar(share, step) for step in range(100)]
    assert {len(each) for each in bars} == {26}
    full = {each.count("█") for each in bars}
    assert full == {6 if share is None else round(24 * share)}
    assert (len(set(bars)) > 1) is (share is None), "only one without an end moves"


@pytest.mark.parametrize(
    ("work", "waits_for", "limit", "expected"),
    [
        (_NOTHING, None, None, "0 output tokens"),
        (_NOTHING, WaitsForSlot(7), None, "waits for a slot, position 7"),
        (
            _NOTHING,
            WaitsForSlot(7, expected_start_at=NOW + 20),
            None,
            "waits for a slot, position 7, starts in about 20 s",
        ),
        (
            _NOTHING,
            WaitsForSlot(None, position_above=1000),
            None,
            "waits for a slot, position more than 1000",
        ),
        (
            Work(0, 0, 0, 0, 0, 4),
            WaitsForUpstream(NOW + 12, NOW - 120, 4, "down\x1b[2J"),
            None,
            "waits for its upstream for 2 min (4 tries), next try in 12 s: down [2J",
        ),
        (Work(0, 0, 0, 5, 5, 1), None, 100, "5 of at most 100 output tokens (5 estimated)"),
        (
            Work(2, 3, 1, 75, 0, 1),
            None,
            None,
            "75 output tokens, 2 turns, 3 tool calls done, 1 open",
        ),
    ],
)
def test_what_it_waits_for_and_has_done_in_words(
    work: Work, waits_for: Wait | None, limit: int | None, expected: str
) -> None:
    watched = Watched("in_progress", Progress(work, waits_for), limit, 30.0, float(NOW))
    assert text(watched) == expected


def test_nothing_is_said_of_one_that_has_ended() -> None:
    assert text(Watched("completed", None, None, 30.0, float(NOW))) == ""
