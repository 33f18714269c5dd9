"""One event of a native upstream, without the differences between servers
(worker/upstream/responses_events.py makes these).

An event is about an item (by the upstream's id and index; each may be missing or wrong), about a
part of it, or about the whole response. Events without content that we show become
`UpstreamEvent()`.
"""

from typing import Any

import msgspec

from models.errors import UpstreamFailed
from models.wire.events import Item
from models.wire.token_counts import TokenCounts


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
