from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest

from web.http.transport import BodyDeadline


class Period:
    """The deadline of one body, and an event loop in which a period ends when the test says so."""

    def __init__(self) -> None:
        self.is_read = True
        self.late = 0
        self.deadline = BodyDeadline(15, is_read=lambda: self.is_read, on_late=self._on_late)
        self.loop = Mock()
        self.loop.call_later = self._call_later
        self._ends: list[Callable[[], None]] = []

    def end(self) -> None:
        self._ends.pop()()

    def _on_late(self) -> None:
        self.late += 1

    def _call_later(self, _seconds: float, end: Callable[..., None], *given: Any) -> Mock:
        self._ends.append(lambda: end(*given))
        return Mock()


@pytest.fixture
def period() -> Period:
    begun = Period()
    begun.deadline.start(begun.loop)
    return begun


def test_a_body_without_a_piece_is_late(period: Period) -> None:
    period.deadline.received(1024)
    period.end()
    assert period.late == 0
    period.deadline.received(1023)
    period.end()
    assert period.late == 1


def test_a_client_has_a_whole_period_after_a_pause_of_the_server(period: Period) -> None:
    period.deadline.received(1024)
    period.is_read = False
    period.end()
    period.is_read = True
    period.end()
    assert period.late == 0, "the server began to read again within this period"
    period.end()
    assert period.late == 1


def test_a_pause_that_began_and_ended_within_a_period_counts(period: Period) -> None:
    period.is_read = False
    period.deadline.received(1)
    period.is_read = True
    period.end()
    assert period.late == 0
    period.end()
    assert period.late == 1
