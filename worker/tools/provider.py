"""The interface of tool providers.

A provider is one tool of a request that this server runs itself: an MCP server, web search. It is
made after the claim and closed at the end of the run. It knows a call by the call's item alone, so
another worker can continue after a crash.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from models.config.settings import Settings
from models.egress import EgressPolicy
from models.wire.events import Event, Item
from worker.tools.listing_cache import ListingCache
from worker.translation.functions import ServerFunction
from worker.translation.items.server_calls import OpenCallFactory

ToolOutput = str | list[dict[str, Any]]
"""Output for the model: a text, or parts as in a function call's output (`input_text`,
`input_image`, `input_file`)."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a call."""

    fields: Mapping[str, Any] = field(default_factory=dict)
    """Fields that are added to the item: `output`, `error`, `tools`, `action`."""
    failed: bool = False
    tool_output: ToolOutput | None = None
    """The output for the model, if it is not the item's `output` or `error`
    (worker/translation/history/walk.py)."""


class ToolCallError(Exception):
    """The call cannot be carried out. The message is for the model and the client and becomes
    the item's error."""


EventOf = Callable[[str, int], Event]
"""Makes an event of an item from its id and its output_index."""


async def _show_nothing(_item_id: str, _event_of: EventOf) -> None:
    """Without a stream."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What providers work with."""

    settings: Settings
    egress: EgressPolicy
    """Checks every connection that is made for a client."""
    credentials: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """server_label -> secrets of that MCP tool: `authorization`, `headers`. Never logged, stored
    or shown."""
    include: Collection[str] = ()
    """The request's `include`: additional output that the client wants."""
    project: UUID | None = None
    """That of the response; None: no tool uses what projects have"""
    api_key: UUID | None = None
    """With which the usage of tools counts."""
    request_tools: Sequence[Mapping[str, Any]] = ()
    """All tools of the request."""
    listings: ListingCache | None = None
    """Lists of MCP servers that other responses of the project have asked for."""
    show: Callable[[str, EventOf], Awaitable[None]] = _show_nothing
    """Writes an event of a call that runs, by its item's id, into the stream. It is left out while
    an earlier call holds the item back."""
    listed: dict[str, tuple[int, int]] = field(default_factory=dict)
    """server_label -> how many tools that MCP server has listed, and their bytes: all servers of a
    response share a limit."""


class ToolProvider(Protocol):
    """One tool of the request. No `run` overlaps `pending` or `functions`; several `run` at the
    same time, each in its own task."""

    time: float | None
    """Seconds that a call may take; None: as long as the settings allow a tool."""
    in_order: bool
    """Its calls of one turn run one after the other: each sees what those before it did."""

    def pending(self, history: Sequence[Item]) -> list[OpenCallFactory]:
        """The calls that must be run before the model's next turn: the listing of a server's tools,
        an approved call.

        `history` is the whole conversation, oldest item first, with this response's output. The
        method is called again, with the results in the history, until nothing is pending. A
        provider also reads its listed tools from the history here.
        """
        ...

    def functions(self) -> list[ServerFunction]:
        """The functions that the model may call, as of the last `pending`."""
        ...

    def owns(self, item: Item) -> bool:
        """Whether this item is one of its calls."""
        ...

    def is_repeatable(self, item: Item) -> bool:
        """Whether a call with unknown outcome may be run again: its tool is declared read-only
        or idempotent."""
        ...

    async def run(self, item: Item) -> ToolResult:
        """Runs the call of `item`. May be cancelled at any moment; then closes its request at once.

        Raises ToolCallError for errors that the model should see; RunError (ToolFailed) only for
        errors that must end the response. The caller (toolbox.py) limits the time and the size of
        the output; the provider limits what it reads from the network.
        """
        ...

    async def close(self) -> None:
        """Closes connections. Called once, maybe from another task than `run`, with a time limit
        of a few seconds."""
        ...


@runtime_checkable
class KeepsResults(Protocol):
    """A provider that may have the result of a call whose worker died before it was stored."""

    async def recover(self, item: Item) -> ToolResult | None:
        """The result; None: there is none, and the outcome stays unknown."""
        ...


ToolProviderFactory = Callable[[Mapping[str, Any], ToolContext], ToolProvider]
"""Makes the provider for one tool of a request (its checked parameters, without secrets)."""
