"""A resumed attempt and the items that the stream holds back behind a tool call that still runs."""

from dataclasses import fields
from typing import Any
from uuid import UUID

import pytest

from models.db.queries.claim import CheckpointedItem, ClaimedRow
from models.db.queries.common import LogBlock
from models.ownership.takeover import Claim
from models.wire.events import Event, decode_frame, frame
from models.wire.replay import replay_item
from tests.support.api import JSON
from tests.support.contract_rules import assert_items_obey_contract
from worker.run.attempt import Attempt

LOG_END = 9


def _mcp_call(number: int, status: str, **more: str) -> JSON:
    known = {"type": "mcp_call", "status": status, "server_label": "s", "name": "f"}
    return {"id": f"mcp_{number}", **known, "arguments": '{"n": 1}', **more}


RUNNING = _mcp_call(0, "in_progress")
ROWS = [
    CheckpointedItem(RUNNING, 0, 1, 1, False, None),
    CheckpointedItem(_mcp_call(1, "completed", output="ok"), 1, 1, 1, True, None),
    CheckpointedItem(_mcp_call(2, "in_progress"), 2, 1, None, False, None),
    CheckpointedItem(
        {
            "id": "fc_3",
            "type": "function_call",
            "status": "completed",
            "call_id": "c",
            "name": "g",
            "arguments": "{}",
        },
        *[None] * 5,
    ),
]
"""Two calls that run, one that has ended between them, and a call for the client."""


def _attempt(number: int, events: list[Event]) -> Attempt:
    """An attempt whose predecessor wrote these events after the checkpoint."""
    values: dict[str, Any] = dict.fromkeys(field.name for field in fields(ClaimedRow))
    values |= {"id": UUID(int=1), "attempt": number, "parameters": {}, "background": True}
    values |= {"store": True, "model": "m", "created_at": 0, "next_output_index": 4, "turns": 1}
    frames = [frame(event, LOG_END + 1 + at) for at, event in enumerate(events)]
    block = LogBlock(number - 1, LOG_END + 1, LOG_END + len(frames), b"".join(frames))
    log_end = LOG_END + len(frames)
    return Attempt(Claim(ClaimedRow(**values), log_end, blocks=[block] if frames else []))


def _decoded(events: list[Event]) -> list[JSON]:
    return [decode_frame(frame(event, number)) for number, event in enumerate(events)]


def _resumed(number: int, events: list[Event]) -> tuple[Attempt, list[Event]]:
    attempt = _attempt(number, events)
    return attempt, attempt.resume(ROWS)


ENDING = _resumed(2, [])[0].close_open_items()
"""What an attempt writes when the response ends meanwhile."""


def test_a_resumed_attempt_sends_nothing_that_is_still_held_back() -> None:
    assert _resumed(2, [])[1] == []


@pytest.mark.parametrize("written", range(len(ENDING) + 1))
def test_an_ending_that_was_written_in_part_is_continued(written: int) -> None:
    """The attempt that was ending the response died with only some of its events in the log."""
    attempt, first_events = _resumed(3, ENDING[:written])
    events = [*ENDING[:written], *first_events, *attempt.close_open_items()]
    items = assert_items_obey_contract(_decoded([*replay_item(RUNNING, 0), *events]))
    assert list(items.values()) == attempt.final_output().items
    assert [item["status"] for item in items.values()] == [
        "incomplete",
        "completed",
        "incomplete",
        "completed",
    ]


def test_a_call_that_was_sent_and_still_runs_is_not_closed() -> None:
    """The result of the first call was written to the log, but not to its row."""
    first = _attempt(2, [])
    first.resume(ROWS)
    entry = first.output.open_calls[0]
    assert entry.call is not None
    closing = entry.call.result({"output": "ok"}, failed=False)
    sent = first.output.finish_call(entry, closing, entry.call.to_json(), None)
    attempt, first_events = _resumed(3, sent)
    assert first_events == []
    assert [open_entry.position for open_entry in attempt.output.open_calls] == [2]
    events = [*replay_item(RUNNING, 0), *sent, *attempt.close_open_items()]
    items = assert_items_obey_contract(_decoded(events))
    assert [item["status"] for item in items.values()] == ["completed"] * 2 + [
        "incomplete",
        "completed",
    ]
