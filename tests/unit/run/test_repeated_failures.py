"""A server error that one request gets again and again ends its response; an outage does not."""

from dataclasses import asdict, dataclass, field, fields
from typing import Any
from uuid import UUID

import pytest

from models.config.upstream import UpstreamSettings
from models.db.queries.claim import ClaimedRow
from models.errors import UpstreamFailed
from models.ownership.takeover import Claim
from worker.run.attempt import Attempt
from worker.run.failover import FEW_TRIES, MANY_TRIES, RepeatedFailures
from worker.upstream.circuits import Circuits
from worker.upstream.upstreams import Candidate

PROJECT, OTHER = UUID(int=1), UUID(int=2)


def crash(words: str = "Worker 7f3a died.", reason: str = "upstream_500") -> UpstreamFailed:
    return UpstreamFailed(words, reason=reason, is_temporary=True, may_be_request=True)


@dataclass
class Response:
    """A background response that is tried again and again at one upstream."""

    circuits: Circuits = field(
        default_factory=lambda: Circuits(UpstreamSettings(name="u", circuit_failures=3))
    )
    failures: list[dict[str, Any]] | None = None
    turns: int = 0

    def candidate(self) -> Candidate:
        upstream: Any = type("", (), {"settings": UpstreamSettings(name="u")})
        limiter: Any = self.circuits
        return Candidate(upstream, limiter, "m", PROJECT)

    def attempt(self) -> Attempt:
        values: dict[str, Any] = dict.fromkeys(each.name for each in fields(ClaimedRow))
        values |= {"id": UUID(int=1), "attempt": 1, "parameters": {}, "background": True}
        values |= {"store": True, "model": "m", "created_at": 0, "next_output_index": 0}
        values |= {"turns": self.turns, "last_failures": self.failures}
        return Attempt(Claim(ClaimedRow(**values), 0))

    def fail(self, failure: UpstreamFailed) -> UpstreamFailed:
        """One try; the failure that follows from it."""
        repeated = RepeatedFailures(self.attempt())
        candidate = repeated.marked(self.candidate())
        with pytest.raises(UpstreamFailed), self._permit(candidate):
            raise failure
        judged, call = repeated.judge(candidate, failure)
        assert isinstance(judged, UpstreamFailed)
        self.failures = [asdict(call)]
        return judged

    def _permit(self, candidate: Candidate) -> Any:
        return self.circuits.permit("m", PROJECT, candidate.failed_at)

    def answer_another(self) -> None:
        """The model answers another request."""
        with self.circuits.permit("m", OTHER) as permit:
            permit.record_success()


def test_the_same_answer_again_and_again_ends_the_response_if_others_are_answered() -> None:
    response = Response()
    for number in range(1, FEW_TRIES):
        assert response.fail(crash(f"Worker {number}ab died.")).is_temporary
        response.answer_another()
    last = response.fail(crash("Worker 9 died."))
    assert (last.code, last.reason, last.status, last.is_temporary) == (
        "invalid_prompt",
        "repeated_failure",
        400,
        False,
    )
    assert last.message.startswith("Worker 9 died. It has answered this request so 5 times")


def test_few_answers_to_others_are_enough_after_many_tries() -> None:
    response = Response()
    response.fail(crash())
    response.answer_another()
    for _ in range(MANY_TRIES - 2):
        assert response.fail(crash()).is_temporary
    assert response.fail(crash()).reason == "repeated_failure"


def test_in_an_outage_a_response_waits() -> None:
    response = Response()
    response.answer_another()
    for _ in range(2 * MANY_TRIES):
        assert response.fail(crash()).is_temporary


@pytest.mark.parametrize(
    "other", [crash("out of memory"), crash(reason="upstream_502")], ids=["words", "status"]
)
def test_another_answer_begins_a_new_count(other: UpstreamFailed) -> None:
    response = Response()
    for _ in range(FEW_TRIES - 1):
        response.fail(crash())
        response.answer_another()
    assert response.fail(other).is_temporary
    response.answer_another()
    assert response.fail(crash()).is_temporary


@pytest.mark.parametrize(
    "failure",
    [
        UpstreamFailed("busy", reason="upstream_503", is_temporary=True),
        UpstreamFailed("later", reason="upstream_429", is_temporary=True),
    ],
    ids=lambda failure: failure.reason,
)
def test_an_upstream_that_has_too_much_to_do_is_waited_for(failure: UpstreamFailed) -> None:
    response = Response()
    for _ in range(MANY_TRIES):
        assert response.fail(failure).is_temporary
        response.answer_another()


def test_a_request_that_fails_again_opens_no_circuit() -> None:
    response = Response()
    for _ in range(FEW_TRIES):
        response.fail(crash())
        assert response.circuits.open_count == 0
    # Others that fail for the first time open it: an outage.
    for _ in range(2):
        Response(response.circuits).fail(crash())
    assert response.circuits.open_count == 1
    before = response.circuits.seconds_open("m", PROJECT)
    response.fail(crash())
    assert response.circuits.seconds_open("m", PROJECT) > before, "the probe counts"


def test_rows_of_an_older_release_are_read() -> None:
    old = {"upstream": "u", "reason": "upstream_500", "message": "x"}
    response = Response(failures=[old])
    assert response.fail(crash()).is_temporary
