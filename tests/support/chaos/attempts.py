"""What a stream must look like when more than one worker has told it."""

from tests.support.api import JSON, decode
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.strict_types import check_event


def assert_one_stream(frames: list[bytes]) -> list[JSON]:
    """The stream is one whole, although more than one worker told it; its events."""
    events = [decode(frame) for frame in frames]
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    return events


def assert_abandoned(events: list[JSON], *, items: int) -> None:
    """The first `items` items were given up: the last of them was open and is closed as incomplete; the final output has none of them."""
    dones = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert dones[items - 1]["status"] == "incomplete"
    kept = [item["id"] for item in events[-1]["response"]["output"]]
    assert kept == [item["id"] for item in dones[items:]]
