"""Attacks over WebSockets."""

import asyncio
import contextlib
import functools
import json
import zlib
from collections.abc import Awaitable, Callable
from typing import Literal

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.protocol import State

from tests.chaos.abuse.kinds import attack
from tests.chaos.abuse.offender import Offender
from tests.support.memory_limit import MIB

_TOO_LARGE = 413
"""The status of an error frame after which the socket stays open."""
_REFUSED_SOCKET = ("close 1008", "close 1009", "close 1013", str(_TOO_LARGE))


async def _on_socket(
    offender: Offender,
    act: Callable[[ClientConnection], Awaitable[None]],
    compression: Literal["deflate"] | None = None,
) -> None:
    """Opens a socket, does something, and counts the code with which the server closes it, or the
    message that is too large."""
    url = f"ws://127.0.0.1:{offender.port}/v1/responses"
    headers = {"authorization": f"Bearer {offender.key}"}
    try:
        async with (
            asyncio.timeout(30),
            connect(
                url,
                additional_headers=headers,
                proxy=None,
                max_size=None,
                compression=compression,
                ping_interval=None,
                local_addr=(offender.address, 0),
            ) as connection,
        ):
            with contextlib.suppress(ConnectionClosed):
                await act(connection)
            with contextlib.suppress(ConnectionClosed):
                while json.loads(await connection.recv()).get("status") != _TOO_LARGE:
                    pass
                offender.count(_TOO_LARGE)
                return
            offender.count(f"close {connection.close_code}")
    except InvalidHandshake as refused:
        response = getattr(refused, "response", None)
        offender.count(response.status_code if response is not None else "closed")
    except TimeoutError:
        offender.count("socket stays open")
    except OSError:
        offender.count("closed")
    except AttributeError:
        # From asyncio: websockets aborts a connection that was lost a moment before.
        offender.count("closed")


@attack("fragments of a WebSocket message that never ends", *_REFUSED_SOCKET)
async def _fragments(offender: Offender) -> None:
    async def pieces(connection: ClientConnection) -> None:
        async def endless() -> object:
            for _ in range(offender.many(400, 80)):
                yield "x" * MIB
            await asyncio.sleep(30)

        await connection.send(endless())  # type: ignore[arg-type]

    await offender.all(_on_socket(offender, pieces) for _ in range(8))


@attack("WebSocket messages of 70 MiB", *_REFUSED_SOCKET)
async def _big_messages(offender: Offender) -> None:
    async def message(connection: ClientConnection) -> None:
        await connection.send("x" * 70 * MIB)

    await offender.all(_on_socket(offender, message) for _ in range(4))


@functools.cache
def _inflating() -> bytes:
    """A frame of a client of some 60 KiB that inflates to 60 MiB, unmasked by zeros."""
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    content = deflate.compress(b"x" * 60 * MIB) + deflate.flush(zlib.Z_SYNC_FLUSH)
    content = content.removesuffix(b"\x00\x00\xff\xff")
    return b"\xc1\xff" + len(content).to_bytes(8) + bytes(4) + content


@attack("WebSocket frames of 60 KiB that inflate to 60 MiB, 16 sockets", quick=True)
async def _inflated(offender: Offender) -> None:
    """They offer `permessage-deflate`; where the server declines it, the frame is a fault."""

    async def message(connection: ClientConnection) -> None:
        connection.transport.write(_inflating())
        async with asyncio.timeout(20):
            await connection.drain()

    for _ in range(4):
        await offender.all(_on_socket(offender, message, "deflate") for _ in range(4))


@attack("300 idle WebSockets", "429")
async def _many_sockets(offender: Offender) -> None:
    async def idle(connection: ClientConnection) -> None:
        await asyncio.sleep(3)
        await connection.close()

    await offender.all(_on_socket(offender, idle) for _ in range(300))


@attack("empty fragments of a WebSocket message", *_REFUSED_SOCKET)
async def _empty_fragments(offender: Offender) -> None:
    begin, go_on = b"\x01\x80\x00\x00\x00\x00", b"\x00\x80\x00\x00\x00\x00"
    await _flood_frames(offender, begin, go_on)


@attack("WebSocket pings that nobody reads the answers of")
async def _pings(offender: Offender) -> None:
    ping = b"\x89\x80\x00\x00\x00\x00"
    await _flood_frames(offender, ping, ping)


async def _flood_frames(offender: Offender, first: bytes, frame: bytes) -> None:
    """Sends 30 MB of small frames on each of eight sockets, as fast as the server reads them."""

    async def flood(connection: ClientConnection) -> None:
        connection.transport.write(first)
        for _ in range(offender.many(100, 10)):
            connection.transport.write(frame * 50_000)
            async with asyncio.timeout(20):
                await connection.drain()
        if connection.state is not State.CLOSED:
            connection.transport.abort()

    await offender.all(_on_socket(offender, flood) for _ in range(8))
