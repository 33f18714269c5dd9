"""The judgement on the neighbour's requests: what is a violation, and what is a busy machine."""

import pytest

from tests.support.latencies import Latencies, Latency

IDLE = Latencies([Latency("get", 0.02, 0.0)] * 100)


@pytest.mark.parametrize(
    ("requests", "is_violation"),
    [
        pytest.param([(0.25, 0.0)] * 100, False, id="within 250 ms more"),
        pytest.param([(0.3, 0.0)] * 3, True, id="more"),
        pytest.param([(0.3, 0.0)] * 2, False, id="two"),
        pytest.param([(1.3, 1.2)] * 50, False, id="without a CPU"),
        pytest.param([(2.4, 0.0)], True, id="one stall"),
        pytest.param([(6.0, 2.9)], True, id="a long stall on a busy machine"),
        pytest.param([(6.0, 5.9)], False, id="no CPU for seconds"),
    ],
)
def test_only_a_slow_server_breaks_the_promise(
    requests: list[tuple[float, float]], is_violation: bool
) -> None:
    during = Latencies([Latency("get", *one) for one in requests])
    assert bool(during.violations(IDLE)) is is_violation


def test_a_wrong_answer_breaks_the_promise() -> None:
    assert Latencies(list(IDLE.requests), ["get: 404"]).violations(IDLE)
