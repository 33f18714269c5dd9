"""Clients that record every byte and time of what they create, read, resume, cancel and delete.

    async with RecordedClients(stack, seed=7) as clients:
        trace = await clients.create(reply("a ", "b ", gap=0.1), stream=True)   # in the background
        child = await clients.create(reply("c"), previous=trace)                # a continuation
        clients.start_reader(trace)                  # resumes elsewhere until the end
        clients.start_reader(trace, (3, 5))          # disconnects after 3 events, then after 5 more
        clients.start_poller(trace)                  # GETs until the response has ended
        clients.record_fault("killed", process.name)  # for the auditor; then kill it
        await clients.cancel(trace)
        await clients.delete(trace)
        record = await clients.finish()              # waits for all ends, then reads all again
    assert not (report := audit(record)).violations, report

Broken promises are recorded, never raised: the auditor judges them. The clients depend on the
product's answers only to know where to resume and when to stop.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from typing import Any, Self

from tests.chaos.audit.record import (
    JSON,
    ClientRequest,
    ConversationTrace,
    Fault,
    FaultKind,
    ResponseTrace,
    RunRecord,
    WorkerLifetime,
)
from tests.chaos.audit.sources import upstream_log
from tests.support import keys
from tests.support.api import TERMINAL, Api, until
from tests.support.chaos.cpu_watch import record_starvation
from tests.support.chaos.recorded_request import CONNECTION_ERRORS, send_recorded
from tests.support.chaos.recorded_socket import RecordedSocket
from tests.support.chaos.stream_recorder import StreamOptions, StreamRecorder
from tests.support.fake_upstream import Script
from tests.support.stack import Service, Stack

_runs = itertools.count(1)


class RecordedClients:
    """The clients of one run. `finish` returns the complete record."""

    def __init__(self, stack: Stack, seed: int = 0, *, end_timeout: float = 90) -> None:
        """`seed` chooses web processes. `end_timeout`: seconds for the last response to end."""
        self.record = RunRecord()
        self.stack = stack
        self._random = random.Random(seed)  # choices must be repeatable, not secret
        self._end_timeout = end_timeout
        self._run = next(_runs)
        self._numbers = itertools.count(1)
        self.other_project_key = ""
        """The key of a project that owns nothing."""
        self._streams = StreamRecorder(stack, self.pick_web)
        self._tasks: set[asyncio.Task[None]] = set()
        self._cpu_watch: asyncio.Task[None] | None = None
        self._is_closed = False

    async def __aenter__(self) -> Self:
        self.other_project_key = await asyncio.to_thread(
            keys.create, self.stack.dsn, "other project"
        )
        watch = record_starvation(lambda: self.record_fault("starved", "machine"))
        self._cpu_watch = asyncio.create_task(watch)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closed = True
        self._streams.close()
        tasks = {*self._tasks, *filter(None, [self._cpu_watch])}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- requests of clients ---

    async def create(
        self,
        *scripts: Script,
        background: bool = True,
        stream: bool = False,
        previous: ResponseTrace | None = None,
        turns: int = 1,
        disconnect_after: Sequence[int] = (),
        web: Service | None = None,
        marker: str | None = None,
        **body: Any,
    ) -> ResponseTrace:
        """POSTs a response; its n-th upstream request gets the n-th script, later ones the last.

        With `stream` a task reads the events to the end; `disconnect_after` makes it disconnect
        after so many events, again and again. Without it this returns with the answer. `turns` is
        the number of upstream requests that the scripts need; `marker` the model's name.
        """
        trace = self.new_trace(
            *scripts, marker=marker, background=background, previous=previous, turns=turns
        )
        await self.send(trace, stream=stream, disconnect_after=disconnect_after, web=web, **body)
        return trace

    def new_trace(self, *scripts: Script, marker: str | None = None, **known: Any) -> ResponseTrace:
        """The trace of a response that is not created yet, and its upstream's scripts.

        `known`: other fields of the trace.
        """
        marker = marker or f"m{self._run}-{next(self._numbers)}"
        self.stack.fake.script(*scripts, name=marker)
        create = ClientRequest("create", "", time.monotonic())
        trace = ResponseTrace(
            marker, f"This is {marker}.", known.pop("background", True), create, **known
        )
        self.record.traces.append(trace)
        return trace

    async def send(
        self,
        trace: ResponseTrace,
        *,
        stream: bool = False,
        disconnect_after: Sequence[int] = (),
        web: Service | None = None,
        **body: Any,
    ) -> None:
        """Sends the create of a trace, as `create` describes. `body`: further fields."""
        web = web or await self.pick_web()
        trace.create.web, trace.create.sent = web.name, time.monotonic()
        fields = {**request_body(trace), **body}
        if trace.kind == "compaction":
            api = self.stack.api(web)
            await send_recorded(trace.create, api, "POST", "/responses/compact", fields)
            return
        fields |= {"background": trace.background, "stream": stream}
        if stream:
            answered = asyncio.Event()
            options = StreamOptions(list(disconnect_after))
            self._start(self._streams.create(trace, web, fields, options, answered))
            await answered.wait()
        else:
            await send_recorded(trace.create, self.stack.api(web), "POST", "/responses", fields)
            trace.id = trace.create.body.get("id")

    async def pick_web(self, other_than: str | None = None) -> Service:
        """A web process that should run, another one than `other_than` if there is one.

        Waits while all of them are being replaced.
        """
        webs = await until(lambda: self.stack.webs, 120)
        others = [web for web in webs if web.name != other_than]
        return self._random.choice(others or webs)

    async def open_conversation(self, *texts: str) -> ConversationTrace:
        """Creates a conversation with a message of a user for each text."""
        items = [{"role": "user", "content": text} for text in texts]
        while True:
            web = await self.pick_web()
            request = ClientRequest("create", web.name, time.monotonic())
            await send_recorded(
                request, self.stack.api(web), "POST", "/conversations", {"items": items}
            )
            if request.status == 200:
                conversation = ConversationTrace(request.body["id"], list(texts))
                self.record.conversations.append(conversation)
                return conversation
            await asyncio.sleep(0.2)

    async def open_socket(self) -> RecordedSocket:
        """Opens a WebSocket to a web process; waits while there is none."""
        while True:
            web = await self.pick_web()
            opened = await RecordedSocket.open(self.stack.api(web), web.name)
            if opened is not None:
                return opened
            await asyncio.sleep(0.2)

    def start_reader(
        self,
        trace: ResponseTrace,
        disconnect_after: Sequence[int] = (),
        *,
        after: int = -1,
        pause: float = 0,
    ) -> None:
        """Starts a reader of a background response; it resumes elsewhere until the end.

        `disconnect_after`: as in `create`. `pause`: seconds between two reads, for a slow reader.
        """
        options = StreamOptions(list(disconnect_after), pause)
        self._start(self._streams.read(trace, after, options))

    def start_poller(self, trace: ResponseTrace, every: float = 0.3) -> None:
        """Starts a client that GETs the response every `every` seconds until it has ended."""
        self._start(self._poll(trace, every))

    async def get(self, trace: ResponseTrace, web: Service | None = None) -> ClientRequest:
        """Sends a GET."""
        return await self._request(trace, "get", "GET", "", web)

    async def cancel(self, trace: ResponseTrace, web: Service | None = None) -> ClientRequest:
        """Sends a cancel."""
        return await self._request(trace, "cancel", "POST", "/cancel", web)

    async def delete(self, trace: ResponseTrace, web: Service | None = None) -> ClientRequest:
        """Sends a delete."""
        return await self._request(trace, "delete", "DELETE", "", web)

    # --- the run's record ---

    def record_fault(self, what: FaultKind, target: str) -> Fault:
        """Records that this fault begins now; set `end` when it is undone."""
        fault = Fault(what, target, time.monotonic())
        self.record.faults.append(fault)
        return fault

    def record_worker(self, name: str) -> WorkerLifetime:
        """Records that this worker (not the quarantine) claims from now on; set `end` later."""
        lifetime = WorkerLifetime(name, time.monotonic())
        self.record.workers.append(lifetime)
        return lifetime

    async def finish(self) -> RunRecord:
        """Waits for the end of every response, reads all of them again; returns the record."""
        end = time.monotonic() + self._end_timeout
        await asyncio.gather(
            *(
                self._final_requests(trace, end)
                for trace in self.record.traces
                if trace.id is not None
            )
        )
        for conversation in self.record.conversations:
            await self._final_items(conversation, end)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(1.0, end - time.monotonic()))
        self.record.upstream = upstream_log(
            self.stack.fake, {trace.marker for trace in self.record.traces}
        )
        self.record.ended = time.monotonic()
        return self.record

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _request(
        self,
        trace: ResponseTrace,
        what: Any,
        method: str,
        path: str,
        web: Service | None,
        key: str | None = None,
    ) -> ClientRequest:
        web = web or await self.pick_web()
        request = ClientRequest(what, web.name, time.monotonic())
        trace.requests.append(request)
        api = self.stack.api(web, key=key)
        body = b"" if method == "POST" else None  # a cancel has a JSON content type and no body
        await send_recorded(request, api, method, f"/responses/{trace.id}{path}", body)
        return request

    async def _poll(self, trace: ResponseTrace, every: float) -> None:
        while not self._is_closed:
            request = await self.get(trace)
            if request.status == 404 or request.body.get("status") in TERMINAL:
                return
            await asyncio.sleep(every)

    async def _final_requests(self, trace: ResponseTrace, end: float) -> None:
        """Waits for the end, then reads it once more in every way, also from another project."""
        if not trace.stored:
            await self.get(trace)
            return
        while True:
            request = await self.get(trace)
            if request.body.get("status") in TERMINAL or (
                request.status == 404 and (trace.background or time.monotonic() > end)
            ):
                break
            if time.monotonic() > end:
                return
            await asyncio.sleep(0.2)
        await self._request(trace, "other_project", "GET", "", None, key=self.other_project_key)
        if request.status != 200:
            return
        await self._request(trace, "input_items", "GET", "/input_items?order=asc", None)
        if trace.background:
            await self._streams.read(trace, -1, StreamOptions([], until=end + 10))

    async def _final_items(self, conversation: ConversationTrace, end: float) -> None:
        """Reads all items of a conversation, and once with the key of another project."""
        while conversation.items is None and time.monotonic() < end:
            api = self.stack.api(await self.pick_web())
            try:
                conversation.items = await _items_of(api, conversation.id)
            except CONNECTION_ERRORS:
                await asyncio.sleep(0.2)
            if any(fault.what == "commits_lost" for fault in self.record.faults):
                break  # it may be gone
        web = await self.pick_web()
        conversation.other_project = ClientRequest("other_project", web.name, time.monotonic())
        await send_recorded(
            conversation.other_project,
            self.stack.api(web, key=self.other_project_key),
            "GET",
            f"/conversations/{conversation.id}/items",
        )


def request_body(trace: ResponseTrace) -> JSON:
    """The body of the create of a trace: what it continues, its input and whether it is stored."""
    message = {"role": "user", "content": trace.input_text}
    body: JSON = {
        "model": trace.marker,
        "input": [*trace.history, message] if trace.history else trace.input_text,
    }
    if trace.previous is not None:
        body["previous_response_id"] = trace.previous.id
    if trace.conversation is not None:
        body["conversation"] = trace.conversation.id
    if not trace.stored:
        body["store"] = False
    return body


async def _items_of(api: Api, conversation_id: str) -> list[JSON] | None:
    """All items of a conversation, in order; None if a page was refused."""
    items: list[JSON] = []
    after = ""
    while True:
        page = await api.call(
            "GET", f"/conversations/{conversation_id}/items?order=asc&limit=100{after}"
        )
        if page.status != 200:
            return None
        items += page.body["data"]
        if not page.body["has_more"]:
            return items
        after = f"&after={page.body['last_id']}"
