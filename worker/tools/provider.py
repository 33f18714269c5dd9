"""What a tool must be able to do so that a response can use it.

A *source* is one tool of a request that this server runs itself: an MCP server, web search. It is made at the claim and closed at the
end of the run. All it needs to know about a call is the call's item, so another worker can go on where this one stopped.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from models.config.settings import Settings
from models.egress import EgressPolicy
from models.wire.events import Item
from worker.translation.items.server_calls import OpenCallFactory
from worker.translation.items.server_tools import ServerFunction

ToolOutput = str | list[dict[str, Any]]
"""What the model is told: a text, or parts as in a function call's output (`input_text`, `input_image`, `input_file`)."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What running a call gave."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """What the item gains: `output`, `error`, `tools`, `action`."""
    failed: bool = False
    tool_output: ToolOutput | None = None
    """What the model is told, where the item does not say it (worker/translation/chat/request.py tells it the item's `output` or `error`)."""


class ToolCallError(Exception):
    """The call cannot be carried out; the message is for the model and the client, and becomes the item's error."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What sources work with."""

    settings: Settings
    egress: EgressPolicy
    """The guard of every connection that is made for a client."""
    credentials: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """server_label -> what was sealed of that MCP tool: `authorization`, `headers`. Never logged, stored or shown."""
    include: Collection[str] = ()
    """What the client wants to see besides (contract §2.1)."""


class ToolProvider(Protocol):
    """One tool of the request. No call overlaps `due` or `functions`; several `run` at the same time, each in a task of its own."""

    def pending(self, history: Sequence[Item]) -> list[OpenCallFactory]:
        """What must be run before the model speaks next: the listing of a server's tools, a call that has been approved.

        `history` is all that was said, oldest first, this response's own output included; asked again, with the answers in it, until
        nothing is due. A source also learns here what the history knows already (its listed tools).
        """
        ...

    def functions(self) -> list[ServerFunction]:
        """What the model may call, as of the last `due`."""
        ...

    def owns(self, item: Item) -> bool:
        """Whether this item is one of its calls."""
        ...

    def is_repeatable(self, item: Item) -> bool:
        """Whether a call may be run again although it may have been run before: it declares itself read-only or idempotent."""
        ...

    async def run(self, item: Item) -> ToolResult:
        """Runs the call that `item` asks for. May be cancelled at any moment, then closes its request at once.

        Raises Refusal for what the model should hear; RunError (ToolFailed) only for what must end the response. Time and the size of
        what the model is told are limited by the caller (toolbox.py); what is read from the network is limited here.
        """
        ...

    async def close(self) -> None:
        """Gives back what it holds; called once, maybe from another task than `run`, and given a few seconds."""
        ...


ToolProviderFactory = Callable[[Mapping[str, Any], ToolContext], ToolProvider]
"""Makes the source for one tool of a request (its checked parameters, without secrets)."""
