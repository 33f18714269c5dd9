"""What runs while something breaks: a response of every kind with a client that does not give up, and what must have become of each."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from tests.chaos.audit.auditor import audit
from tests.chaos.audit.record import ClientRequest, Fault, Reading, ResponseTrace, RunRecord
from tests.chaos.audit.sources import upstream_log
from tests.support.api import JSON, TERMINAL, Api, Stream, StreamRefused, decode, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    UpstreamRequest,
    done,
    finish,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.stack import Service, Stack

OUTPUT_TEXT = "one two three"
"""What every member has said in the end."""
CONNECTION_ERRORS = (aiohttp.ClientError, ConnectionError)
"""What a client sees of a web process that went away."""
DELTA = "response.output_text.delta"


class LoadKind(StrEnum):
    """How a response is asked for, and how it is heard."""

    STREAMED = "streamed"
    """background, read from its POST on"""
    POLLED = "polled"
    """background, by GET"""
    CHAINED = "chained"
    """background, goes on from another one, read by GET with `stream=true`"""
    FOREGROUND = "foreground"
    """streamed to the client that waits for it"""
    WAITING = "waiting"
    """told as JSON to the client that waits for it"""


BACKGROUND = (LoadKind.STREAMED, LoadKind.POLLED, LoadKind.CHAINED)
ALL = tuple(LoadKind)


@dataclass(slots=True)
class Member:
    """One response of the load, and what its client was told."""

    kind: LoadKind
    trace: ResponseTrace
    """The same, as the auditor reads it."""
    frames: list[bytes] = field(default_factory=list)
    connections: int = 0
    """How often its reader had to connect; 1 if nothing disturbed it."""
    last_seen: JSON | None = None
    """The response as its client saw it last."""

    @property
    def model(self) -> str:
        """The model it is asked of, which nobody else asks."""
        return self.trace.marker

    @property
    def response_id(self) -> str:
        """Its id, once its client knows it."""
        assert self.trace.id is not None
        return self.trace.id

    @property
    def is_background(self) -> bool:
        return self.kind in BACKGROUND

    @property
    def deltas(self) -> int:
        """How many its reader has seen."""
        return sum(
            frame.startswith(b"event: response.output_text.delta\n") for frame in self.frames
        )


class Load:
    """Responses that say "one", go on with "two" when `go_on` is called, and end with "three" after `finish`."""

    def __init__(
        self, stack: Stack, fake: FakeUpstream, faults: list[Fault], kinds: Iterable[LoadKind] = ALL
    ) -> None:
        """`faults`: what is done to the deployment, written down by whoever does it."""
        self.stack = stack
        self.fake = fake
        self._faults = faults
        self._second_word, self._third_word, self._later_third_word = (
            asyncio.Event(),
            asyncio.Event(),
            asyncio.Event(),
        )
        self._clients: list[asyncio.Task[None]] = []
        self._parent = _new_trace(fake.script(reply("before")), background=False)
        self.members = [Member(kind, self._trace_of(kind)) for kind in kinds]
        self.expects_disconnects = False
        """From now on a connection that breaks is one that its client has left."""

    def _trace_of(self, kind: LoadKind) -> ResponseTrace:
        found = _new_trace(
            self.fake.script(self._first_script(), self._later_script()),
            background=kind in BACKGROUND,
        )
        found.previous = self._parent if kind is LoadKind.CHAINED else None
        return found

    def _first_script(self) -> Script:
        return [
            text("one "),
            wait_for(self._second_word),
            text("two "),
            wait_for(self._third_word),
            text("three"),
            finish(),
            usage(),
            done(),
        ]

    def _later_script(self) -> Script:
        """What a later attempt is told: it is a moment late, and need not wait for `go_on`."""
        return [
            text("one ", "two "),
            wait_for(self._later_third_word),
            text("three"),
            finish(),
            usage(),
            done(),
        ]

    def of(self, kind: LoadKind) -> Member:
        """The member of this kind."""
        return next(member for member in self.members if member.kind is kind)

    async def begin(self, *apis: Api) -> None:
        """Start the clients, at these web processes in turn, and wait until each response has said its first word."""
        await self._create(self._parent, apis[-1], {})
        await self._get(self._parent, apis[-1])
        for number, member in enumerate(self.members):
            turn = number % len(apis)
            self._clients.append(
                asyncio.create_task(
                    self._client(member, [*apis[turn:], *apis[:turn]]), name=member.kind
                )
            )
        await self.wait_for_words(1)

    async def wait_for_words(self, words: int, kinds: Iterable[LoadKind] = ALL) -> None:
        """Wait until the readers of these have heard so many words, and the upstream was asked by all."""
        await self._unless_broken(
            lambda: all(self.fake.requests_for(member.model) for member in self.members)
        )
        readers = [
            member
            for member in self.members
            if member.kind in kinds and member.kind not in (LoadKind.POLLED, LoadKind.WAITING)
        ]
        await self._unless_broken(lambda: all(member.deltas >= words for member in readers))

    async def wait_until_upstream_closed(self, kinds: Iterable[LoadKind]) -> None:
        """Wait until the upstreams of these have been left."""
        await until(
            lambda: all(
                self.fake.requests_for(self.of(kind).model)[0].closed_by_client for kind in kinds
            ),
            20,
        )

    def release_second_word(self) -> None:
        """The upstreams say the second word."""
        self._second_word.set()

    def finish_first_attempts(self) -> None:
        """The upstreams say the rest, but only to those who asked first."""
        self._second_word.set()
        self._third_word.set()

    async def finish(self, within: float = 30) -> None:
        """The upstreams say the rest; wait until every client has its ending."""
        self.finish_first_attempts()
        self._later_third_word.set()
        async with asyncio.timeout(within):
            await asyncio.gather(*self._clients)

    async def wait_for_end(self, within: float = 30) -> None:
        """Wait until every client has its ending, whatever it is."""
        async with asyncio.timeout(within):
            await asyncio.gather(*self._clients)

    async def disconnect(self) -> None:
        """The clients go away, however far they are; for the end of a test that failed."""
        self.finish_first_attempts()
        self._later_third_word.set()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def owners(self) -> dict[LoadKind, Service]:
        """The worker process that began each member."""
        by_name = {process.name: process for process in self.stack.started}
        return {
            member.kind: by_name[_sender(self.fake.requests_for(member.model)[0])]
            for member in self.members
        }

    # --- clients ---

    async def _client(self, member: Member, apis: list[Api]) -> None:
        match member.kind:
            case LoadKind.STREAMED:
                await self._post_stream(member, apis[0])
                await self._follow(member, [*apis[1:], apis[0]])
            case LoadKind.POLLED:
                await self._create(member.trace, apis[0], {"background": True})
                await self._poll(member, apis)
            case LoadKind.CHAINED:
                await self._create(
                    member.trace,
                    apis[0],
                    {"background": True, "previous_response_id": self._parent.id},
                )
                await self._follow(member, apis)
            case LoadKind.FOREGROUND:
                await self._post_stream(member, apis[0])
            case LoadKind.WAITING:
                await self._create(member.trace, apis[0], {})
                member.last_seen = (
                    member.trace.create.body if member.trace.create.status == 200 else None
                )

    async def _create(self, trace: ResponseTrace, api: Api, more: JSON) -> None:
        """POST without a stream."""
        trace.create = ClientRequest("create", self._web(api), time.monotonic())
        await self._send(
            trace.create,
            api,
            "POST",
            "",
            {"model": trace.marker, "input": trace.input_text, **more},
        )
        trace.id = trace.create.body.get("id")

    async def _send(
        self, request: ClientRequest, api: Api, method: str, path: str, body: JSON | None = None
    ) -> None:
        try:
            answer = await api.call(method, f"/responses{path}", body)
        except CONNECTION_ERRORS:
            return  # its status says so
        request.answered, request.status, request.body = (
            time.monotonic(),
            answer.status,
            answer.body,
        )
        request.retry_after = answer.headers.get("retry-after")

    async def _get(self, trace: ResponseTrace, api: Api) -> JSON | None:
        """GET: the response, or None when it could not be had now."""
        asked = ClientRequest("get", self._web(api), time.monotonic())
        trace.requests.append(asked)
        await self._send(asked, api, "GET", f"/{trace.id}")
        assert asked.status in (200, 503, None), asked
        return asked.body if asked.status == 200 else None

    async def _post_stream(self, member: Member, api: Api) -> None:
        """POST with a stream, read for as long as the connection lasts."""
        story = member.trace
        story.create = ClientRequest("create", self._web(api), time.monotonic())
        async with (
            self._reading(member, api, -1) as reading,
            api.post_stream(member.model, background=story.background) as stream,
        ):
            story.create.answered, story.create.status = time.monotonic(), 200
            await self._read(member, reading, stream)

    async def _follow(self, member: Member, apis: list[Api]) -> None:
        """Read by number until the end has come, from one web process or another."""
        for api in itertools.cycle(apis):
            if _has_ended(member):
                return
            number = decode(member.frames[-1])["sequence_number"] if member.frames else -1
            try:
                async with (
                    self._reading(member, api, number) as reading,
                    api.follow(member.response_id, number if number >= 0 else None) as stream,
                ):
                    await self._read(member, reading, stream)
            except StreamRefused as refused:
                if refused.status != 503:
                    raise
            await asyncio.sleep(0.1)

    @asynccontextmanager
    async def _reading(self, member: Member, api: Api, after: int) -> AsyncIterator[Reading]:
        """Write down how a stream ended, whatever ends it."""
        reading = Reading(self._web(api), after, time.monotonic())
        try:
            yield reading
            reading.end = "clean"
        except CONNECTION_ERRORS:
            reading.end = "left" if self.expects_disconnects else "cut"
        finally:
            reading.closed = time.monotonic()
            if reading.chunks:
                member.trace.readings.append(reading)

    async def _read(self, member: Member, reading: Reading, stream: Stream) -> None:
        member.connections += 1
        reading.chunks = stream.reads
        while await stream.next() is not None:
            member.frames.append(stream.frames[-1])
            member.trace.id = member.trace.id or stream.response_id
        if _has_ended(member):
            member.last_seen = decode(member.frames[-1])["response"]

    async def _poll(self, member: Member, apis: list[Api]) -> None:
        for api in itertools.cycle(apis):
            if member.last_seen is not None and member.last_seen["status"] in TERMINAL:
                return
            await asyncio.sleep(0.1)
            member.last_seen = await self._get(member.trace, api) or member.last_seen

    def _web(self, api: Api) -> str:
        """The name of the process behind; the last one, if there were several on its port."""
        port = urlsplit(api.base_url).port
        return next(
            (process.name for process in reversed(self.stack.started) if process.port == port),
            "elsewhere",
        )

    async def _unless_broken(self, condition: Any) -> None:
        """`until`, except that a client that broke is told of at once."""

        def holds() -> bool:
            for client in self._clients:
                if client.done():
                    client.result()
            return bool(condition())

        await until(holds, 20)

    # --- judgement ---

    async def assert_outcomes(
        self,
        *,
        attempts: dict[LoadKind, int] | int = 1,
        web: int = 0,
        cancelled: Iterable[LoadKind] = (),
        handed_over: Iterable[LoadKind] = (),
    ) -> None:
        """Each has ended as it should have, and everybody was told the same.

        `attempts`: how often each was begun; each time but the first a worker had died, except where a response was `handed_over`.
        `cancelled`: foreground members whose web process went away. `web`: one that serves."""
        api = self.stack.api(web)
        for member in self.members:
            expected = attempts if isinstance(attempts, int) else attempts.get(member.kind, 1)
            asked = len(self.fake.requests_for(member.model))
            assert asked == expected, (
                f"{member.kind}: the upstream was asked {asked} times, not {expected}; {member.last_seen}"
            )
            question = (
                "SELECT status || ' ' || attempt || ' ' || deaths FROM responses WHERE model = %s"
            )
            status = "cancelled" if member.kind in cancelled else "completed"
            deaths = 0 if member.kind in handed_over else expected - 1
            row = await self.stack.value(question, member.model)
            assert row == f"{status} {expected} {deaths}", f"{member.kind}: {row}"
            if member.kind not in cancelled:
                assert member.last_seen is not None, f"{member.kind}: {member.trace.create}"
                assert (member.last_seen["status"], member.last_seen["output_text"]) == (
                    "completed",
                    OUTPUT_TEXT,
                ), member.last_seen
        await self.audit(api)

    async def audit(self, api: Api) -> None:
        """Look at everything once more, and let the auditor read what clients and upstream have seen."""
        for member in self.members:
            if member.trace.id is not None:
                await self._compare_stored(member, api)
        stories = [self._parent, *(member.trace for member in self.members)]
        upstream = upstream_log(self.fake, {story.marker for story in stories})
        report = audit(RunRecord(stories, upstream, faults=self._faults, ended=time.monotonic()))
        assert not report.violations, report

    async def _compare_stored(self, member: Member, api: Api) -> None:
        stored = await self._get(member.trace, api)
        assert member.last_seen is None or stored == member.last_seen
        if not member.is_background:
            return
        async with (
            self._reading(member, api, -1) as reading,
            api.follow(member.response_id) as stream,
        ):
            reading.chunks = stream.reads
            await stream.to_end()
        assert_one_stream(stream.frames)
        assert not member.frames or member.frames == stream.frames


def _new_trace(model: str, *, background: bool) -> ResponseTrace:
    return ResponseTrace(model, "Hello.", background, ClientRequest("create", "", 0.0))


def _sender(request: UpstreamRequest) -> str:
    """The process that sent it: a stack that is `signed` tells."""
    return request.headers["authorization"].partition("/")[2]


def _has_ended(member: Member) -> bool:
    kinds = (b"response.completed", b"response.incomplete", b"response.failed")
    return (
        bool(member.frames)
        and member.frames[-1].partition(b"\n")[0].removeprefix(b"event: ") in kinds
    )
