"""A client that keeps a record: it creates, reads, leaves, resumes, polls, cancels and deletes, and writes down every byte and moment.

    async with Witness(stack, seed=7) as witness:
        story = await witness.create(reply("a ", "b ", gap=0.1), stream=True)     # background unless `background=False`
        child = await witness.create(reply("c"), previous=story)                   # chained
        witness.read_on(story)                       # a reader in the background, which resumes wherever it can until the end
        witness.read_on(story, leave=(3, 5))         # one that leaves after 3 events, resumes elsewhere, leaves after 5 more, …
        witness.poll_on(story)                       # GETs until it is over
        witness.fault("killed", process.name)        # what was done, for the auditor: then do it
        await witness.cancel(story); await witness.delete(story)
        await witness.settle()                       # until everything is over; then looks, replays and asks as a stranger
    assert not (report := audit(witness.record)).violations, report

Faults of the deployment are written down, never raised: judging is the auditor's work. The witness itself decides nothing by the
product's answers, except where to resume and when to stop.
"""

import asyncio
import io
import itertools
import json
import random
import time
from collections.abc import Sequence
from typing import Any, Self

import aiohttp

from models import keys
from tests.chaos.audit.record import (
    JSON,
    ClientRequest,
    Fault,
    FaultKind,
    Reading,
    ResponseTrace,
    RunRecord,
    WorkerLifetime,
)
from tests.chaos.audit.sources import upstream_log
from tests.chaos.audit.sse import parse
from tests.support.api import TERMINAL, until
from tests.support.fake_upstream import Script
from tests.support.stack import Service, Stack

_runs = itertools.count(1)


class RecordedClients:
    """The clients of one run. Its record is complete after `settle`."""

    def __init__(self, stack: Stack, seed: int = 0, *, end_timeout: float = 90) -> None:
        """`seed` chooses web processes. `patience`: seconds `settle` gives the last response to end."""
        self.record = RunRecord()
        self._stack = stack
        self._random = random.Random(seed)  # choices must be repeatable, not secret
        self._end_timeout = end_timeout
        self._run = next(_runs)
        self._numbers = itertools.count(1)
        self._other_project_key = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def __aenter__(self) -> Self:
        self._other_project_key = await asyncio.to_thread(keys.create, self._stack.dsn, "strangers")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- what clients do ---

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
        """POST a response whose n-th upstream request is answered by the n-th script, further ones by the last.

        `stream`: its events are read in the background until the end, leaving after `leave[0]` events, and so on. Without it, returns
        when the answer is there. `turns`: how many upstream requests the scripts need. `marker`: the model's name, else a new one.
        """
        marker = marker or f"m{self._run}-{next(self._numbers)}"
        self._stack.fake.script(*scripts, name=marker)
        web = web or await self._pick_web()
        said = f"This is {marker}."
        story = ResponseTrace(
            marker,
            said,
            background,
            ClientRequest("create", web.name, time.monotonic()),
            turns=turns,
            previous=previous,
        )
        self.record.traces.append(story)
        sent: JSON = {
            "model": marker,
            "input": said,
            "background": background,
            "stream": stream,
            **body,
        }
        if previous is not None:
            sent["previous_response_id"] = previous.id
        if stream:
            answered = asyncio.Event()
            self._start(self._stream(story, web, sent, list(disconnect_after), answered))
            await answered.wait()
        else:
            await self._send(story.create, "POST", web, "/responses", sent)
            story.id = story.create.body.get("id")
        return story

    def start_reader(
        self,
        trace: ResponseTrace,
        disconnect_after: Sequence[int] = (),
        *,
        after: int = -1,
        pause: float = 0,
    ) -> None:
        """Read a background response in the background to its end, resuming elsewhere when the connection ends; as `create` says.
        `pause`: seconds between two reads, for a slow reader."""
        self._start(self._read(trace, list(disconnect_after), after, pause))

    def start_poller(self, trace: ResponseTrace, every: float = 0.3) -> None:
        """GET it in the background until it is over."""
        self._start(self._poll(trace, every))

    async def get(self, trace: ResponseTrace, web: Service | None = None) -> ClientRequest:
        """GET."""
        return await self._request(trace, "get", "GET", "", web)

    async def cancel(self, trace: ResponseTrace, web: Service | None = None) -> ClientRequest:
        """POST …/cancel."""
        return await self._request(trace, "cancel", "POST", "/cancel", web)

    async def delete(self, trace: ResponseTrace, web: Service | None = None) -> ClientRequest:
        """DELETE."""
        return await self._request(trace, "delete", "DELETE", "", web)

    def record_fault(self, what: FaultKind, target: str) -> Fault:
        """Write down that this is being done now; set `end` when it is undone."""
        fault = Fault(what, target, time.monotonic())
        self.record.faults.append(fault)
        return fault

    def record_worker(self, name: str) -> WorkerLifetime:
        """Write down that this worker (none for the quarantine) claims from now on; set `end` when it is gone."""
        life = WorkerLifetime(name, time.monotonic())
        self.record.workers.append(life)
        return life

    async def finish(self) -> RunRecord:
        """Wait until every response is over, look at all of them once more, replay them, ask as a stranger; the complete record."""
        end = time.monotonic() + self._end_timeout
        await asyncio.gather(
            *(
                self._final_requests(story, end)
                for story in self.record.traces
                if story.id is not None
            )
        )
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(1.0, end - time.monotonic()))
        self.record.upstream = upstream_log(
            self._stack.fake, {story.marker for story in self.record.traces}
        )
        self.record.ended = time.monotonic()
        return self.record

    # --- how ---

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pick_web(self, other_than: str | None = None) -> Service:
        """One of the web processes that should be there; another one if there is a choice. Waits while all of them are being replaced."""
        webs = await until(lambda: self._stack.webs, 120)
        others = [web for web in webs if web.name != other_than]
        return self._random.choice(others or webs)

    async def _send(
        self,
        request: ClientRequest,
        method: str,
        web: Service,
        path: str,
        body: JSON | None = None,
        key: str | None = None,
    ) -> None:
        headers = {
            "authorization": f"Bearer {key or self._stack.key}",
            "content-type": "application/json",
        }
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        try:
            async with self._stack.session.request(
                method, _url(web, path), data=data, headers=headers
            ) as answer:
                raw = await answer.read()
                request.answered = time.monotonic()
                request.status = answer.status
                request.retry_after = answer.headers.get("retry-after")
                request.body = json.loads(raw)
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            return  # status None says it

    async def _request(
        self,
        trace: ResponseTrace,
        what: Any,
        method: str,
        path: str,
        web: Service | None,
        key: str | None = None,
    ) -> ClientRequest:
        web = web or await self._pick_web()
        asked = ClientRequest(what, web.name, time.monotonic())
        trace.requests.append(asked)
        await self._send(asked, method, web, f"/responses/{trace.id}{path}", key=key)
        return asked

    async def _stream(
        self,
        trace: ResponseTrace,
        web: Service,
        body: JSON,
        disconnect_after: list[int],
        answered: asyncio.Event,
    ) -> None:
        reading = Reading(web.name, -1, time.monotonic())
        try:
            await self._read_stream(
                trace,
                reading,
                web,
                "POST",
                "/responses",
                body,
                disconnect_after.pop(0) if disconnect_after else None,
                0,
                answered,
            )
        finally:
            answered.set()
        if trace.id is not None and trace.background and parse(reading).terminal_event is None:
            await self._read(trace, disconnect_after, _last_number(reading), 0)

    async def _read(
        self,
        trace: ResponseTrace,
        disconnect_after: list[int],
        after: int,
        pause: float,
        end: float = float("inf"),
    ) -> None:
        web = None
        while not self._is_closed and time.monotonic() < end:
            web = await self._pick_web(None if web is None else web.name)
            reading = Reading(web.name, after, time.monotonic())
            path = f"/responses/{trace.id}?stream=true" + (
                "" if after < 0 else f"&starting_after={after}"
            )
            there = await self._read_stream(
                trace,
                reading,
                web,
                "GET",
                path,
                None,
                disconnect_after.pop(0) if disconnect_after else None,
                pause,
                None,
            )
            heard = parse(reading)
            if heard.terminal_event is not None or heard.done_count or there == 404:
                return
            after = _last_number(reading)
            if not heard.events:
                await asyncio.sleep(0.1)  # a web process that is away; not at once again

    async def _read_stream(
        self, trace: ResponseTrace, reading: Reading, web: Service, method: str, path: str, body: JSON | None, disconnect_after: int | None, pause: float,
        answered: asyncio.Event | None,
    ) -> int | None:  # fmt: skip
        """Read one SSE answer, until `leave` events are there if that is a number; its status."""
        headers = {"authorization": f"Bearer {self._stack.key}", "content-type": "application/json"}
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        try:
            async with self._stack.session.request(
                method, _url(web, path), data=data, headers=headers
            ) as answer:
                if body is not None:
                    trace.create.status, trace.create.retry_after = (
                        answer.status,
                        answer.headers.get("retry-after"),
                    )
                    trace.create.answered = time.monotonic()
                if answer.status != 200:
                    if body is not None:
                        trace.create.body = await answer.json()
                    return answer.status
                trace.readings.append(reading)
                while chunk := await answer.content.readany():
                    reading.chunks.append((time.monotonic(), chunk))
                    if trace.id is None and (events := parse(reading).events):
                        trace.id = events[0].data["response"]["id"]
                    if answered is not None and trace.id is not None:
                        answered.set()
                    if (
                        disconnect_after is not None
                        and reading.raw.count(b"\n\n") >= disconnect_after
                    ):
                        reading.end = "left"
                        return 200
                    if pause:
                        await asyncio.sleep(pause)
                reading.end = "clean"
                return 200
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            reading.end = "cut"
            return None
        except asyncio.CancelledError:
            reading.end = "open"
            raise
        finally:
            reading.closed = time.monotonic()

    async def _poll(self, trace: ResponseTrace, every: float) -> None:
        while not self._is_closed:
            look = await self.get(trace)
            if look.status == 404 or look.body.get("status") in TERMINAL:
                return
            await asyncio.sleep(every)

    async def _final_requests(self, trace: ResponseTrace, end: float) -> None:
        while True:
            look = await self.get(trace)
            if look.body.get("status") in TERMINAL or (
                look.status == 404 and (trace.background or time.monotonic() > end)
            ):
                break
            if time.monotonic() > end:
                return
            await asyncio.sleep(0.2)
        await self._request(trace, "stranger", "GET", "", None, key=self._other_project_key)
        if look.status != 200:
            return
        await self._request(trace, "input_items", "GET", "/input_items", None)
        if trace.background:
            await self._read(trace, [], -1, 0, end + 10)


def _url(web: Service, path: str) -> str:
    return f"http://127.0.0.1:{web.port}/v1{path}"


def _last_number(reading: Reading) -> int:
    events = parse(reading).events
    return events[-1].number if events else reading.after
