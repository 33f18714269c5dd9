"""Faults of upstreams as scripts, and how three kinds of clients see them."""

import asyncio
import json
import struct
import zlib
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

from tests.support.api import JSON, HttpResponse, until
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import Exchange, FakeUpstream, Script, Step
from tests.support.stack import Service, Stack
from tests.support.strict_types import check_event, check_response

T = TypeVar("T")

_MIB = b" " * 2**20
_GZIP_HEADER = b"\x1f\x8b\x08" + bytes(6) + b"\xff"
"""Without a name and a time, for any system."""

SECRET = "upstream-secret"
"""The credential for the upstream in every stack."""


@dataclass(frozen=True, slots=True)
class FaultCase:
    """One fault, and its error if there was no output: HTTP status for a foreground client, code,
    message.
    """

    name: str
    script: Script
    status: int
    code: str
    message: str
    envelope_code: str | None = None
    retry_after: str | None = None
    waits: bool = False
    """A background response is deferred: the upstream may answer later."""


@dataclass(frozen=True, slots=True)
class ClientResults:
    """One fault as seen by a waiting client, a streaming client and a polling client."""

    answer: HttpResponse
    events: list[JSON]
    stored: JSON
    """The background response when it has ended, or as it waits."""
    waits_for: JSON | None = None
    """If it waits: the failed call for which it was deferred."""

    def texts(self) -> list[str]:
        """All text that the three received."""
        return [self.answer.raw.decode(), json.dumps(self.events), json.dumps(self.stored)]


async def request_three_ways(stack: Stack, model: str, **body: Any) -> ClientResults:
    """Calls the model in all three ways at once; checks the stream's rules and that GET agrees."""
    api = stack.api()

    async def listen() -> list[JSON]:
        async with api.post_stream(model, **body) as stream:
            return await stream.to_end()

    async def come_back() -> tuple[JSON, JSON | None]:
        response_id = await api.create_background(model, **body)

        async def ended_or_deferred() -> tuple[JSON, JSON | None] | None:
            waits_for = await waited_for(stack, response_id)
            response = await api.get(response_id)
            ended = response["status"] not in ("queued", "in_progress")
            return (response, waits_for) if ended or waits_for else None

        found = await until(ended_or_deferred, 60)
        assert found is not None
        response, waits_for = found
        if waits_for:
            assert (await api.cancel(response_id)).body["status"] == "cancelled"
        return response, waits_for

    waiting = api.call("POST", "/responses", {"model": model, "input": "Hello.", **body})
    answer, events, (stored, waits_for) = await asyncio.gather(waiting, listen(), come_back())
    for event in events:
        check_event(event)
    assert_stream_obeys_contract(events)
    check_response(stored)
    assert await api.get(events[-1]["response"]["id"]) == events[-1]["response"]
    return ClientResults(answer, events, stored, waits_for)


async def waited_for(stack: Stack, response_id: str) -> JSON | None:
    """The failed call for which this response is deferred now; None if it is not."""
    found: JSON | None = await stack.value(
        """
        SELECT a.failures -> -1 || jsonb_build_object(
                   'row', r.reason, 'seconds', extract(epoch FROM r.resume_at - a.ended_at))
        FROM responses r JOIN attempts a ON a.response_id = r.id AND a.attempt = r.attempt
        WHERE r.id = %s AND r.worker IS NULL AND r.resume_at IS NOT NULL AND a.outcome = 'deferred'
        """,
        response_id.removeprefix("resp_"),
    )
    return found


async def assert_all_closed(
    fake: FakeUpstream, model: str, count: int = 3, *, at_least: int | None = None
) -> None:
    """The model was asked once for each client, and no connection to it is left open.

    `at_least`: a flood can keep the fake itself so busy that the limit ends a request before the
    fake has read it.
    """
    assert (count if at_least is None else at_least) <= len(fake.requests_for(model)) <= count
    await until(lambda: not any(request.is_open for request in fake.requests_for(model)), 5)


async def assert_fails(stack: Stack, fault: FaultCase, *, flood: bool = False) -> ClientResults:
    """Checks a fault before any output: an HTTP error for the waiting client, `response.failed` for
    the others.
    """
    fake = stack.fake
    model = fake.script(fault.script)
    met = await request_three_ways(stack, model)
    assert met.answer.status == fault.status, met.answer.raw[:2000]
    error = met.answer.error
    assert (error["message"], error["code"]) == (fault.message, fault.envelope_code), error
    advice = {name: met.answer.headers.get(name) for name in ("x-should-retry", "retry-after")}
    assert advice == {
        "x-should-retry": None if fault.status == 429 and fault.waits else "false",
        "retry-after": fault.retry_after,
    }, advice
    if fault.waits:
        assert met.waits_for is not None, met.stored
        assert met.waits_for["message"] == fault.message
        assert met.waits_for["row"] == met.waits_for["reason"]
        assert met.waits_for["seconds"] >= int(fault.retry_after or 0)
        assert (met.stored["status"], met.stored["error"]) == ("in_progress", None)
    else:
        assert met.waits_for is None, met.waits_for
    failed = [met.events[-1]["response"], *([] if fault.waits else [met.stored])]
    for response in failed:
        assert (response["status"], response["output"], response["usage"]) == (
            "failed",
            [],
            None,
        ), response
        assert response["error"] == {"code": fault.code, "message": fault.message}, response[
            "error"
        ]
    assert_no_internals(met, fake)
    await assert_all_closed(fake, model, at_least=1 if flood else None)
    return met


def assert_no_internals(results: ClientResults, fake: FakeUpstream) -> None:
    """Checks that clients see no credential, no address and no piece of a program."""
    address = fake.base_url.removeprefix("http://").removesuffix("/v1")
    for text in results.texts():
        for internal in (SECRET, address, "Traceback", "aiohttp", "httpx", "openai."):
            assert internal not in text, text[:2000]


async def memory_growth(processes: list[Service], work: Awaitable[T]) -> tuple[T, int]:
    """The result of `work`, and the most bytes by which one of these processes grew meanwhile."""
    seen = [psutil.Process(process.pid) for process in processes]
    before = [one.memory_info().rss for one in seen]
    most = 0
    task = asyncio.ensure_future(work)

    def has_ended() -> bool:
        nonlocal most
        most = max(
            most, *(one.memory_info().rss - size for one, size in zip(seen, before, strict=True))
        )
        return task.done()

    await until(has_ended, 60)
    return task.result(), most


# Steps below HTTP.


def raw_bytes(*pieces: bytes) -> Step:
    """Sends these bytes on the connection, including the head."""

    async def step(exchange: Exchange) -> None:
        for piece in pieces:
            await exchange._connection.send(piece)

    return step


def head(*fields: str, status: str = "200 OK") -> bytes:
    """The head of an answer."""
    return "\r\n".join([f"HTTP/1.1 {status}", *fields, "", ""]).encode("latin-1")


def endless(piece: bytes, begin: bytes = head("content-type: text/event-stream")) -> Step:
    """Sends a head, then the same piece until the client closes the connection."""

    async def step(exchange: Exchange) -> None:
        await exchange._connection.send(begin)
        while True:
            await exchange._connection.send(piece)

    return step


def separate_reads(*pieces: bytes) -> Step:
    """Sends each piece of a stream in a separate write."""

    async def step(exchange: Exchange) -> None:
        for piece in pieces:
            await exchange.write(piece)
            await asyncio.sleep(0)

    return step


def chunk_json(delta: JSON, **choice: Any) -> bytes:
    """The JSON of one chunk."""
    body = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return json.dumps({**body, "choices": [{"index": 0, "delta": delta, **choice}]}).encode()


def text_event(content: str, **choice: Any) -> bytes:
    """One ordinary event."""
    return b"data: " + chunk_json({"content": content}, **choice) + b"\n\n"


def completion(**message: Any) -> JSON:
    """An answer that is no stream."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def gzip_bomb(begin: bytes = b"") -> bytes:
    """64 MiB that travel as 300 KB. Only one of them is compressed: a block that begins with an
    empty window can be repeated."""
    encoder = zlib.compressobj(1, zlib.DEFLATED, -zlib.MAX_WBITS)
    first = encoder.compress(begin) + encoder.flush(zlib.Z_FULL_FLUSH)
    block = encoder.compress(_MIB) + encoder.flush(zlib.Z_FULL_FLUSH)
    checksum = zlib.crc32(begin)
    for _ in range(64):
        checksum = zlib.crc32(_MIB, checksum)
    trailer = struct.pack("<II", checksum, len(begin) + 64 * len(_MIB))
    return _GZIP_HEADER + first + block * 64 + encoder.flush() + trailer
