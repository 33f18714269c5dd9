"""A plugin of pytest that prints the table of tests/deploy/run: step, seconds, result.

A step is a test of this folder, or a file elsewhere. What a test gives to the fixture
`record_property` is part of its result.
"""

from collections import Counter
from dataclasses import dataclass, field

import pytest


@dataclass(slots=True)
class _Step:
    seconds: float = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    measured: list[str] = field(default_factory=list)

    @property
    def result(self) -> str:
        only_one = self.outcomes.total() == 1
        outcomes = [
            name if only_one else f"{count} {name}" for name, count in self.outcomes.items()
        ]
        return ", ".join([*outcomes, *self.measured])


_steps: dict[str, _Step] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds what a test and its fixtures took to the step that it belongs to."""
    file, _, test = report.nodeid.partition("::")
    is_step = file.startswith("tests/deploy/")
    name = test.removeprefix("test_").replace("_", " ") if is_step else file
    step = _steps.setdefault(name, _Step())
    step.seconds += report.duration
    if report.when == "call" or report.outcome != "passed":
        step.outcomes[report.outcome] += 1
        step.measured += [f"{name}: {value}" for name, value in report.user_properties]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the table of steps."""
    terminalreporter.section("deployment")
    terminalreporter.write_line("| step | seconds | result |")
    terminalreporter.write_line("|---|---|---|")
    for name, step in _steps.items():
        terminalreporter.write_line(f"| {name} | {step.seconds:.1f} | {step.result} |")
