"""What one event of a native upstream says, after its oddities are gone (worker/upstream/responses_events.py makes these).

An event is about an item (by the upstream's own id and index, of which either may be missing or wrong), about a part of it, or about the
whole response. Events that say nothing we could show come out as `Told()`.
"""

from typing import Any

import msgspec

from models.errors import UpstreamFailed
from models.wire.events import Item
from worker.translation.usage import Usage


class TerminalState(msgspec.Struct, frozen=True, gc=False):
    """The terminal event: how the upstream's response stands at its end."""

    status: str
    """`completed`, `incomplete` or `failed`."""
    output: list[Item] = []
    """Its items as the upstream lists them at the end; often all, sometimes none."""
    incomplete_reason: str = "max_output_tokens"
    failure: UpstreamFailed | None = None


class UpstreamEvent(msgspec.Struct, frozen=True, gc=False):
    """One event."""

    subject: str = ""
    """Its type without `response.` and its last word: `output_item`, `output_text`, `function_call_arguments`, …"""
    step: str = ""
    """The last word of its type: `added`, `delta`, `done`, `in_progress`, …"""
    output_index: int | None = None
    item_id: str = ""
    part_index: int | None = None
    """Of a part, in the item's content or summary."""
    delta: str = ""
    full_text: str | None = None
    """The full text or arguments that a `done` repeats."""
    name: str = ""
    """The function's, where `arguments.done` says it."""
    logprobs: list[dict[str, Any]] = []
    item: Item | None = None
    """Without nulls."""
    part: dict[str, Any] | None = None
    annotation: dict[str, Any] | None = None
    image: str = ""
    """A partial image, in base64."""
    terminal: TerminalState | None = None
    usage: Usage | None = None
    model: str | None = None
    service_tier: str | None = None
    size: int = 0
    """Bytes of the event."""

    @property
    def has_output(self) -> bool:
        """Whether the model, or a tool that the upstream runs, has said or done something."""
        return bool(self.subject) or self.is_last

    @property
    def is_last(self) -> bool:
        """Whether the upstream has said how it ended."""
        return self.terminal is not None
