"""Checks of a stream that more than one worker has written."""

from tests.support.api import JSON, decode
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.strict_types import check_event


def assert_one_stream(frames: list[bytes]) -> list[JSON]:
    """Checks that the frames of several attempts are one valid stream; returns the events."""
    events = [decode(frame) for frame in frames]
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    return events


def assert_abandoned(events: list[JSON], *, items: int) -> None:
    """Checks that the first `items` items were abandoned by a later attempt.

    The last of them was open and is closed as incomplete. The final output has none of them.
    """
    done_items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done_items[items - 1]["status"] == "incomplete"
    final_ids = [item["id"] for item in events[-1]["response"]["output"]]
    assert final_ids == [item["id"] for item in done_items[items:]]
