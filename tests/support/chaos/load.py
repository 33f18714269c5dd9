"""Responses of every kind that run while something breaks, and checks of how each of them ended."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from tests.chaos.audit.auditor import audit
from tests.chaos.audit.record import ClientRequest, Fault, ResponseTrace, RunRecord
from tests.chaos.audit.sources import upstream_log
from tests.support.api import Api, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.chaos.load_client import (
    ALL,
    BACKGROUND,
    LoadClient,
    LoadKind,
    Member,
    create_trace,
    get_trace,
)
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
"""The final output of every member."""


class ThreeWords:
    """Scripts of an upstream that sends three words; the second and third wait for a release."""

    def __init__(self) -> None:
        self._second, self._third, self._later_third = [asyncio.Event() for _ in range(3)]

    def first_attempt(self) -> Script:
        """The script of a first attempt: it waits for each word's release."""
        return [
            text("one "),
            wait_for(self._second),
            text("two "),
            wait_for(self._third),
            text("three"),
            finish(),
            usage(),
            done(),
        ]

    def later_attempts(self) -> Script:
        """The script of later attempts: the second word needs no release."""
        end = [text("three"), finish(), usage(), done()]
        return [text("one ", "two "), wait_for(self._later_third), *end]

    def release_second(self) -> None:
        """First attempts get the second word."""
        self._second.set()

    def release_first_attempts(self) -> None:
        """First attempts get all words."""
        self._second.set()
        self._third.set()

    def release_all(self) -> None:
        """All attempts get all words."""
        self.release_first_attempts()
        self._later_third.set()


class Load:
    """A response of each kind with its client.

    Each gets "one", then "two" after `release_second_word`, and "three" after `finish`.
    """

    def __init__(
        self, stack: Stack, fake: FakeUpstream, faults: list[Fault], kinds: Iterable[LoadKind] = ALL
    ) -> None:
        """`faults`: the faults of the deployment, recorded by the test that causes them."""
        self.stack = stack
        self.fake = fake
        self._faults = faults
        self._words = ThreeWords()
        self._tasks: list[asyncio.Task[None]] = []
        self._parent = _new_trace(fake.script(reply("before")), background=False)
        self.members = [Member(kind, self._trace_of(kind)) for kind in kinds]
        self.expects_disconnects = False
        """If true, the test itself breaks the clients' connections."""

    def _trace_of(self, kind: LoadKind) -> ResponseTrace:
        scripts = self._words.first_attempt(), self._words.later_attempts()
        trace = _new_trace(self.fake.script(*scripts), background=kind in BACKGROUND)
        trace.previous = self._parent if kind is LoadKind.CHAINED else None
        return trace

    def of(self, kind: LoadKind) -> Member:
        """Returns the member of this kind."""
        return next(member for member in self.members if member.kind is kind)

    async def begin(self, *apis: Api) -> None:
        """Starts the clients at these web processes in turn; waits for each first word."""
        await create_trace(self.stack, self._parent, apis[-1], {})
        await get_trace(self.stack, self._parent, apis[-1])
        for number, member in enumerate(self.members):
            turn = number % len(apis)
            run = self._client(member).run([*apis[turn:], *apis[:turn]], self._parent.id)
            self._tasks.append(asyncio.create_task(run, name=member.kind))
        await self.wait_for_words(1)

    async def wait_for_words(self, words: int, kinds: Iterable[LoadKind] = ALL) -> None:
        """Waits until the upstream has all requests and readers of these kinds have the words."""
        await self._until(
            lambda: all(self.fake.requests_for(member.model) for member in self.members)
        )
        readers = [
            member
            for member in self.members
            if member.kind in kinds and member.kind not in (LoadKind.POLLED, LoadKind.WAITING)
        ]
        await self._until(lambda: all(member.deltas >= words for member in readers))

    async def wait_until_upstream_closed(self, kinds: Iterable[LoadKind]) -> None:
        """Waits until the upstream connections of these members were closed."""
        await until(
            lambda: all(
                self.fake.requests_for(self.of(kind).model)[0].closed_by_client for kind in kinds
            ),
            20,
        )

    def release_second_word(self) -> None:
        """Lets the upstream send the second word."""
        self._words.release_second()

    def finish_first_attempts(self) -> None:
        """Lets the upstream finish, for first attempts only."""
        self._words.release_first_attempts()

    async def finish(self, within: float = 30) -> None:
        """Lets the upstream finish; waits until every client has its ending."""
        self._words.release_all()
        await self.wait_for_end(within)

    async def wait_for_end(self, within: float = 30) -> None:
        """Waits until every client has its ending, whatever it is."""
        async with asyncio.timeout(within):
            await asyncio.gather(*self._tasks)

    async def disconnect(self) -> None:
        """Ends the clients wherever they are, after a cell that failed."""
        self._words.release_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def owners(self) -> dict[LoadKind, Service]:
        """The worker process that started each member."""
        by_name = {process.name: process for process in self.stack.started}
        return {
            member.kind: by_name[_sender(self.fake.requests_for(member.model)[0])]
            for member in self.members
        }

    def _client(self, member: Member) -> LoadClient:
        return LoadClient(self.stack, member, expects_disconnects=lambda: self.expects_disconnects)

    async def _until(self, condition: Any) -> None:
        """`until`, except that the exception of a client is raised at once."""

        def is_met() -> bool:
            for task in self._tasks:
                if task.done():
                    task.result()
            return bool(condition())

        await until(is_met, 20)

    # --- checks ---

    async def assert_outcomes(
        self,
        *,
        attempts: dict[LoadKind, int] | int = 1,
        web: int = 0,
        cancelled: Iterable[LoadKind] = (),
        handed_over: Iterable[LoadKind] = (),
    ) -> None:
        """Checks that each member ended as it should, and that all clients got the same.

        `attempts`: the number of each member's attempts; each but the first follows a death, or a
        release for members in `handed_over`. `cancelled`: foreground members whose web process
        stopped. `web`: the number of a web process that serves.
        """
        for member in self.members:
            expected = attempts if isinstance(attempts, int) else attempts.get(member.kind, 1)
            calls = len(self.fake.requests_for(member.model))
            assert calls == expected, (
                f"{member.kind}: {calls} calls of the upstream, not {expected}; {member.last_seen}"
            )
            crashes = 0 if member.kind in handed_over else expected - 1
            status = "cancelled" if member.kind in cancelled else "completed"
            await self._assert_row(member, f"{status} {expected} {crashes}")
            if member.kind not in cancelled:
                assert member.last_seen is not None, f"{member.kind}: {member.trace.create}"
                assert (member.last_seen["status"], member.last_seen["output_text"]) == (
                    "completed",
                    OUTPUT_TEXT,
                ), member.last_seen
        await self.audit(self.stack.api(web))

    async def _assert_row(self, member: Member, expected: str) -> None:
        """`expected`: status, attempts and crashes."""
        question = (
            "SELECT status || ' ' || attempt || ' ' || crashes FROM responses WHERE model = %s"
        )
        row = await self.stack.value(question, member.model)
        assert row == expected, f"{member.kind}: {row}"

    async def audit(self, api: Api) -> None:
        """Reads all responses once more; lets the auditor check what clients and upstream saw."""
        for member in self.members:
            if member.trace.id is not None:
                await self._compare_stored(member, api)
        traces = [self._parent, *(member.trace for member in self.members)]
        upstream = upstream_log(self.fake, {trace.marker for trace in traces})
        report = audit(RunRecord(traces, upstream, faults=self._faults, ended=time.monotonic()))
        assert not report.violations, report

    async def _compare_stored(self, member: Member, api: Api) -> None:
        client = self._client(member)
        stored = await client.get(api)
        assert member.last_seen is None or stored == member.last_seen
        if not member.is_background:
            return
        async with client.reading(api, -1) as reading, api.follow(member.response_id) as stream:
            reading.chunks = stream.reads
            await stream.to_end()
        assert_one_stream(stream.frames)
        assert not member.frames or member.frames == stream.frames


def _new_trace(model: str, *, background: bool) -> ResponseTrace:
    return ResponseTrace(model, "Hello.", background, ClientRequest("create", "", 0.0))


def _sender(request: UpstreamRequest) -> str:
    """The process that sent the request; its key names it in a stack that is `signed`."""
    return request.headers["authorization"].partition("/")[2]
