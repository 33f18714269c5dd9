"""Lines of logs as a terminal shows them."""

import json
import re

from cli.embedded.log_text import readable, summary
from tests.support.api import JSON

LINE: JSON = {
    "timestamp": "2026-11-22T21:26:52.422076Z",
    "level": "info",
    "event": "http_request",
    "process": "web",
}


def shown(**fields: object) -> str:
    """The line without colours and without its time, which is local."""
    text = re.sub(r"\x1b\[\d*m", "", readable("web", json.dumps(LINE | fields)))
    time, _, rest = text.partition(" ")
    assert re.fullmatch(r"\d\d:\d\d:52\.422", time)
    return rest


def test_a_line_is_level_name_event_and_fields() -> None:
    fields = {"route": "/v1/responses", "status": 200, "reason": None, "tools": {"mcp:a b": 1}}
    assert shown(**fields) == (
        'info     web               http_request route=/v1/responses status=200 tools={"mcp:a b":1}'
    )


def test_values_that_are_no_words_are_quoted() -> None:
    assert shown(error='a "b" c', empty="", model="\x1b[2J").endswith(
        r'error="a \"b\" c" empty="" model="\u001b[2J"'
    )


def test_a_traceback_is_below_the_line() -> None:
    assert shown(exception="Traceback:\n  line").endswith(
        "http_request\n    Traceback:\n      line"
    )


def test_other_lines_stay_as_they_are() -> None:
    for line in ("not JSON\x1b[2J", "3", "{}", '{"timestamp": 1, "level": "info", "event": "x"}'):
        assert readable("web", line) == f"web: {line.replace(chr(27), ' ')}"


def test_the_reason_of_a_process_that_did_not_start_is_a_sentence() -> None:
    line = LINE | {"event": "too_many_streams", "slots": 7, "reason": "open files"}
    assert re.sub(r"\x1b\[\d*m", "", summary(json.dumps(line))) == (
        'too_many_streams slots=7 reason="open files"'
    )
    assert summary("FATAL: no\x1b[2J") == "FATAL: no [2J"
