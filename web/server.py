"""uvicorn's server, as this application runs it."""

import asyncio
import os
import socket
from functools import partial
from types import FrameType

import uvicorn

from web.app import Application
from web.http.protocol import HttpProtocol
from web.state import started_state

_ACCEPTED_IN_A_TURN = 8
"""Connections that are accepted in one turn of the event loop."""


class WebServer(uvicorn.Server):
    """uvicorn, but a signal ends streams at once: its lifespan hook runs only after they ended. And
    many connections are accepted soon.

    uvloop accepts one connection in a turn of the event loop. While a process is busy a turn takes
    ten milliseconds: behind 500 that came at once, the connection of another client waited for
    three seconds. Each copy of the listening socket has its own turn.
    """

    def __init__(self, config: uvicorn.Config, app: Application) -> None:
        super().__init__(config)
        self._app = app

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to accept connections. Exits with 3 if the address is in use."""
        await super().startup(sockets)
        protocol = partial(
            HttpProtocol,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
        )
        for listener in [each for server in self.servers for each in server.sockets]:
            for _ in range(_ACCEPTED_IN_A_TURN - 1):
                copy = socket.socket(fileno=os.dup(listener.fileno()))
                server = await asyncio.get_running_loop().create_server(
                    protocol, sock=copy, backlog=self.config.backlog
                )
                self.servers.append(server)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM or SIGINT."""
        state = started_state(self._app)
        if state is not None:
            state.begin_shutdown()
        super().handle_exit(sig, frame)
