"""How the parts of an HTTP response are written to its connection."""

import asyncio
import logging
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from web.http.transport import LARGE_BODY, ResponseTransport, until_sent


class _Connection(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []
        self.is_closed = False
        self.unsent = 0
        self.flow = FlowControl(self)

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def abort(self) -> None:
        self.is_closed = True
        self.flow.resume_writing()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append(bytes(data))

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


def _start(method: str, *, expects_continue: bool = False) -> tuple[_Connection, Any]:
    """A response that has not begun, and its connection."""
    connection = _Connection()
    cycle = RequestResponseCycle(
        scope={"type": "http", "method": method},  # type: ignore[typeddict-item]
        transport=connection,
        flow=FlowControl(connection),
        logger=logging.getLogger("test"),
        access_logger=logging.getLogger("test"),
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=expects_continue,
        keep_alive=True,
        on_response=lambda: None,
    )
    cycle.transport = ResponseTransport(connection, cycle)
    return connection, cycle


def _head(*headers: tuple[bytes, bytes], status: int = 200) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def _body(body: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": more}


async def test_a_head_and_its_body_are_written_together() -> None:
    connection, cycle = _start("POST")
    await cycle.send(_head((b"content-length", b"4")))
    assert connection.written == []
    await cycle.send(_body(b"ab", more=True))
    await cycle.send(_body(b"cd"))
    assert connection.written == [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab", b"cd"]


async def test_an_empty_body_holds_no_head_back() -> None:
    connection, cycle = _start("POST")
    await cycle.send(_head((b"content-length", b"0")))
    await cycle.send(_body(b""))
    assert connection.written == [b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"]


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        pytest.param("GET", [], 200, id="stream"),
        pytest.param("HEAD", [(b"content-length", b"4")], 200, id="no body follows"),
        pytest.param("GET", [], 204, id="no content"),
    ],
)
async def test_a_head_without_a_body_of_known_length_is_written_at_once(
    method: str, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    connection, cycle = _start(method)
    await cycle.send(_head(*headers, status=status))
    assert len(connection.written) == 1


async def test_a_response_that_ends_early_is_written_as_far_as_it_came() -> None:
    connection, cycle = _start("POST", expects_continue=True)
    cycle.message_event.set()
    await cycle.receive()
    await cycle.send(_head((b"content-length", b"4")))
    cycle.transport.close()
    assert connection.is_closed
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n"
    assert connection.written == [b"HTTP/1.1 100 Continue\r\n\r\n", head]


async def test_a_large_body_is_not_copied_behind_its_head() -> None:
    connection, cycle = _start("GET")
    body = b"x" * (LARGE_BODY + 1)
    await cycle.send(_head((b"content-length", b"%d" % len(body))))
    await cycle.send(_body(body))
    assert [len(part) for part in connection.written][1:] == [len(body)]


async def test_a_body_is_sent_when_the_client_has_taken_it() -> None:
    class Slow(_Connection):
        """Its client takes something between two looks."""

        def get_write_buffer_size(self) -> int:
            self.unsent -= 100
            if self.unsent <= 500:
                self.flow.resume_writing()
            return self.unsent

    connection = Slow()
    connection.flow.pause_writing()
    connection.unsent = 1000
    await until_sent(connection, connection.flow, 0.001)
    assert connection.unsent <= 500
    assert not connection.is_closed


async def test_a_client_that_takes_nothing_of_a_body_is_disconnected() -> None:
    connection = _Connection()
    connection.flow.pause_writing()
    connection.unsent = 1000
    await until_sent(connection, connection.flow, 0.01)
    assert connection.is_closed


async def test_a_client_that_takes_little_of_a_large_body_is_disconnected() -> None:
    class Slow(_Connection):
        """Its client takes a byte between two looks."""

        def get_write_buffer_size(self) -> int:
            self.unsent -= 1
            return self.unsent

    connection = Slow()
    connection.flow.pause_writing()
    connection.unsent = 10_000
    await until_sent(connection, connection.flow, 0.001)
    assert connection.is_closed
    assert connection.unsent > 9_000
