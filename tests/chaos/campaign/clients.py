"""The clients of a round: each creates its responses and reads them as the plan says."""

import asyncio
from typing import Any

from tests.chaos.audit.record import JSON, ConversationTrace, ResponseTrace
from tests.chaos.campaign.plan import CONVERSATIONS, Client
from tests.chaos.campaign.sockets import SocketClient
from tests.chaos.campaign.upstream import scripts
from tests.support.api import TERMINAL
from tests.support.chaos.recording_client import RecordedClients
from tests.support.mcp_servers import McpServers
from tests.support.tool_turns import counting_server

_TRIES = 4
"""How often a client sends a create that is answered 503, a second apart."""
_CONVERSATION_TRIES = 8
"""How often it sends one that is answered 503, or refused because its conversation is locked."""
_LONG_TEXT = "Noted. " * 900
"""The model's message in a history that is compacted."""
_WINDOWS = ("soonest", "2h", "8h")
_COMPACTION: JSON = {"context_management": [{"type": "compaction", "compact_threshold": 1000}]}


class PlannedClients:
    """The clients of a round."""

    def __init__(self, clients: RecordedClients, seed: int, mcp: McpServers) -> None:
        """`mcp`: the servers of tools."""
        self._clients = clients
        self._mcp = mcp
        self._seed = seed
        loop = asyncio.get_running_loop()
        self._conversations: list[asyncio.Future[ConversationTrace]] = [
            loop.create_future() for _ in range(CONVERSATIONS)
        ]
        self._parents: list[ResponseTrace] = []
        """Background responses that no client deletes."""

    async def run(self, number: int, client: Client) -> None:
        """Does everything that the clients of one response do."""
        await asyncio.sleep(client.at)
        match client.kind:
            case "socket":
                await self._run_socket(number, client)
            case "conversation":
                await self._run_in_conversation(number, client)
            case "compact":
                await self._run_compaction(number, client)
            case _:
                await self._follow(await self._create(number, client), client)

    async def open_conversations(self) -> None:
        """Creates the conversations of the round. Clients that need one wait for it."""
        for number, opened in enumerate(self._conversations):
            text = f"Conversation {number} of round {self._seed}."
            opened.set_result(await self._clients.open_conversation(text))

    # --- HTTP ---

    async def _create(self, number: int, client: Client) -> ResponseTrace:
        """Sends the create, again after a 503; returns the last try."""
        previous = await self._parent() if client.kind == "chained" else None
        for attempt in range(_TRIES):
            trace = self._trace(number, client, attempt, previous=previous)
            await self._send(trace, client)
            if trace.create.status != 503:
                break
            await asyncio.sleep(1)
        return trace

    def _trace(
        self, number: int, client: Client, attempt: int | str, **known: Any
    ) -> ResponseTrace:
        """The trace of the next try, with the scripts of its upstream."""
        prefix = "native-" if client.is_native else ""
        marker = f"{prefix}r{self._seed}-{number}-{attempt}"
        if client.compacts:
            history = [
                {"type": "message", "role": "user", "content": f"First of {marker}."},
                {"type": "message", "role": "assistant", "content": _LONG_TEXT},
            ]
            known |= {"kind": "compacting", "history": history}
        return self._clients.new_trace(
            *scripts(number, client, marker),
            marker=marker,
            turns=1 + len(client.tools) + client.compacts,
            background=client.is_background,
            **known,
        )

    async def _send(self, trace: ResponseTrace, client: Client) -> None:
        await self._clients.send(
            trace,
            stream=client.is_streamed,
            disconnect_after=client.disconnects,
            **self._fields(trace, client),
        )

    def _fields(self, trace: ResponseTrace, client: Client) -> JSON:
        """The fields of the create that its trace does not have."""
        fields: JSON = dict(_COMPACTION) if client.compacts else {}
        if client.is_background and not client.is_streamed and client.kind != "socket":
            trace.window = _WINDOWS[client.words % len(_WINDOWS)]
            fields["background_options"] = {
                "completion_window": trace.window,
                "continuation_id": f"{trace.window} {client.words}",
            }
        if client.tools:
            fields["tools"] = [counting_server(self._mcp)]
        for turn, tools in enumerate(client.tools if client.tool_delay else ()):
            for index in range(len(tools)):
                held = self._mcp.tool_calls.hold(f"{trace.marker}/{turn}.{index}")
                asyncio.get_running_loop().call_later(client.tool_delay, held.set)
        return fields

    async def _follow(self, trace: ResponseTrace, client: Client) -> None:
        """Starts the readers of a background response, and cancels and deletes it."""
        if trace.id is None or not trace.background:
            return
        if client.delete is None and trace.conversation is None:
            self._parents.append(trace)
        if client.kind != "streamed":
            self._clients.start_poller(trace)
        for disconnects in client.readers:
            self._clients.start_reader(trace, disconnects)
        if client.read_pause:
            self._clients.start_reader(trace, pause=client.read_pause)
        await asyncio.gather(self._cancel(trace, client.cancel), self._delete(trace, client.delete))

    async def _parent(self) -> ResponseTrace | None:
        """Returns an earlier response that a GET showed as ended; None if there is none."""
        for trace in self._parents:
            request = await self._clients.get(trace)
            if request.status == 200 and request.body["status"] in TERMINAL:
                return trace
        return None

    async def _cancel(self, trace: ResponseTrace, after: float | None) -> None:
        if after is not None:
            await asyncio.sleep(after)
            await self._clients.cancel(trace)

    async def _delete(self, trace: ResponseTrace, after: float | None) -> None:
        if after is not None:
            await asyncio.sleep(after)
            await self._clients.delete(trace)

    async def _run_in_conversation(self, number: int, client: Client) -> None:
        """Creates a response in a conversation; while that is locked, it tries again."""
        conversation = await self._conversations[client.conversation]
        for attempt in range(_CONVERSATION_TRIES):
            trace = self._trace(number, client, attempt, conversation=conversation)
            await self._send(trace, client)
            if trace.create.status not in (400, 503):
                break
            await asyncio.sleep(0.7)
        await self._follow(trace, client)

    async def _run_compaction(self, number: int, client: Client) -> None:
        """Compacts a history, then continues it with a response."""
        compaction = self._trace(number, client, "c", kind="compaction")
        compaction.background = False
        compaction.history = [
            {"type": "message", "role": "user", "content": f"First of {compaction.marker}."},
            {"type": "message", "role": "assistant", "content": _LONG_TEXT},
        ]
        await self._clients.send(compaction)
        if compaction.create.status != 200:
            return
        history = compaction.create.body["output"]
        trace = self._trace(number, client, "d", history=history, compacted=compaction)
        await self._send(trace, client)
        await self._follow(trace, client)

    async def _run_socket(self, number: int, client: Client) -> None:
        """Runs all creates of a WebSocket."""

        def new_trace(name: str, previous: ResponseTrace | None) -> ResponseTrace:
            return self._trace(number, client, name, previous=previous, stored=client.is_stored)

        await SocketClient(self._clients, client, new_trace, self._fields).run()
