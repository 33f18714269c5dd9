"""A test that passes at the second try fails the run, unless tests/flaky.txt names it."""

import pytest

from tests.support.flaky import KNOWN, known_ids, unknown_flaky_ids

ONE, OTHER = "a.py::test_one[a b]", "a.py::test_other"


def test_a_test_that_passed_at_the_second_try_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert unknown_flaky_ids([ONE, OTHER], [OTHER], set()) == [ONE]
    assert capsys.readouterr().out == f"flaky: {ONE}\n"


def test_a_known_flaky_test_does_not_fail_the_run() -> None:
    known = known_ids(["# a comment", "", f"{ONE}  2026-11-22  waits for a clock"])
    assert unknown_flaky_ids([ONE], [], known) == []


def test_a_test_that_failed_twice_is_not_flaky() -> None:
    assert unknown_flaky_ids([ONE], [ONE], set()) == []


def test_every_known_flaky_test_has_a_date_and_a_reason() -> None:
    for line in KNOWN.read_text().splitlines():
        assert line.startswith("#") or len(line.split("  ", 2)) == 3, line
