"""Reading the stream of an upstream when a batch of the journal begins."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from models.config.groups import LimitSettings
from models.config.upstream import UpstreamSettings
from models.errors import UpstreamFailed
from worker.translation.upstream_events import ChatChunk
from worker.upstream.body_reader import Arrivals, Pause
from worker.upstream.client import StreamEvent, Upstream

BODY = {"model": "m", "messages": [], "stream": True}
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def event(text: str) -> bytes:
    """A chunk of the body with one event."""
    data = b'data: {"choices":[{"delta":{"content":"%b"}}]}\n\n' % text.encode()
    return b"%x\r\n%b\r\n" % (len(data), data)


class ScriptedCall:
    """A call of an upstream whose bytes the test sends."""

    def __init__(self) -> None:
        self.arrivals = Arrivals()
        self.texts: list[str] = []
        self.pause: Pause | None = None
        self._connected = asyncio.get_running_loop().create_future()

    async def serve(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connected.set_result(writer)

    async def begin(self) -> asyncio.StreamWriter:
        """The connection, on which the head is sent."""
        writer: asyncio.StreamWriter = await self._connected
        writer.write(HEAD)
        return writer

    def take(self, events: Sequence[StreamEvent]) -> Pause | None:
        self.texts += [event.content for event in events if isinstance(event, ChatChunk)]
        return self.pause

    async def until(self, *texts: str) -> None:
        """Waits until these were taken."""
        async with asyncio.timeout(10):
            while self.texts != list(texts):  # noqa: ASYNC110
                await asyncio.sleep(0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        settings = UpstreamSettings.model_validate({"base_url": url, "api_key": "secret"})
        upstream = Upstream(settings, LimitSettings(), 8, self.arrivals)
        task = asyncio.create_task(upstream.call(BODY).read(self.take))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.wait([task])
            await upstream.close()
            self._connected.result().close()
            server.close()


async def test_output_that_waits_for_a_batch_is_not_lost_when_the_connection_breaks() -> None:
    call, requested = ScriptedCall(), asyncio.Event()
    call.arrivals.wait_for_batches(requested.set)
    async with call.running() as task:
        writer = await call.begin()
        writer.write(event("a"))
        await call.until("a")
        requested.clear()
        writer.write(event("b"))
        await requested.wait()
        writer.write(b"no chunk at all")
        writer.close()
        with pytest.raises(UpstreamFailed):
            await task
    assert call.texts == ["a", "b"]


async def test_output_is_read_by_the_next_batch_and_without_one_all_the_same() -> None:
    call, requested = ScriptedCall(), asyncio.Event()
    call.arrivals.wait_for_batches(requested.set)
    async with call.running():
        writer = await call.begin()
        writer.write(event("first"))
        await call.until("first")
        requested.clear()
        writer.write(event("second"))
        await requested.wait()
        call.arrivals.read()
        assert call.texts == ["first", "second"]
        writer.write(event("third"))  # PostgreSQL is slow: no batch begins
        await call.until("first", "second", "third")


async def test_nothing_is_taken_in_a_pause_and_all_of_it_afterwards() -> None:
    call, goes_on, is_paused = ScriptedCall(), asyncio.Event(), asyncio.Event()

    async def pause() -> None:
        is_paused.set()
        await goes_on.wait()

    call.pause = pause
    async with call.running() as task:
        writer = await call.begin()
        writer.write(event("a"))
        await is_paused.wait()
        for text in ("b", "c"):
            writer.write(event(text))
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        for _ in range(100):
            await asyncio.sleep(0)
        assert call.texts == ["a"]
        goes_on.set()
        await task
    assert call.texts == ["a", "b", "c"]
