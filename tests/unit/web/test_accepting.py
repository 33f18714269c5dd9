"""Many connections that come at once are accepted in few turns of the event loop."""

import asyncio
import socket
from typing import Any

import pytest
import uvicorn
import uvloop

from models.config.settings import Settings
from web.__main__ import WebServer
from web.app import Application, create_app
from web.http.protocol import HttpProtocol

CLIENTS = 40


class _Turns:
    """Counts the turns of the event loop."""

    def __init__(self) -> None:
        self.count = 0

    def go_on(self) -> None:
        self.count += 1
        asyncio.get_running_loop().call_soon(self.go_on)


async def _turns_to_accept(monkeypatch: pytest.MonkeyPatch, app: Application) -> int:
    """The turns of the event loop between the first and the last connection of forty."""
    turns, accepted, is_done = _Turns(), list[int](), asyncio.Event()
    made = HttpProtocol.connection_made

    def note(self: HttpProtocol, transport: Any) -> None:
        accepted.append(turns.count)
        made(self, transport)
        if len(accepted) == CLIENTS:
            is_done.set()

    monkeypatch.setattr(HttpProtocol, "connection_made", note)
    config = uvicorn.Config(app, http=HttpProtocol, ws="none", lifespan="off", port=0)
    server = WebServer(config, app)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    clients = [socket.socket() for _ in range(CLIENTS)]
    try:
        for client in clients:
            client.connect(server.servers[0].sockets[0].getsockname())
        turns.go_on()
        async with asyncio.timeout(10):
            await is_done.wait()
    finally:
        for client in clients:
            client.close()
        await server.shutdown()
    return accepted[-1] - accepted[0]


def test_several_connections_are_accepted_in_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = create_app(Settings(database_url="postgresql://unused", redis_url="redis://unused"))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(_turns_to_accept(monkeypatch, app)) < CLIENTS // 4
