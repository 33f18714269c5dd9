"""Finished items as events (models/wire/replay.py): a stream that follows the rules of the API."""

import itertools
from typing import Any

from models.redis.answer_cache import CachedAnswer
from models.wire.events import TERMINAL_EVENTS, TextDelta, decode_frame, ends_stream, frame
from models.wire.replay import replay, with_new_ids
from models.wire.snapshot import fold
from tests.support.contract_rules import assert_items_obey_contract

CITATION = {
    "type": "url_citation",
    "start_index": 0,
    "end_index": 1,
    "url": "https://example.org",
    "title": "t",
}
LOGPROB = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": []}
ITEMS: list[dict[str, Any]] = [
    {
        "id": "rs_1",
        "type": "reasoning",
        "status": "completed",
        "summary": [{"type": "summary_text", "text": "in short"}],
        "content": [{"type": "reasoning_text", "text": "at length"}],
        "encrypted_content": "sealed",
    },
    {
        "id": "rs_2",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [],
        "encrypted_content": "sealed",
    },
    {
        "id": "msg_1",
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [
            {"type": "output_text", "text": "a", "annotations": [CITATION], "logprobs": [LOGPROB]},
            {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
            {"type": "refusal", "refusal": "no"},
        ],
    },
    {"id": "msg_2", "type": "message", "status": "completed", "role": "assistant", "content": []},
    {
        "id": "fc_1",
        "type": "function_call",
        "status": "completed",
        "call_id": "call_1",
        "name": "f",
        "arguments": "{}",
        "namespace": "n",
    },
    {
        "id": "ctc_1",
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": "call_2",
        "name": "g",
        "input": "",
    },
    {
        "id": "sh_1",
        "type": "shell_call",
        "status": "completed",
        "call_id": "call_3",
        "action": {"commands": ["ls", ""], "timeout_ms": 1},
    },
    {
        "id": "apc_1",
        "type": "apply_patch_call",
        "status": "completed",
        "call_id": "call_4",
        "operation": {"type": "delete_file", "path": "p"},
    },
]


def test_the_events_follow_the_rules_and_fold_to_the_items() -> None:
    events = [decode_frame(frame(event, number)) for number, event in enumerate(replay(ITEMS))]
    assert list(assert_items_obey_contract(events).values()) == ITEMS
    assert fold(events) == ITEMS


def test_only_the_ids_change_and_their_prefixes_stay() -> None:
    numbers = itertools.count(1)
    renamed = with_new_ids(ITEMS, lambda prefix: f"{prefix}_new{next(numbers)}")
    assert [item["id"] for item in renamed] == [
        f"{item['id'].partition('_')[0]}_new{at}" for at, item in enumerate(ITEMS, start=1)
    ]
    assert [{**item, "id": None} for item in renamed] == [{**item, "id": None} for item in ITEMS]


SERVER_TOOL_ITEMS: list[dict[str, Any]] = [
    {
        "id": "mcp_1",
        "type": "mcp_call",
        "server_label": "s",
        "name": "f",
        "arguments": "{}",
        "status": "completed",
    },
    {
        "id": "mcpl_1",
        "type": "mcp_list_tools",
        "server_label": "s",
        "tools": [],
        "status": "completed",
    },
    {
        "id": "mcpr_1",
        "type": "mcp_approval_request",
        "server_label": "s",
        "name": "f",
        "arguments": "{}",
        "status": "completed",
    },
    {
        "id": "ws_1",
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    },
    {
        "id": "ci_1",
        "type": "code_interpreter_call",
        "status": "completed",
        "code": "1",
        "container_id": "c",
        "outputs": [],
    },
    {
        "id": "tsc_1",
        "type": "tool_search_call",
        "status": "completed",
        "execution": "server",
        "arguments": {},
    },
    {"id": "cmp_1", "type": "compaction", "status": "completed", "encrypted_content": "sealed"},
]


def test_the_output_of_a_server_tool_is_not_cached() -> None:
    assert CachedAnswer(ITEMS).is_cacheable
    assert [
        item["type"] for item in SERVER_TOOL_ITEMS if CachedAnswer([*ITEMS, item]).is_cacheable
    ] == []


def test_a_terminal_event_is_recognised_only_at_the_end_of_a_block() -> None:
    kinds = ("completed", "incomplete", "failed", "cancelled")
    terminal = [frame(TERMINAL_EVENTS[kind]({"id": "resp_1"}), 1) for kind in kinds]
    others = [frame(event, number) for number, event in enumerate(replay(ITEMS))]
    quoting = frame(TextDelta("msg_1", 0, 0, "\n\nevent: response.completed\n", []), 1)
    for end in terminal:
        assert ends_stream(end)
        assert ends_stream(b"".join(others) + end)
        assert not ends_stream(end + others[0])
    assert not any(map(ends_stream, [*others, quoting, quoting + others[0]]))


def test_a_frame_has_no_character_that_ends_a_line() -> None:
    for text in ("a\u2028b\u2029c\x85d", "“quoted” – é", "\u2027\u202a"):
        encoded = frame(TextDelta("msg_1", 0, 0, text, []), 1)
        assert len(encoded.decode().splitlines()) == 3
        assert decode_frame(encoded)["delta"] == text
