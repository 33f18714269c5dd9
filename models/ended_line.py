"""The line of a response that has ended (docs/operations.md, "Logs").

The process that stores the ending writes it, once: the worker that owns the response, or the web
process that cancels it in the queue or knows its answer.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

import msgspec

from models import logs
from models.ids import response_id
from models.lifecycle import Status
from models.wire.events import Item

_MAX_TOOLS = 50
"""Names of tools in one line."""
_MAX_NAME = 200
"""Characters of the name of a model or a tool. Clients choose them."""


class EndedLine(msgspec.Struct, frozen=True, kw_only=True):
    """What the line shows. Durations in seconds since the response was created."""

    response: UUID
    request: str | None
    """the id of the request that made it"""
    status: Status
    reason: str | None = None
    model: str
    background: bool
    attempts: int = 0
    upstream: str | None = None
    """the name of the upstream that answered its last turn"""
    queued_seconds: float | None = None
    """until a worker claimed it"""
    first_token_seconds: float | None = None
    """until its first output"""
    seconds: float
    """until its end"""
    usage: Mapping[str, Any] | None = None
    output: Iterable[Item] = ()
    project: UUID | None = None
    """not part of the line"""
    cost: int | None = None
    """in billionths of the currency (models/prices.py); not part of the line"""

    def write(self) -> None:
        """Writes the line."""
        fields: dict[str, object] = {
            "response": response_id(self.response),
            "status": self.status.value,
            "reason": self.reason,
            "model": self.model[:_MAX_NAME],
            "background": self.background,
            "upstream": self.upstream,
            "attempts": self.attempts,
            "queued_seconds": _rounded(self.queued_seconds),
            "first_token_seconds": _rounded(self.first_token_seconds),
            "seconds": round(self.seconds, 3),
        }
        if self.request is not None:
            fields["request"] = self.request
        if self.usage is not None:
            fields["input_tokens"] = self.usage.get("input_tokens")
            fields["output_tokens"] = self.usage.get("output_tokens")
        if tools := _count_tools(self.output):
            fields["tools"] = tools
        logs.write_line("response_ended", fields)


def _count_tools(output: Iterable[Item]) -> dict[str, int]:
    """The calls of each tool."""
    counts: dict[str, int] = {}
    for item in output:
        if item["type"].endswith("_call"):
            name = _tool_name(item)
            if name in counts or len(counts) < _MAX_TOOLS:
                counts[name] = counts.get(name, 0) + 1
    return counts


def _tool_name(item: Item) -> str:
    """The kind of the tool that was called, and its name if clients choose that."""
    kind = item["type"].removesuffix("_call")
    named = (item.get("server_label"), item.get("namespace"), item.get("name"))
    return ":".join([kind, *filter(None, named)])[:_MAX_NAME]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
