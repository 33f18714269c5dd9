"""How a response ends, by what ended its run."""

import pytest

from models.errors import Cancelled, LeaseLost, UpstreamFailed
from models.lifecycle import Status
from models.ownership.takeover import EndReason
from worker.run.end_state import (
    StopReason,
    end_state_of_error,
    end_state_of_outcome,
    end_state_of_stop,
    error_of_end_reason,
)
from worker.translation.turn import TurnOutcome


@pytest.mark.parametrize(
    "reason", [StopReason.HAND_OVER, StopReason.REQUEUE, StopReason.LOST, None]
)
def test_a_run_that_is_handed_over_ends_no_response(reason: StopReason | None) -> None:
    assert end_state_of_stop(reason) is None


def test_a_cancel_ends_the_response_as_cancelled_wherever_it_arrives() -> None:
    stopped = end_state_of_stop(StopReason.CANCEL)
    assert stopped == end_state_of_error(Cancelled())
    assert stopped == end_state_of_error(error_of_end_reason(EndReason.CANCELLED))
    assert stopped is not None
    assert stopped.status is Status.CANCELLED


def test_a_response_of_another_owner_is_never_ended() -> None:
    with pytest.raises(LeaseLost):
        end_state_of_error(LeaseLost("another attempt owns it"))


@pytest.mark.parametrize("end_reason", [reason for reason in EndReason if reason != "cancelled"])
def test_a_client_that_waits_gets_a_status_and_a_message(end_reason: EndReason) -> None:
    state = end_state_of_error(error_of_end_reason(end_reason))
    assert state.status is Status.FAILED
    assert state.reason == end_reason.value
    assert state.error is not None
    assert state.error["message"]
    assert state.failure is not None
    assert state.failure["status"] in (502, 504)


def test_the_failure_of_an_upstream_reaches_the_client_with_its_code_and_param() -> None:
    failure = UpstreamFailed(
        "Too long.", code="invalid_prompt", reason="x", status=400, param="input"
    )
    state = end_state_of_outcome(TurnOutcome("failed", failure=failure))
    assert state.error == {"code": "invalid_prompt", "message": "Too long."}
    assert state.failure == {"status": 400, "code": None, "param": "input", "retry_after": None}
