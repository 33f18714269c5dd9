"""What a request has is freed when it ends, and not by the garbage collector: it had collected for
seconds in a process that many requests had left."""

import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from models.config.web import WebSettings
from tests.support.api import until
from web.http.clients import Connections
from web.http.protocol import HttpProtocol
from web.http.request_record import RequestRecord
from web.http.transport import ResponseTransport


class _Application:
    """Answers each request with its body."""

    def __init__(self) -> None:
        self.connections = Connections(WebSettings(), lambda _error, _request: None)
        self.released = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record = RequestRecord(scope, receive, send, lambda _status: None)
        record.at_end(lambda: record.note_error_code("ended"))
        record.at_end(self._release)
        try:
            body = (await record.receive())["body"]
            headers = [(b"content-length", b"%d" % len(body))]
            await record.send({"type": "http.response.start", "status": 200, "headers": headers})
            await record.send({"type": "http.response.body", "body": body})
        finally:
            record.end()

    def _release(self) -> None:
        self.released += 1


@asynccontextmanager
async def _served(application: _Application) -> AsyncIterator[str]:
    config = uvicorn.Config(
        application,
        http=HttpProtocol,
        ws="none",
        lifespan="off",
        port=0,
        log_config=None,
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}/v1/models"
    finally:
        await server.shutdown()


@pytest.fixture
def _uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _left(*kinds: type) -> list[object]:
    return [one for one in gc.get_objects() if type(one) in kinds]


def _left_of_connections() -> list[object]:
    """Other tests' servers in this process, such as those of MCP, have no `ResponseTransport`."""
    cycles = [
        one
        for one in gc.get_objects()
        if type(one) is RequestResponseCycle and isinstance(one.transport, ResponseTransport)
    ]
    return [*cycles, *_left(ResponseTransport)]


@pytest.mark.usefixtures("_uncollected")
async def test_a_request_and_its_connection_are_freed_when_they_end() -> None:
    application = _Application()
    async with _served(application) as url:
        async with aiohttp.ClientSession() as session:
            for number in range(5):
                async with session.post(url, data=b"x" * 100) as answer:
                    assert await answer.read() == b"x" * 100
                assert application.released == number + 1
            assert len(_left(RequestRecord)) == 0
            # The connection knows its last one.
            assert len(_left_of_connections()) == 2
        assert await until(lambda: not application.connections._open)
        assert _left_of_connections() == []
        assert _left(HttpProtocol) == []
