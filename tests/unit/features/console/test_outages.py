"""The one sentence for each upstream that fails."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from features.console.capacity import outages_of
from models.db.queries.console import UpstreamWait
from models.redis.upstream_states import OpenCircuit, UpstreamState

NOW = datetime(2026, 11, 27, 13, 20, tzinfo=UTC)
SINCE = NOW - timedelta(minutes=13)


def _wait(**changes: Any) -> UpstreamWait:
    values: dict[str, Any] = {
        "upstream": "gpu-2",
        "responses": 3,
        "since": SINCE,
        "next_try_at": NOW + timedelta(seconds=14),
        "projects": ["pay"],
        "project_count": 1,
        "reason": "upstream_500",
        "message": "The upstream answered with HTTP 500: CUDA out of memory.",
    }
    return UpstreamWait(**values | changes)


def _circuit(seconds: float, model: str | None = None) -> OpenCircuit:
    return OpenCircuit("upstream_500", seconds, model, None, SINCE.timestamp())


FAILS = "gpu-2 fails since 13:07 UTC (HTTP 500: CUDA out of memory). "


@pytest.mark.parametrize(
    ("wait", "circuits", "text", "is_note"),
    [
        (_wait(), (), f"{FAILS}3 responses of pay wait. Next try in 14 s.", False),
        (
            _wait(responses=1, next_try_at=None, projects=["a", "b"], project_count=2),
            (),
            f"{FAILS}1 response of a, b waits. It is tried now.",
            False,
        ),
        (
            _wait(responses=10_000, projects=["a", "b", "c"], project_count=7),
            (_circuit(3),),
            f"{FAILS}10000+ responses of 7 projects wait. Next try in 14 s.",
            False,
        ),
        (
            _wait(since=NOW - timedelta(days=1, hours=1), message=None),
            (),
            (
                "gpu-2 fails since 26 Nov 12:20 UTC (the failure is not stored). "
                "3 responses of pay wait. Next try in 14 s."
            ),
            False,
        ),
        (
            _wait(reason="upstream_full", message="It is busy."),
            (),
            (
                "gpu-2 is at its limit of calls since 13:07 UTC. 3 responses of pay wait. "
                "Next try in 14 s."
            ),
            True,
        ),
        (
            None,
            (_circuit(5, "large"), _circuit(0, "small")),
            (
                "gpu-2 fails for large, small since 13:07 UTC (upstream_500). "
                "No background response waits. Next try in 5.0 s."
            ),
            False,
        ),
        (
            None,
            (_circuit(0),),
            (
                "gpu-2 has failed since 13:07 UTC (upstream_500). Nothing has called it lately; "
                "the next call is a try."
            ),
            True,
        ),
    ],
)
def test_what_fails_is_one_sentence(
    wait: UpstreamWait | None, circuits: tuple[OpenCircuit, ...], text: str, is_note: bool
) -> None:
    states = [UpstreamState("gpu-2", 0, circuits=circuits), UpstreamState("well", 1)]
    [outage] = outages_of([] if wait is None else [wait], states)
    problem = outage.problem(NOW)
    assert (problem.text, problem.is_note) == (text, is_note)
    shown = "/upstreams" if wait is None else "/responses?status=retrying&upstream=gpu-2"
    assert problem.link == shown
