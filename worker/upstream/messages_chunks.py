"""A payload of the stream of Anthropic's Messages API, or of a server that imitates it, becomes one
`ChatChunk`.

A block is known by its index. Servers leave out `message_start`, counts, signatures, `ping` and
`content_block_stop`, send whole blocks at their start, or a whole message in the place of a stream.
"""

from typing import Any

import msgspec
import structlog

from models.wire.token_counts import TokenCounts, read_counts
from worker.translation.upstream_events import CallDelta, ChatChunk
from worker.upstream.chat_body import decode_any
from worker.upstream.error_rules import failure_in, failure_of_error
from worker.upstream.finish_reasons import finish_reason, word_of
from worker.upstream.lenient_json import lenient_int, lenient_text, objects_in

logger = structlog.get_logger()

_EMPTY = ChatChunk()
_THINKING = ("thinking", "redacted_thinking")
_SILENT = frozenset(("ping", "citations_delta"))
"""Events and deltas that have nothing for a response."""


class _Block:
    """A block that has begun."""

    def __init__(self, raw: dict[str, Any]) -> None:
        self.kind = lenient_text(raw.get("type"))
        self.raw = raw
        self.thinking: list[str] = []
        self.signature = ""

    def detail(self) -> dict[str, Any]:
        """The block as the upstream wants it back."""
        if self.kind == "redacted_thinking":
            return dict(self.raw)
        return {**self.raw, "thinking": "".join(self.thinking), "signature": self.signature}


class MessagesChunkReader:
    """Reads the payloads of one stream in their order."""

    def __init__(self) -> None:
        self._blocks: dict[int | None, _Block] = {}
        self._has_reason = False
        self._unknown_events: set[str] = set()
        self.done = False
        """The message has ended."""

    def read(self, data: bytes) -> ChatChunk:
        """The next payload. Raises UpstreamFailed if it reports an error or cannot be read."""
        raw = decode_any(data)
        if not isinstance(raw, dict):
            raise failure_of_error(raw)
        kind = lenient_text(raw.get("type"))
        match kind:
            case "message_start":
                message = raw.get("message")
                return self._metadata(message if isinstance(message, dict) else {})
            case "content_block_start":
                return self._start(lenient_int(raw.get("index")), raw.get("content_block"))
            case "content_block_delta":
                return self._delta(lenient_int(raw.get("index")), raw.get("delta"))
            case "content_block_stop":
                return self._stop(lenient_int(raw.get("index")))
            case "message_delta":
                return self._end(raw, raw.get("delta"))
            case "message_stop":
                return self._stop_message()
            case "message":
                return self._whole(raw)
        if (failure := failure_in(raw)) is not None:
            raise failure
        if kind not in _SILENT and kind not in self._unknown_events:
            self._unknown_events.add(kind)
            logger.info("unknown_upstream_event", event_type=kind[:64])
        return _EMPTY

    def _metadata(self, message: dict[str, Any]) -> ChatChunk:
        return ChatChunk(
            usage=_counts(message.get("usage")), model=lenient_text(message.get("model")) or None
        )

    def _start(self, index: int | None, raw: Any) -> ChatChunk:
        # Thinking whose end was not sent has its place before this block.
        ended = [self._stop(open_) for open_ in self._open_thinking()]
        block = self._blocks[index] = _Block(raw if isinstance(raw, dict) else {})
        started = self._begun(index, block)
        return _joined([*ended, started]) if ended else started

    def _open_thinking(self) -> list[int | None]:
        return [index for index, block in self._blocks.items() if block.kind in _THINKING]

    def _begun(self, index: int | None, block: _Block) -> ChatChunk:
        """What a block has at its start: some servers send all of it there."""
        raw = block.raw
        match block.kind:
            case "text":
                return ChatChunk(content=lenient_text(raw.get("text")))
            case "thinking":
                block.signature = lenient_text(raw.get("signature"))
                return self._think(block, raw.get("thinking"))
            case "redacted_thinking":
                return _EMPTY
            case "tool_use":
                given = raw.get("input")
                arguments = msgspec.json.encode(given).decode() if given else ""
                name, call_id = (lenient_text(raw.get(field)) for field in ("name", "id"))
                return ChatChunk(calls=(CallDelta(index, call_id, name, arguments),))
        return ChatChunk(unknown=(f"content_block.{block.kind[:64]}",))

    def _think(self, block: _Block, text: Any) -> ChatChunk:
        piece = lenient_text(text)
        block.thinking.append(piece)
        return ChatChunk(reasoning=piece)

    def _delta(self, index: int | None, raw: Any) -> ChatChunk:
        delta = raw if isinstance(raw, dict) else {}
        kind = lenient_text(delta.get("type"))
        block = self._blocks.get(index)
        match kind:
            case "text_delta":
                return ChatChunk(content=lenient_text(delta.get("text")))
            case "thinking_delta":
                if block is None:
                    block = self._blocks[index] = _Block({"type": "thinking"})
                return self._think(block, delta.get("thinking"))
            case "signature_delta":
                if block is not None:
                    block.signature += lenient_text(delta.get("signature"))
                return _EMPTY
            case "input_json_delta":
                piece = lenient_text(delta.get("partial_json"))
                if block is None or block.kind != "tool_use":
                    return _EMPTY
                return ChatChunk(calls=(CallDelta(index, arguments=piece),))
        return _EMPTY if kind in _SILENT else ChatChunk(unknown=(f"delta.{kind[:64]}",))

    def _stop(self, index: int | None) -> ChatChunk:
        block = self._blocks.pop(index, None)
        if block is None:
            return _EMPTY
        return ChatChunk(details=[block.detail()]) if block.kind in _THINKING else _EMPTY

    def _end(self, raw: dict[str, Any], raw_delta: Any) -> ChatChunk:
        """The end of a message: why, and the counts. Blocks that are still open end too."""
        delta = raw_delta if isinstance(raw_delta, dict) else {}
        word = word_of(delta.get("stop_reason"))
        reason = finish_reason(word) if word else None
        self._has_reason |= reason is not None
        chunk = ChatChunk(
            refusal=_refusal(delta.get("stop_details")),
            finish_reason=reason,
            finish_word=word,
            usage=_counts(raw.get("usage")),
        )
        return (
            chunk if reason is None else _joined([*map(self._stop, self._open_thinking()), chunk])
        )

    def _stop_message(self) -> ChatChunk:
        self.done = True
        return _EMPTY if self._has_reason else ChatChunk(finish_reason="stop")

    def _whole(self, message: dict[str, Any]) -> ChatChunk:
        """A message that is no stream."""
        self.done = True
        chunks = [self._metadata(message)]
        for index, block in enumerate(objects_in(message.get("content"))):
            chunks += [self._start(index, block), self._stop(index)]
        return _joined([*chunks, self._end({}, message)])


def _refusal(details: Any) -> str:
    """Why the model refuses, in words for a person."""
    is_refusal = isinstance(details, dict) and details.get("type") == "refusal"
    return lenient_text(details.get("explanation")) if is_refusal else ""


def _counts(raw: Any) -> TokenCounts | None:
    return read_counts(raw) if isinstance(raw, dict) else None


def _joined(chunks: list[ChatChunk]) -> ChatChunk:
    """One chunk with the content of several."""
    last = chunks[-1]
    return ChatChunk(
        content="".join(chunk.content for chunk in chunks),
        refusal=last.refusal,
        reasoning="".join(chunk.reasoning for chunk in chunks),
        details=[detail for chunk in chunks for detail in chunk.details],
        calls=tuple(call for chunk in chunks for call in chunk.calls),
        finish_reason=last.finish_reason,
        finish_word=last.finish_word,
        usage=last.usage or chunks[0].usage,
        model=chunks[0].model or last.model,
        unknown=tuple(place for chunk in chunks for place in chunk.unknown),
    )
