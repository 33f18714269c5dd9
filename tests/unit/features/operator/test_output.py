"""What commands print fits a terminal, and is whole for other programs."""

from datetime import UTC, datetime, timedelta

import pytest

from cli import output
from features.operator import report
from models.db.queries.common import STOPPED
from models.db.queries.operations import WorkerRow
from models.ids import new_uuid

NOW = datetime(2026, 11, 22, tzinfo=UTC)


class Terminal:
    """Standard output as a terminal of 80 columns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)


def process(*, ended: str | None = None, host: str = "host") -> WorkerRow:
    """A worker that has started a minute ago, or has ended."""
    return WorkerRow(
        id=new_uuid(),
        kind="quarantine",
        host=host,
        pid=1234567,
        started_at=NOW - timedelta(minutes=2),
        expires_at=NOW + timedelta(seconds=9),
        dead=ended is not None,
        ended=ended,
        drain_requested_at=None,
        now=NOW,
        running=1000,
        slots=1000,
        version="0.1.0",
    )


def lines_of(text: str) -> list[str]:
    return output._STYLE.sub("", text).split("\n")


def test_a_process_that_stopped_by_itself_is_not_dead() -> None:
    assert process(ended=STOPPED).state == "stopped"
    assert process(ended=f"reaped by {new_uuid()}").state == "dead"


def test_a_table_fits_a_terminal_and_is_whole_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    processes = [process(host="a-host-name-with-quite-some-characters.example.org"), process()]
    whole = lines_of(report.workers(processes))
    assert str(processes[0].id) in whole[1]
    assert processes[0].host in whole[1]
    Terminal(monkeypatch)
    fitted = lines_of(report.workers([*processes, process(ended=f"reaped by {new_uuid()}")]))
    assert max(map(len, fitted)) <= 80
    assert str(processes[0].id)[:18] in fitted[1]
    assert "reaped by" in fitted[-1], "the reason has a line of its own"


def test_colours_are_for_terminals_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = output.paint("failed", output.RED)
    output.print_result(text)
    Terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    output.print_result(text)
    monkeypatch.setenv("NO_COLOR", "")
    output.print_result(text)
    assert capsys.readouterr().out.split("\n") == ["failed", "failed", text, ""]


def test_a_text_cannot_control_the_terminal() -> None:
    assert output.clean("a\x1b[2J\r\nb\x9bc") == "a [2J b c"
