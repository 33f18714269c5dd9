"""Steps of tests/support/fake_upstream.py for an upstream with Anthropic's Messages API, and the
rules by which that API refuses a request.

    model = fake.script([begin(), thinking("Hm.", signature="sig"), said("Hello"), end()])

Blocks are numbered as they are told.
"""

import itertools
import re
from typing import Any

from tests.support.api import JSON
from tests.support.fake_upstream import Exchange, Step

START_USAGE = {
    "input_tokens": 11,
    "cache_creation_input_tokens": 5,
    "cache_read_input_tokens": 20,
    "output_tokens": 1,
}
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_THINKING = ("thinking", "redacted_thinking")


async def _send(exchange: Exchange, event: JSON) -> None:
    await exchange.write(f"event: {event['type']}\n".encode())
    await exchange.event(event)


def events(*sent: JSON) -> Step:
    """Sends these events."""

    async def step(exchange: Exchange) -> None:
        for event in sent:
            await _send(exchange, event)

    return step


def begin(usage: JSON | None = None) -> Step:
    """Sends `message_start` and `ping`."""
    message: JSON = {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "claude-double",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": START_USAGE if usage is None else usage,
    }
    return events({"type": "message_start", "message": message}, {"type": "ping"})


def block(content_block: JSON, *deltas: JSON) -> Step:
    """Sends a whole block with the next index."""

    async def step(exchange: Exchange) -> None:
        index = len(exchange.request.items)
        exchange.request.items.append(content_block)
        place = {"index": index}
        await _send(
            exchange, {"type": "content_block_start", **place, "content_block": content_block}
        )
        for delta in deltas:
            await _send(exchange, {"type": "content_block_delta", **place, "delta": delta})
        await _send(exchange, {"type": "content_block_stop", **place})

    return step


def said(*pieces: str) -> Step:
    """Sends a block of text."""
    deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
    return block({"type": "text", "text": ""}, *deltas)


def thinking(*pieces: str, signature: str) -> Step:
    """Sends a block of thinking; without pieces its text is omitted."""
    deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
    return block(
        {"type": "thinking", "thinking": "", "signature": ""},
        *deltas,
        {"type": "signature_delta", "signature": signature},
    )


def redacted(data: str) -> Step:
    """Sends a block of redacted thinking."""
    return block({"type": "redacted_thinking", "data": data})


def tool_use(call_id: str, name: str, *pieces: str) -> Step:
    """Sends a call with its input in pieces."""
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces)]
    return block({"type": "tool_use", "id": call_id, "name": name, "input": {}}, *deltas)


def end(stop_reason: str = "end_turn", *, output: int = 7, **delta: Any) -> Step:
    """Sends `message_delta` and `message_stop`."""
    return events(
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop_reason, "stop_sequence": None, **delta},
            "usage": {"output_tokens": output},
        },
        {"type": "message_stop"},
    )


def error(kind: str, message: str) -> JSON:
    """The body of an error, which is also the event of one."""
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_1"}


def faults_of(body: JSON) -> list[str]:
    """What the API would refuse in this request, by its documentation and public reports."""
    found = []
    if type(body.get("max_tokens")) is not int:
        found.append("max_tokens: Field required")
    roles = [message["role"] for message in body["messages"]]
    if not roles or roles[0] != "user":
        found.append("first message must use the user role")
    if roles and roles[-1] != "user":
        found.append("the conversation must end with a user message")
    if any(first == second for first, second in itertools.pairwise(roles)):
        found.append("roles must alternate")
    for position, message in enumerate(body["messages"]):
        found += _faults_of_blocks(message["content"], f"messages.{position}")
        calls = [each["id"] for each in message["content"] if each["type"] == "tool_use"]
        following = body["messages"][position + 1]["content"] if calls else []
        results = [
            each.get("tool_use_id")
            for each in itertools.takewhile(lambda each: each["type"] == "tool_result", following)
        ]
        if calls != results:
            found.append(f"messages.{position}: tool_use without tool_result at the start: {calls}")
    found += [
        f"tools: {tool['name']}"
        for tool in body.get("tools", ())
        if not _NAME.fullmatch(tool["name"]) or tool["input_schema"].get("type") != "object"
    ]
    return found + _faults_of_thinking(body)


def _faults_of_blocks(blocks: list[JSON], place: str) -> list[str]:
    found = [] if blocks else [f"{place}: content is empty"]
    for each in blocks:
        if each["type"] == "text" and not each["text"].strip():
            found.append(f"{place}: text content blocks must contain non-whitespace text")
        if each["type"] in ("tool_use", "tool_result"):
            call_id = str(each.get("id", each.get("tool_use_id")))
            if not _ID.fullmatch(call_id):
                found.append(f"{place}: id {call_id}")
        if each["type"] == "thinking" and set(each) != {"type", "thinking", "signature"}:
            found.append(f"{place}: thinking with {sorted(each)}")
    return found


def _faults_of_thinking(body: JSON) -> list[str]:
    config = body.get("thinking", {"type": "disabled"})
    if config["type"] == "disabled":
        return []
    found: list[str] = [name for name in ("temperature", "top_k") if name in body]
    if body.get("tool_choice", {}).get("type") in ("any", "tool"):
        found.append("Thinking may not be enabled when tool_choice forces tool use.")
    if "budget_tokens" in config:
        if not 1024 <= config["budget_tokens"] < body["max_tokens"]:
            found.append("budget_tokens")
        assistants = [each for each in body["messages"] if each["role"] == "assistant"]
        answers_call = body["messages"][-1]["content"][0]["type"] == "tool_result"
        if answers_call and assistants[-1]["content"][0]["type"] not in _THINKING:
            found.append("Expected `thinking` or `redacted_thinking`, but found `tool_use`.")
    return found
