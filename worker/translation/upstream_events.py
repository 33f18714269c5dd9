"""What the readers of upstreams' streams (worker/upstream) give to the translators: one chunk of a
chat upstream, or one event of a native one, without the differences between vendors and servers.

Code behind this point does not need to know any vendor.
"""

from typing import Any

import msgspec

from models.errors import UpstreamFailed
from models.wire.events import Item
from models.wire.token_counts import TokenCounts


class CallDelta(msgspec.Struct, frozen=True, gc=False):
    """A piece of one tool call. Which call it belongs to is decided in
    worker/translation/chat/calls.py, never by `index` alone."""

    index: int | None = None
    """The upstream's number of the call; None if it sent none."""
    id: str = ""
    name: str = ""
    arguments: str = ""
    fields: dict[str, Any] = {}
    """The fields of the call that are not known, as the upstream sent them: it may want them
    back."""
    function_fields: dict[str, Any] = {}
    """Those of its object `function`."""

    @property
    def is_empty(self) -> bool:
        """Whether the piece has only an index."""
        return not (self.id or self.name or self.arguments or self.fields or self.function_fields)


class ChatChunk(msgspec.Struct, frozen=True, gc=False):
    """One chunk of one turn: the first choice's delta, and the fields beside it."""

    content: str = ""
    refusal: str = ""
    reasoning: str = ""
    summary: tuple[tuple[int, str], ...] = ()
    """Pieces of summaries of the reasoning: `(number of the summary, text)`."""
    details: list[dict[str, Any]] = []
    """`reasoning_details` as the upstream sent them, with signatures: some upstreams want them
    back."""
    calls: tuple[CallDelta, ...] = ()
    logprobs: list[dict[str, Any]] = []
    """Already in the Responses shape: `{token, logprob, bytes, top_logprobs}`, `bytes` never
    null."""
    annotations: list[dict[str, Any]] = []
    """Already in the Responses shape, flat: `{"type": "url_citation", url, title, start_index,
    end_index}`."""
    finish_reason: str | None = None
    """`stop`, `length`, `content_filter`, `error` or `unknown`; None while the turn runs."""
    usage: TokenCounts | None = None
    model: str | None = None
    service_tier: str | None = None
    finish_word: str = ""
    """The upstream's own word for `finish_reason`."""
    images: tuple[str, ...] = ()
    """Pictures of the model: addresses, or data URLs."""
    has_audio: bool = False
    """It has sound, for which the Responses API has no item."""
    unread: dict[str, Any] = {}
    """Fields of the delta that the upstream may want back with the calls of its message, as it sent
    them."""
    unknown: tuple[str, ...] = ()
    """Where content was that is not understood: `delta.NAME`, `choice.NAME`,
    `delta.content.TYPE`."""

    @property
    def has_output(self) -> bool:
        """Whether the chunk has content of the model. Many servers send empty chunks to keep the
        connection open."""
        return bool(
            self.content
            or self.reasoning
            or self.calls
            or self.refusal
            or self.annotations
            or self.finish_reason
            or self.images
            or self.has_audio
        )

    @property
    def is_last(self) -> bool:
        """Whether the chunk has the finish_reason."""
        return self.finish_reason is not None

    def weight(self) -> int:
        """The approximate memory that this chunk's content takes, in bytes, for the turn's
        `output_limit`."""
        text = self.content or self.reasoning or self.refusal
        weight = len(text) if text.isascii() else len(text.encode())
        if (
            self.calls
            or self.logprobs
            or self.annotations
            or self.details
            or self.images
            or self.unread
            or (self.content and (self.reasoning or self.refusal))
        ):
            weight = _full_weight(self)
        return weight


def _full_weight(chunk: ChatChunk) -> int:
    weight = sum(len(text.encode()) for text in (chunk.content, chunk.reasoning, chunk.refusal))
    weight += sum(
        len(call.id)
        + len(call.name)
        + len(call.arguments.encode())
        + _fields_weight(call.fields, call.function_fields)
        for call in chunk.calls
    )
    weight += sum(_DETAIL_WEIGHT + len(str(detail)) for detail in chunk.details) + sum(
        len(text.encode()) for _, text in chunk.summary
    )
    weight += sum(_LOGPROB_WEIGHT * (1 + len(entry["top_logprobs"])) for entry in chunk.logprobs)
    weight += sum(map(len, chunk.images)) + (len(str(chunk.unread)) if chunk.unread else 0)
    return weight + sum(
        _ANNOTATION_WEIGHT + len(str(annotation)) for annotation in chunk.annotations
    )


def _fields_weight(*several: dict[str, Any]) -> int:
    return sum(_DETAIL_WEIGHT + len(str(fields)) for fields in several if fields)


_LOGPROB_WEIGHT = 256
_ANNOTATION_WEIGHT = 256
_DETAIL_WEIGHT = 256
"""Approximate bytes of a small dict in memory. The limit is a bound, not a measurement."""


class TerminalState(msgspec.Struct, frozen=True, gc=False):
    """The terminal event: the upstream's response at its end."""

    status: str
    """`completed`, `incomplete` or `failed`."""
    output: list[Item] = []
    """The items that it lists; often all of them, sometimes none."""
    incomplete_reason: str = "max_output_tokens"
    failure: UpstreamFailed | None = None
    extra_fields: dict[str, Any] = {}
    """Fields of its Response object that this server does not make itself."""


class UpstreamEvent(msgspec.Struct, frozen=True, gc=False):
    """One event."""

    subject: str = ""
    """Its type without `response.` and the last part: `output_item`, `output_text`,
    `function_call_arguments`, …"""
    step: str = ""
    """The last part of its type: `added`, `delta`, `done`, `in_progress`, …"""
    output_index: int | None = None
    item_id: str = ""
    part_index: int | None = None
    """Index of a part in the item's content or summary."""
    delta: str = ""
    full_text: str | None = None
    """The full text or arguments that a `done` repeats."""
    name: str = ""
    """The function's name, in `arguments.done`."""
    logprobs: list[dict[str, Any]] = []
    item: Item | None = None
    """Without nulls."""
    part: dict[str, Any] | None = None
    annotation: dict[str, Any] | None = None
    image: str = ""
    """A partial image, in base64."""
    terminal: TerminalState | None = None
    usage: TokenCounts | None = None
    model: str | None = None
    service_tier: str | None = None
    size: int = 0
    """Bytes of the event."""

    @property
    def has_output(self) -> bool:
        """Whether the event shows progress of the model, or of a tool that the upstream runs."""
        return bool(self.subject) or self.is_last

    @property
    def is_last(self) -> bool:
        """Whether this is the terminal event."""
        return self.terminal is not None
