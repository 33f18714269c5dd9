"""What clients of a web process may send and keep open at a time, in all and of each project."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from models.ids import parse_response_id, response_id
from tests.support import keys
from tests.support.abuse import WEB_LIMIT
from tests.support.api import Api, StreamRefused, until
from tests.support.fake_upstream import FakeUpstream, done, finish, text, wait_for
from tests.support.memory_limit import MemoryLimit, WatchedProcess
from tests.support.stack import Databases, Stack, SuiteSettings, stack
from tests.support.websocket_client import socket

MIB = 1024 * 1024
_MASK = b"\0\0\0\0"


@pytest.fixture(scope="module")
async def web_alone(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """One web process that reads 8 MiB at a time, 6 of them of one project; and no worker."""
    settings = {
        "BACKBURNER_WEB__BODIES": "8MiB",
        "BACKBURNER_WEB__BODIES_PER_PROJECT": "6MiB",
        "BACKBURNER_WEB__BODIES_WAIT": "0.2",
        "BACKBURNER_WEB__SOCKETS": "12",
        "BACKBURNER_WEB__SOCKETS_PER_PROJECT": "9",
        "BACKBURNER_WEB__STREAMS": "4",
        "BACKBURNER_WEB__STREAMS_PER_PROJECT": "3",
        "BACKBURNER_WEB__UPLOADS": "3",
        "BACKBURNER_WEB__UPLOADS_PER_PROJECT": "2",
        "BACKBURNER_WEB__PING": "0.1",
    }
    async with stack(
        tmp_path_factory.mktemp("requests"),
        database_server,
        suite_settings,
        fake,
        workers=0,
        settings=settings,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def neighbour(web_alone: Stack) -> Api:
    """A client of another project."""
    return web_alone.api(key=keys.create(web_alone.dsn, "neighbour"))


def _memory(running: Stack) -> int:
    resident: int = psutil.Process(running.webs[0].pid).memory_info().rss
    return resident


@contextlib.asynccontextmanager
async def _half_a_body(running: Stack, key: str, size: int) -> AsyncIterator[asyncio.StreamReader]:
    """A create whose body of so many bytes never ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.webs[0].port)
    writer.write(
        "POST /v1/responses HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"authorization: Bearer {key}\r\ncontent-length: {size}\r\n\r\n".encode()
    )
    sending = asyncio.create_task(_send(writer, b'{"input": "' + b"x" * (size - 20)))
    try:
        yield reader
    finally:
        sending.cancel()
        await asyncio.wait([sending])
        await _abort(writer)


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    # The server may close the connection at any time.
    with contextlib.suppress(ConnectionError):
        for start in range(0, len(data), MIB):
            writer.write(data[start : start + MIB])
            await writer.drain()


async def _abort(writer: asyncio.StreamWriter) -> None:
    """Closes the connection without what is unsent."""
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def _body_bytes(running: Stack) -> float:
    async with running.session.get(f"http://127.0.0.1:{running.webs[0].port}/metrics") as answer:
        lines = (await answer.text()).splitlines()
    return next(
        float(line.split()[1]) for line in lines if line.startswith("backburner_body_bytes ")
    )


@contextlib.asynccontextmanager
async def _unread(running: Stack, path: str) -> AsyncIterator[None]:
    """A GET whose answer has begun, and is not read any further."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.webs[0].port, limit=1024)
    writer.write(
        f"GET /v1{path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {running.key}\r\n\r\n".encode()
    )
    try:
        assert b" 200 " in await reader.readline()
        yield
    finally:
        await _abort(writer)


async def _error(reader: asyncio.StreamReader) -> tuple[int, str]:
    head = await reader.readuntil(b"\r\n\r\n")
    assert b"retry-after: " in head.lower()
    return int(head.split()[1]), json.loads(await reader.readuntil(b"}}"))["error"]["code"]


def _large_create(size: int) -> dict[str, Any]:
    return {"model": "m", "input": "x" * size, "background": True}


async def test_bodies_that_arrive_are_bounded_together_and_small_ones_pass(
    web_alone: Stack, neighbour: Api
) -> None:
    api, before = web_alone.api(), _memory(web_alone)
    async with contextlib.AsyncExitStack() as bodies:
        for _ in range(2):
            await bodies.enter_async_context(_half_a_body(web_alone, api.key, 3 * MIB))
        await until(lambda: _holds(web_alone, 6 * MIB))
        others = [
            await bodies.enter_async_context(_half_a_body(web_alone, api.key, 60 * MIB))
            for _ in range(4)
        ]
        assert {await _error(other) for other in others} == {(429, "rate_limit_exceeded")}
        assert (await api.call("POST", "/responses", _large_create(10))).status == 200
        assert (await neighbour.call("POST", "/responses", _large_create(MIB))).status == 200
        refused = await neighbour.call("POST", "/responses", _large_create(3 * MIB))
        assert (refused.status, refused.error["code"]) == (503, "server_error")
        assert refused.headers["retry-after"]
        assert _memory(web_alone) - before < 60 * MIB
    await until(lambda: _holds(web_alone, 0))
    # Alone, a body may be as large as the limit for bodies allows.
    await bodies.aclose()
    assert (await api.call("POST", "/responses", _large_create(3 * MIB))).status == 200
    assert await _holds(web_alone, 0)


async def _holds(running: Stack, expected: int) -> bool:
    return await _body_bytes(running) == expected


async def test_a_body_of_unknown_size_is_counted_as_it_arrives(
    web_alone: Stack, neighbour: Api
) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield b'{"model": "m", "background": true, "input": "'
        for _ in range(30):
            yield b"x" * 100_000
        yield b'"}'

    async def create() -> int:
        async with web_alone.session.post(
            f"{neighbour.base_url}/responses",
            data=pieces(),
            headers={
                "authorization": f"Bearer {neighbour.key}",
                "content-type": "application/json",
            },
        ) as answer:
            return answer.status

    assert await create() == 200
    async with _half_a_body(web_alone, web_alone.key, 6 * MIB):
        await until(lambda: _holds(web_alone, 6 * MIB))
        assert await create() == 503
    await until(lambda: _holds(web_alone, 0))


async def test_an_item_that_is_larger_than_a_page_counts_until_it_is_sent(
    web_alone: Stack, neighbour: Api
) -> None:
    api = web_alone.api()
    url = "data:image/png;base64," + "QUJD" * (9 * MIB // 4)
    item = {"role": "user", "content": [{"type": "input_image", "image_url": url}]}
    created = await api.call("POST", "/conversations", {"items": [item]})
    assert created.status == 200, created.raw
    page = f"/conversations/{created.body['id']}/items"
    listed = await api.call("GET", page)
    assert listed.body["data"][0]["content"][0]["image_url"] == url
    one = f"{page}/{listed.body['data'][0]['id']}"
    async with _half_a_body(web_alone, neighbour.key, 3 * MIB):
        await until(lambda: _holds(web_alone, 3 * MIB))
        for path in (page, one):
            refused = await api.call("GET", path)
            assert (refused.status, refused.error["code"]) == (503, "server_error")
        assert (await api.call("DELETE", one)).status == 200, "it is deleted without being read"
    await until(lambda: _holds(web_alone, 0))
    assert (await api.call("DELETE", one)).status == 404


async def test_the_answer_of_a_foreground_request_waits_for_memory(
    web_alone: Stack, neighbour: Api, fake: FakeUpstream
) -> None:
    worker = await web_alone.start_worker()
    may_end = asyncio.Event()
    model = fake.script([wait_for(may_end), text("x" * 2 * MIB), finish(), done()])
    body = {"model": model, "input": "Hello.", "metadata": {"of": "waiting"}}
    answer = asyncio.create_task(neighbour.call("POST", "/responses", body))
    async with _half_a_body(web_alone, web_alone.key, 6 * MIB):
        await until(lambda: _holds(web_alone, 6 * MIB))
        may_end.set()
        has_ended = "status = 'completed' AND strpos(parameters::text, 'waiting') > 0"
        find = f"SELECT id FROM responses WHERE {has_ended}"
        await until(lambda: web_alone.value(f"SELECT EXISTS ({find})"))
        response = response_id(await web_alone.value(find))
        refused = await neighbour.call("GET", f"/responses/{response}")
        assert refused.status == 503, "it has waited for `web.bodies_wait`"
        assert not answer.done()
    assert (await answer).body["id"] == response
    worker.kill()
    web_alone.forget(worker)


# --- what a body costs as objects ---


def _many_objects(size: int) -> bytes:
    """A create of so many bytes at most, of which a process makes nearly forty times as many: an
    object with one member is the largest value of its length."""
    start, end = b'{"model": "m", "background": true, "input": [', b"0]}"
    nested = b'{"":' * 180 + b"0" + b"}" * 180 + b","
    return start + nested * ((size - len(start) - len(end)) // len(nested)) + end


async def _status(api: Api, body: bytes) -> int:
    return (await api.call("POST", "/responses", body)).status


@pytest.mark.long
async def test_bodies_that_become_large_objects_do_not_fill_the_container(
    tmp_path: Path, database_server: Databases, suite_settings: SuiteSettings, fake: FakeUpstream
) -> None:
    body, memory = _many_objects(1_900_000), MemoryLimit()
    settings = {"BACKBURNER_LIMITS__VALUES": "2000000"}
    async with stack(
        tmp_path, database_server, suite_settings, fake, workers=0, settings=settings
    ) as running:
        watched = memory.watch(WatchedProcess("web", running.webs[0].pid, WEB_LIMIT))
        memory.start()
        try:
            statuses = await asyncio.gather(*(_status(running.api(), body) for _ in range(24)))
        finally:
            memory.stop()
    assert watched.killed_at is None
    assert 400 in statuses
    assert set(statuses) <= {400, 429}


async def test_a_body_counts_with_the_objects_that_are_made_of_it(
    web_alone: Stack, neighbour: Api
) -> None:
    large, small = _many_objects(400_000), _many_objects(60_000)
    assert await _status(neighbour, large) == 400, "alone it may cost more than there is"
    async with contextlib.AsyncExitStack() as sockets:

        async def hold(key: str, size: int) -> None:
            _, _, writer = await sockets.enter_async_context(_handshake(web_alone, key))
            await _send(writer, _begin(size + 1) + b"x" * size)

        await hold(web_alone.key, 6 * MIB)
        await until(lambda: _holds(web_alone, 6 * MIB))
        assert await _status(neighbour, large) == 503
        assert await _status(neighbour, small) == 400
        await hold(neighbour.key, 3 * MIB // 2)
        await until(lambda: _holds(web_alone, 15 * MIB // 2))
        assert await _status(neighbour, small) == 503, "60 KB become 2 MB"
        plain = _large_create(60_000)
        assert (await neighbour.call("POST", "/responses", plain)).status == 200
    await until(lambda: _holds(web_alone, 0))


async def test_bodies_that_arrive_do_not_keep_others_from_being_decoded(
    web_alone: Stack, neighbour: Api
) -> None:
    async with _half_a_body(web_alone, web_alone.key, 6 * MIB):
        await until(lambda: _holds(web_alone, 6 * MIB))
        assert await _status(neighbour, _many_objects(400_000)) == 400
    await until(lambda: _holds(web_alone, 0))


# --- WebSockets ---


@contextlib.asynccontextmanager
async def _handshake(
    running: Stack, key: str
) -> AsyncIterator[tuple[int, asyncio.StreamReader, asyncio.StreamWriter]]:
    """The status of a handshake, and the connection, whose bytes the test writes itself."""
    reader, writer = await asyncio.open_connection("127.0.0.1", running.webs[0].port)
    try:
        writer.write(
            "GET /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\n"
            "upgrade: websocket\r\nsec-websocket-version: 13\r\n"
            "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            f"authorization: Bearer {key}\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        yield int(head[9:12]), reader, writer
    finally:
        await _abort(writer)


def _begin(size: int) -> bytes:
    """The head of the first fragment of a text message."""
    return b"\x01\xff" + size.to_bytes(8, "big") + _MASK


async def test_incomplete_messages_are_bounded_together(web_alone: Stack) -> None:
    before = _memory(web_alone)
    message = _begin(20 * MIB) + b"x" * (20 * MIB - 1)
    async with contextlib.AsyncExitStack() as sockets:

        async def send() -> asyncio.StreamReader:
            connection = _handshake(web_alone, web_alone.key)
            _, reader, writer = await sockets.enter_async_context(connection)
            await _send(writer, message)
            return reader

        await send()
        await until(lambda: _holds(web_alone, 20 * MIB - 1))
        for _ in range(6):
            reader = await send()
            frame = await reader.readuntil(b"}}}")
            error = json.loads(frame[frame.index(b"{") :])
            assert (error["status"], error["error"]["code"]) == (429, "rate_limit_exceeded")
            assert (await reader.readexactly(4))[2:] == (1013).to_bytes(2, "big")
        assert _memory(web_alone) - before < 80 * MIB
    await until(lambda: _holds(web_alone, 0))


async def test_a_message_of_many_fragments_is_read(web_alone: Stack) -> None:
    async with _handshake(web_alone, web_alone.key) as (_, reader, writer):
        await _send(writer, b"\x01\x81" + _MASK + b"{" + (b"\x00\x81" + _MASK + b" ") * 10_000)
        writer.write(b"\x80\x81" + _MASK + b"}")
        assert b"missing_required_parameter" in await reader.readuntil(b"}}")


async def test_a_message_is_released_when_it_was_used(web_alone: Stack) -> None:
    async with socket(web_alone.api()) as connection:
        for _ in range(4):
            await connection.create("m", input="x" * 2 * MIB, generate=False)
            assert (await connection.read_to_end())[-1]["type"] == "response.completed"
    await until(lambda: _holds(web_alone, 0))


# --- numbers ---


async def test_a_project_has_a_part_of_the_sockets(web_alone: Stack, neighbour: Api) -> None:
    async with contextlib.AsyncExitStack() as sockets:

        async def statuses(key: str, count: int) -> list[int]:
            connections = [_handshake(web_alone, key) for _ in range(count)]
            return [(await sockets.enter_async_context(each))[0] for each in connections]

        assert await statuses(web_alone.key, 11) == [101] * 9 + [429] * 2
        assert await statuses(neighbour.key, 4) == [101] * 3 + [503]


async def test_a_project_has_a_part_of_the_streams(web_alone: Stack, neighbour: Api) -> None:
    api = web_alone.api()
    response_id = await api.create_background("m")
    other_id = await neighbour.create_background("m")
    async with contextlib.AsyncExitStack() as streams:
        for _ in range(3):
            await streams.enter_async_context(api.follow(response_id))
        refused = await api.call("POST", "/responses", {"model": "m", "input": "x"})
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert (await api.call("GET", f"/responses/{response_id}")).status == 200
        await streams.enter_async_context(neighbour.follow(other_id))
        refused = await neighbour.call("POST", "/responses", {"model": "m", "input": "x"})
        assert (refused.status, refused.error["code"]) == (503, "server_error")
        assert refused.headers["retry-after"]

    async def is_free() -> bool:
        with contextlib.suppress(StreamRefused):
            async with api.follow(response_id):
                return True
        return False

    await until(is_free)


async def test_a_project_has_a_part_of_the_downloads(web_alone: Stack, neighbour: Api) -> None:
    client = web_alone.openai()
    content = b"text\n" * (6 * MIB)
    file = await client.files.create(file=("a.txt", content), purpose="user_data")
    path = f"/files/{file.id}/content"
    async with contextlib.AsyncExitStack() as downloads:
        for _ in range(2):
            await downloads.enter_async_context(_unread(web_alone, path))
        refused = await web_alone.api().call("GET", path)
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert refused.headers["retry-after"]
        other = await web_alone.openai(key=neighbour.key).files.create(
            file=("b.txt", b"text"), purpose="user_data"
        )
        assert other.bytes == 4

    async def is_free() -> bool:
        return (await web_alone.api().call("GET", path)).status == 200

    await until(is_free)


# --- answers ---


async def test_replays_of_a_large_event_wait_for_each_other(web_alone: Stack) -> None:
    """Sixty of them took a gigabyte, and the process was killed."""
    api = web_alone.api()
    response_id = await api.create_background("m")
    event = {"type": "response.output_text.delta", "sequence_number": 2, "delta": "x" * 24 * MIB}
    frame = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
    await web_alone.value(
        "INSERT INTO event_log (response_id, first_number, last_number, attempt, frames) "
        "VALUES (%s, 2, 2, 1, %s) RETURNING 1",
        parse_response_id(response_id),
        frame,
    )
    async with contextlib.AsyncExitStack() as first:
        await first.enter_async_context(_unread(web_alone, f"/responses/{response_id}?stream=true"))
        await until(lambda: _holds(web_alone, 3 * len(frame)))
        async with api.follow(response_id) as second:
            numbers = [await second.next() for _ in range(2)]
            assert [each and each["sequence_number"] for each in numbers] == [0, 1]
            waiting = asyncio.create_task(second.next())
            await until(lambda: second.comments > 1)
            assert not waiting.done()
            await first.aclose()
            large = await waiting
            assert large == event
    await until(lambda: _holds(web_alone, 0))
