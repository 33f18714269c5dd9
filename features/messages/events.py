"""The events of a response become those of a stream of Anthropic's API. Pure.

Blocks are numbered from 0 and one is open at a time, as items are (docs/wire.md). A block begins
with its first content, so none is empty.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import orjson

from features.messages import answer
from features.messages.request import Thinking
from models.errors import ApiError, Unavailable
from models.wire.events import Item, decode_frame, split_frames

Json = dict[str, Any]


class Blocks:
    """Numbers the blocks of one message from 0, and closes each before the next begins."""

    def __init__(self) -> None:
        self.open: str | None = None
        """The type of the block that is open."""
        self.shown: set[str] = set()
        """The ids of the items that the client has seen something of."""
        self.has_deltas = False
        """The present item has sent content in deltas."""
        self._item = ""
        self._index = -1
        """of the last block"""
        self._events: list[bytes] = []

    def next_item(self, item: str) -> None:
        """The blocks that follow belong to the item with this id."""
        self._item = item
        self.has_deltas = False

    def ensure(self, empty: Json) -> None:
        """Begins the block, unless one of its type is open."""
        if self.open != empty["type"]:
            self.begin(empty)

    def begin(self, empty: Json) -> None:
        """Closes the block that is open, and opens this one."""
        self.close()
        self._index += 1
        self.open = empty["type"]
        self.shown.add(self._item)
        self.emit("content_block_start", index=self._index, content_block=empty)

    def delta(self, **delta: Any) -> None:
        """A part of the open block."""
        self.has_deltas = self.has_deltas or delta.get("partial_json") != ""
        self.emit("content_block_delta", index=self._index, delta=delta)

    def close(self) -> None:
        """Closes the block that is open, if one is."""
        if self.open is not None:
            self.open = None
            self.emit("content_block_stop", index=self._index)

    def whole(self, block: Json) -> None:
        """A block that came without deltas."""
        empty, deltas = _taken_apart(block)
        self.begin(empty)
        for delta in deltas:
            self.delta(**delta)
        self.close()

    def emit(self, kind: str, /, **fields: Any) -> None:
        """Adds an event."""
        data = orjson.dumps({"type": kind, **fields})
        self._events.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))

    def take(self) -> bytes:
        """The events since the last call."""
        events, self._events = self._events, []
        return b"".join(events)


def _taken_apart(block: Json) -> tuple[Json, Sequence[Json]]:
    """How a whole block begins, and the deltas that complete it."""
    match block["type"]:
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "thinking":
            deltas = [
                {"type": f"{name}_delta", name: block[name]}
                for name in ("thinking", "signature")
                if block[name]
            ]
            return {**block, "thinking": "", "signature": ""}, deltas
        case "server_tool_use":
            query = orjson.dumps(block["input"]).decode()
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": query}]
        case _:
            return block, []


PING = b'event: ping\ndata: {"type":"ping"}\n\n'
"""Sent from time to time."""
_OPENING = frozenset((b"response.created", b"response.queued", b"response.in_progress"))
_STATUSES = {"rate_limit_exceeded": 429, "invalid_prompt": 400}
"""Code of a failed response -> the status that it would have."""


def has_output(frames: bytes) -> bool:
    """Whether some event of these frames is more than a beginning."""
    return any(
        frame.partition(b"\n")[0].removeprefix(b"event: ") not in _OPENING
        for frame in split_frames(frames)
    )


class MessageStream:
    """The stream of one message."""

    def __init__(
        self, response: str, model: str, input_tokens: int, thinking: Thinking, request_id: str
    ) -> None:
        """`response`: its id. `input_tokens`: an estimate; the end has the upstream's count."""
        self._start = answer.empty_message(response, model, input_tokens)
        self._thinking = thinking
        self._request_id = request_id
        self._blocks = Blocks()
        self._is_summary = False
        """The open block of thinking has a summary, and not the raw text."""
        self._was_cut = False
        """An item that the client has seen was closed before its end."""
        self.has_ended = False
        self.is_broken = False
        """It has ended without its end."""

    def start(self) -> bytes:
        """The first events."""
        self._blocks.emit("message_start", message=self._start)
        return self._blocks.take() + PING

    def feed(self, frames: bytes) -> bytes:
        """The events for some frames of the response; maybe none."""
        for frame in split_frames(frames):
            if self.has_ended:
                break
            event = decode_frame(frame)
            rule = self._RULES.get(event["type"])
            if rule is not None:
                rule(self, event)
        return self._blocks.take()

    def _item_added(self, event: Json) -> None:
        if self._was_cut:
            self._interrupted()
            return
        item: Item = event["item"]
        self._blocks.next_item(item["id"])
        if item["type"] == "function_call":
            self._blocks.begin(answer.tool_use(item))
            self._blocks.delta(type="input_json_delta", partial_json="")

    def _text(self, event: Json) -> None:
        if event["delta"]:
            self._blocks.ensure({"type": "text", "text": ""})
            self._blocks.delta(type="text_delta", text=event["delta"])

    def _reasoning(self, event: Json) -> None:
        if self._thinking is Thinking.SHOWN and event["delta"]:
            self._is_summary = "summary_index" in event
            self._blocks.ensure({"type": "thinking", "thinking": "", "signature": ""})
            self._blocks.delta(type="thinking_delta", thinking=event["delta"])

    def _summary(self, event: Json) -> None:
        """A summary beside the raw text is not sent too."""
        if self._blocks.open != "thinking" or self._is_summary:
            self._reasoning(event)

    def _summary_part(self, event: Json) -> None:
        if self._blocks.open == "thinking" and self._is_summary and event["summary_index"] > 0:
            self._blocks.delta(type="thinking_delta", thinking="\n\n")

    def _arguments(self, event: Json) -> None:
        if self._blocks.open == "tool_use":
            self._blocks.delta(type="input_json_delta", partial_json=event["delta"])

    def _part_done(self, _event: Json) -> None:
        if self._blocks.open == "text":
            self._blocks.close()

    def _item_done(self, event: Json) -> None:
        item: Item = event["item"]
        blocks = self._blocks
        if blocks.open == "tool_use" and not blocks.has_deltas and item.get("arguments"):
            blocks.delta(type="input_json_delta", partial_json=item["arguments"])
        elif blocks.open == "thinking" and "encrypted_content" in item:
            blocks.delta(type="signature_delta", signature=item["encrypted_content"])
        elif blocks.open is None and not blocks.has_deltas:
            for block in answer.blocks_of(item, self._thinking):
                blocks.whole(block)
        blocks.close()
        self._was_cut = item.get("status") == "incomplete" and item["id"] in blocks.shown

    def _ended(self, event: Json) -> None:
        response: Json = event["response"]
        if not self._blocks.shown <= {item["id"] for item in response["output"]}:
            self._interrupted()
            return
        self._blocks.close()
        usage = {"output_tokens": 0, **answer.usage_of(response["usage"])}
        delta = {"stop_reason": answer.stop_reason(response), "stop_sequence": None}
        self._blocks.emit("message_delta", delta=delta, usage=usage)
        self._blocks.emit("message_stop")
        self.has_ended = True

    def _failed(self, event: Json) -> None:
        error: Mapping[str, Any] | None = event["response"].get("error")
        if error is None:
            self._fail(Unavailable("The response was cancelled. Please retry."))
            return
        failure = ApiError(error["message"], code=error["code"])
        failure.status = _STATUSES.get(error["code"], 500)
        self._fail(failure)

    def _interrupted(self) -> None:
        """What was sent is no part of the answer any more: another worker begins the turn again.
        No event takes a block back. Claude Code repeats a request whose connection is lost early,
        and none whose stream has an error."""
        self.has_ended = self.is_broken = True

    def _fail(self, error: ApiError) -> None:
        fields = answer.error_body(error, self._request_id)
        self._blocks.emit(fields.pop("type"), **fields)
        self.has_ended = True

    _RULES: ClassVar[Mapping[str, Callable[["MessageStream", Json], None]]] = {
        "response.output_item.added": _item_added,
        "response.output_item.done": _item_done,
        "response.output_text.delta": _text,
        "response.refusal.delta": _text,
        "response.content_part.done": _part_done,
        "response.reasoning_text.delta": _reasoning,
        "response.reasoning_summary_text.delta": _summary,
        "response.reasoning_summary_part.added": _summary_part,
        "response.function_call_arguments.delta": _arguments,
        "response.completed": _ended,
        "response.incomplete": _ended,
        "response.failed": _failed,
    }
    """Event of a response -> what becomes of it."""
