"""Tests with a real Docker engine: they are skipped where there is none, and end with a table."""

import time
from collections.abc import Generator

import pytest

from tests.deploy.engine import missing_engine

_steps: list[tuple[str, float, str]] = []
_started = pytest.StashKey[float]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skips a test marked `docker` if no engine answers. Notes when the step began: what its
    fixtures do is part of it."""
    if item.get_closest_marker("docker") is None:
        return
    item.stash[_started] = time.monotonic()
    if missing := missing_engine():
        pytest.skip(missing)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Notes the seconds and the result of each step."""
    report = yield
    if _started in item.stash and (report.when == "call" or report.outcome != "passed"):
        name = item.name.removeprefix("test_").replace("_", " ")
        _steps.append((name, time.monotonic() - item.stash[_started], report.outcome))
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the table of steps."""
    if not _steps:
        return
    terminalreporter.section("deployment")
    terminalreporter.write_line("| step | seconds | result |")
    terminalreporter.write_line("|---|---|---|")
    for name, seconds, result in _steps:
        terminalreporter.write_line(f"| {name} | {seconds:.1f} | {result} |")
