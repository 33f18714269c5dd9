"""Attacks of a client without a key, or before its key is read."""

import asyncio
import contextlib
import secrets

from tests.chaos.abuse.kinds import attack
from tests.chaos.abuse.offender import Offender
from tests.support.memory_limit import MIB


@attack("endless header", "431", quick=True)
async def _endless_header(offender: Offender) -> None:
    start = b"GET /v1/models HTTP/1.1\r\nhost: x\r\na: "
    await offender.all(offender.send(start, forever=b"x" * 65536) for _ in range(4))


@attack("100 MiB of headers", "431")
async def _many_headers(offender: Offender) -> None:
    lines = b"".join(b"h%d: %s\r\n" % (number, b"x" * 1000) for number in range(1000))
    start = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"
    await offender.all(offender.send(start, *[lines] * 100) for _ in range(4))


@attack("requests without waiting for answers", quick=True)
async def _pipelined(offender: Offender) -> None:
    async def flood() -> None:
        await offender.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 40_000)

    await offender.all(flood() for _ in range(30))


@attack("half heads", "408", "closed")
async def _half_heads(offender: Offender) -> None:
    await offender.all(offender.send(b"GET /v1/mod") for _ in range(200))


@attack("half bodies", "408", quick=True)
async def _half_bodies(offender: Offender) -> None:
    head = offender.head("POST", "/responses", content_length=60 * MIB)
    await offender.all(offender.send(head, b'{"model": "') for _ in range(50))


@attack("guessed keys", "401", quick=True)
async def _guessed_keys(offender: Offender) -> None:
    def guess() -> bytes:
        key = f"bb-{secrets.token_urlsafe(32)}".encode()
        return b"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer " + key + b"\r\n\r\n"

    await offender.all(offender.send(guess()) for _ in range(300))


@attack("1 500 connections")
async def _connections(offender: Offender) -> None:
    async with contextlib.AsyncExitStack() as connections:
        opened = [await connections.enter_async_context(offender.connection()) for _ in range(1500)]
        reader, _ = opened[-1]
        async with asyncio.timeout(5):
            line = await reader.readline()
        offender.count(line.split()[1].decode() if line else "closed")
