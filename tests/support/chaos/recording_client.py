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
from tests.chaos.audit.record import JSON, Asked, Fault, Lifetime, Reading, Record, Story, Trouble
from tests.chaos.audit.sources import upstream_log
from tests.chaos.audit.sse import parse
from tests.support.api import until
from tests.support.fake_upstream import Script
from tests.support.stack import Service, Stack

TERMINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})
_runs = itertools.count(1)


class Witness:
    """The clients of one run. Its record is complete after `settle`."""

    def __init__(self, stack: Stack, seed: int = 0, *, patience: float = 90) -> None:
        """`seed` chooses web processes. `patience`: seconds `settle` gives the last response to end."""
        self.record = Record()
        self._stack = stack
        self._random = random.Random(seed)  # choices must be repeatable, not secret
        self._patience = patience
        self._run = next(_runs)
        self._numbers = itertools.count(1)
        self._stranger = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._over = False

    async def __aenter__(self) -> Self:
        self._stranger = await asyncio.to_thread(keys.create, self._stack.dsn, "strangers")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- what clients do ---

    async def create(
        self,
        *scripts: Script,
        background: bool = True,
        stream: bool = False,
        previous: Story | None = None,
        turns: int = 1,
        leave: Sequence[int] = (),
        web: Service | None = None,
        marker: str | None = None,
        **body: Any,
    ) -> Story:
        """POST a response whose n-th upstream request is answered by the n-th script, further ones by the last.

        `stream`: its events are read in the background until the end, leaving after `leave[0]` events, and so on. Without it, returns
        when the answer is there. `turns`: how many upstream requests the scripts need. `marker`: the model's name, else a new one.
        """
        marker = marker or f"m{self._run}-{next(self._numbers)}"
        self._stack.fake.script(*scripts, name=marker)
        web = web or await self._a_web()
        said = f"This is {marker}."
        story = Story(
            marker,
            said,
            background,
            Asked("create", web.name, time.monotonic()),
            turns=turns,
            previous=previous,
        )
        self.record.stories.append(story)
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
            self._start(self._stream(story, web, sent, list(leave), answered))
            await answered.wait()
        else:
            await self._ask(story.create, "POST", web, "/responses", sent)
            story.id = story.create.body.get("id")
        return story

    def read_on(
        self, story: Story, leave: Sequence[int] = (), *, after: int = -1, pause: float = 0
    ) -> None:
        """Read a background response in the background to its end, resuming elsewhere when the connection ends; as `create` says.
        `pause`: seconds between two reads, for a slow reader."""
        self._start(self._read(story, list(leave), after, pause))

    def poll_on(self, story: Story, every: float = 0.3) -> None:
        """GET it in the background until it is over."""
        self._start(self._poll(story, every))

    async def look(self, story: Story, web: Service | None = None) -> Asked:
        """GET."""
        return await self._about(story, "get", "GET", "", web)

    async def cancel(self, story: Story, web: Service | None = None) -> Asked:
        """POST …/cancel."""
        return await self._about(story, "cancel", "POST", "/cancel", web)

    async def delete(self, story: Story, web: Service | None = None) -> Asked:
        """DELETE."""
        return await self._about(story, "delete", "DELETE", "", web)

    def fault(self, what: Trouble, target: str) -> Fault:
        """Write down that this is being done now; set `end` when it is undone."""
        fault = Fault(what, target, time.monotonic())
        self.record.faults.append(fault)
        return fault

    def worker(self, name: str) -> Lifetime:
        """Write down that this worker (none for the quarantine) claims from now on; set `end` when it is gone."""
        life = Lifetime(name, time.monotonic())
        self.record.workers.append(life)
        return life

    async def settle(self) -> Record:
        """Wait until every response is over, look at all of them once more, replay them, ask as a stranger; the complete record."""
        end = time.monotonic() + self._patience
        await asyncio.gather(
            *(self._last_look(story, end) for story in self.record.stories if story.id is not None)
        )
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(1.0, end - time.monotonic()))
        self.record.upstream = upstream_log(
            self._stack.fake, {story.marker for story in self.record.stories}
        )
        self.record.ended = time.monotonic()
        return self.record

    # --- how ---

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _a_web(self, other_than: str | None = None) -> Service:
        """One of the web processes that should be there; another one if there is a choice. Waits while all of them are being replaced."""
        webs = await until(lambda: self._stack.webs, 120)
        others = [web for web in webs if web.name != other_than]
        return self._random.choice(others or webs)

    async def _ask(
        self,
        asked: Asked,
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
                asked.answered = time.monotonic()
                asked.status = answer.status
                asked.retry_after = answer.headers.get("retry-after")
                asked.body = json.loads(raw)
        except (aiohttp.ClientError, TimeoutError, ConnectionError):
            return  # status None says it

    async def _about(
        self,
        story: Story,
        what: Any,
        method: str,
        path: str,
        web: Service | None,
        key: str | None = None,
    ) -> Asked:
        web = web or await self._a_web()
        asked = Asked(what, web.name, time.monotonic())
        story.asked.append(asked)
        await self._ask(asked, method, web, f"/responses/{story.id}{path}", key=key)
        return asked

    async def _stream(
        self, story: Story, web: Service, body: JSON, leave: list[int], answered: asyncio.Event
    ) -> None:
        reading = Reading(web.name, -1, time.monotonic())
        try:
            await self._pull(
                story,
                reading,
                web,
                "POST",
                "/responses",
                body,
                leave.pop(0) if leave else None,
                0,
                answered,
            )
        finally:
            answered.set()
        if story.id is not None and story.background and parse(reading).ending is None:
            await self._read(story, leave, _last(reading), 0)

    async def _read(
        self, story: Story, leave: list[int], after: int, pause: float, end: float = float("inf")
    ) -> None:
        web = None
        while not self._over and time.monotonic() < end:
            web = await self._a_web(None if web is None else web.name)
            reading = Reading(web.name, after, time.monotonic())
            path = f"/responses/{story.id}?stream=true" + (
                "" if after < 0 else f"&starting_after={after}"
            )
            there = await self._pull(
                story, reading, web, "GET", path, None, leave.pop(0) if leave else None, pause, None
            )
            heard = parse(reading)
            if heard.ending is not None or heard.done or there == 404:
                return
            after = _last(reading)
            if not heard.events:
                await asyncio.sleep(0.1)  # a web process that is away; not at once again

    async def _pull(
        self, story: Story, reading: Reading, web: Service, method: str, path: str, body: JSON | None, leave: int | None, pause: float,
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
                    story.create.status, story.create.retry_after = (
                        answer.status,
                        answer.headers.get("retry-after"),
                    )
                    story.create.answered = time.monotonic()
                if answer.status != 200:
                    if body is not None:
                        story.create.body = await answer.json()
                    return answer.status
                story.readings.append(reading)
                while chunk := await answer.content.readany():
                    reading.chunks.append((time.monotonic(), chunk))
                    if story.id is None and (events := parse(reading).events):
                        story.id = events[0].data["response"]["id"]
                    if answered is not None and story.id is not None:
                        answered.set()
                    if leave is not None and reading.raw.count(b"\n\n") >= leave:
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

    async def _poll(self, story: Story, every: float) -> None:
        while not self._over:
            look = await self.look(story)
            if look.status == 404 or look.body.get("status") in TERMINAL:
                return
            await asyncio.sleep(every)

    async def _last_look(self, story: Story, end: float) -> None:
        while True:
            look = await self.look(story)
            if look.body.get("status") in TERMINAL or (
                look.status == 404 and (story.background or time.monotonic() > end)
            ):
                break
            if time.monotonic() > end:
                return
            await asyncio.sleep(0.2)
        await self._about(story, "stranger", "GET", "", None, key=self._stranger)
        if look.status != 200:
            return
        await self._about(story, "input_items", "GET", "/input_items", None)
        if story.background:
            await self._read(story, [], -1, 0, end + 10)


def _url(web: Service, path: str) -> str:
    return f"http://127.0.0.1:{web.port}/v1{path}"


def _last(reading: Reading) -> int:
    events = parse(reading).events
    return events[-1].number if events else reading.after
