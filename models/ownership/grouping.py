"""Requests of many responses with few statements.

A statement for one response costs a round trip, a commit and the start of its plan. For fifty it
costs little more. So the requests that arrive while a statement is on its way go with the next one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Generic, TypeVar

RequestT = TypeVar("RequestT")
ResultT = TypeVar("ResultT")

_OVERLAP = 0.025
"""Seconds after which the next statement begins although the one before has no answer yet: a
connection that has failed silently must not hold all others up."""
_MAX_STATEMENTS = 4
"""Statements on their way at a time: half of the connections of a worker's pool by default."""
_GAP = 0.005
"""Seconds between the beginnings of two statements while several requests arrive in that time, as
for the journal (`worker.journal_gap`). A request that comes alone never waits for it."""
_MAX_REQUESTS = 50
"""Requests in one statement: fifty claims or endings are one or two hundred rows."""
_MAX_BYTES = 1024 * 1024
"""Bytes in one statement, or one request if it is larger."""


def _no_size(_: object) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class _WaitingRequest(Generic[RequestT, ResultT]):
    request: RequestT
    done: asyncio.Future[ResultT] = field(default_factory=asyncio.Future)


class GroupedRequests(Generic[RequestT, ResultT]):
    """Gathers requests of one kind into groups. A group begins at once if no other one is on its
    way; else it gathers until that one was answered, for at most 25 ms."""

    def __init__(
        self,
        execute: Callable[[list[RequestT]], Awaitable[Iterable[ResultT]]],
        size_of: Callable[[RequestT], int] = _no_size,
        *,
        max_requests: int = _MAX_REQUESTS,
        max_bytes: int = _MAX_BYTES,
        gap: float = _GAP,
    ) -> None:
        """`execute`: runs one statement for the group and returns a result for each request, in
        order. What it raises is raised for each request. `size_of`: bytes of a request.
        `max_requests`, `max_bytes`: of a group. `gap`: seconds between the beginnings of two groups
        while several requests arrive in that time."""
        self._execute = execute
        self._size_of = size_of
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._gap = gap
        self._waiting: list[_WaitingRequest[RequestT, ResultT]] = []
        self._statements: set[asyncio.Task[None]] = set()
        """Tasks whose statement is on its way, or that begin one."""
        self._sending: asyncio.Task[None] | None = None
        """The one of them that sends the next group; None: a new one will."""

    async def submit(self, request: RequestT) -> ResultT:
        """The result of this request. Raises what the statement of its group raises. If the caller
        is cancelled, the request is carried out nevertheless."""
        waiting: _WaitingRequest[RequestT, ResultT] = _WaitingRequest(request)
        self._waiting.append(waiting)
        self._start_sending()
        return await waiting.done

    def _start_sending(self) -> None:
        """Starts a task that sends what waits, unless there is one, or enough are busy."""
        if self._sending is None and self._waiting and len(self._statements) < _MAX_STATEMENTS:
            # A context of its own: the log lines of a group belong to no single response.
            task = self._sending = asyncio.create_task(self._send_groups(), context=Context())
            self._statements.add(task)
            task.add_done_callback(self._on_sent)

    def _on_sent(self, task: asyncio.Task[None]) -> None:
        self._statements.discard(task)
        self._hand_over(task)

    def _hand_over(self, task: asyncio.Task[None] | None) -> None:
        """Lets another task send the next group, if this one would."""
        if self._sending is task:
            self._sending = None
        self._start_sending()

    async def _send_groups(self) -> None:
        """Sends one group after the other until nothing waits, or until one takes so long that
        another task sends the next one."""
        me, loop = asyncio.current_task(), asyncio.get_running_loop()
        while self._sending is me and self._waiting:
            started_at = loop.time()
            group = self._cut_group()
            late = loop.call_later(_OVERLAP, self._hand_over, me)
            try:
                await self._execute_group(group)
            finally:
                late.cancel()
            if self._sending is me and len(group) > 1 and self._gap:
                await asyncio.sleep(max(0.0, started_at + self._gap - loop.time()))

    def _cut_group(self) -> list[_WaitingRequest[RequestT, ResultT]]:
        count, size = 0, 0
        for waiting in self._waiting[: self._max_requests]:
            size += self._size_of(waiting.request)
            if count and size > self._max_bytes:
                break
            count += 1
        group = self._waiting[:count]
        del self._waiting[:count]
        return group

    async def _execute_group(self, group: list[_WaitingRequest[RequestT, ResultT]]) -> None:
        try:
            results = await self._execute([waiting.request for waiting in group])
        except Exception as error:  # noqa: BLE001  # raised by the callers of `submit`
            for waiting in group:
                if not waiting.done.done():
                    waiting.done.set_exception(error)
            return
        for waiting, result in zip(group, results, strict=True):
            if not waiting.done.done():
                waiting.done.set_result(result)
