"""Several runs of `./dev bench`, and what the machine did meanwhile."""

from bench.figures import Goal, Row
from bench.runs import MAX_OTHER_WORK, Measured, missed_goals, ranges


def measured(value: float, other_work: float = 0.0) -> Measured:
    """A run with one goal."""
    return Measured(
        "creates", [Row("create", value, "ms", Goal(3, of_ratio=True), 2.0)], other_work
    )


def test_a_goal_is_missed_only_where_nothing_else_ran() -> None:
    runs = [measured(4.0), measured(7.0), measured(9.0, MAX_OTHER_WORK * 2)]
    assert missed_goals(runs) == 1
    assert "4-7 ms" in ranges(runs)
    assert "2-3.5 x" in ranges(runs)
    assert ranges(runs).endswith("<= 3x missed in 1 of 2")
    assert runs[2].to_text() == (
        "creates: other processes took 20% of the CPUs: too much to judge it"
    )


def test_rows_that_no_run_could_judge_have_no_range() -> None:
    assert ranges([measured(4.0, 1.0)]).endswith("not judged")
