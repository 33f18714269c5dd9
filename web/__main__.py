"""`python -m web [--host 127.0.0.1] [--port 8000]`: one web process."""

import argparse
import asyncio
import gc
import os
import socket
import sys
from functools import partial
from types import FrameType

import structlog
import uvicorn

from models import logs
from models.config.configuration import load
from models.config.routes import Routes
from models.config.upstream_access import all_secrets
from models.confinement.kernel import forbid_dumps
from models.db.database import DATABASE_UNAVAILABLE, TransactionPooling, wait_until_available
from models.features import feature_parts
from models.process import give_back_large_blocks, raise_open_file_limit
from web.app import Application, create_app
from web.http.protocol import HttpProtocol
from web.state import Feature, started_state

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


if __name__ == "__main__":
    gc.disable()  # imports free nothing, and collections are a sixth of their time


def main() -> None:
    """Serves until SIGTERM or SIGINT. Exits with 1 if Postgres is unavailable."""
    arguments = argparse.ArgumentParser(
        prog="python -m web", description="A web process: the HTTP API."
    )
    arguments.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)"
    )
    arguments.add_argument(
        "--port", type=int, default=8000, help="port to listen on (default 8000)"
    )
    options = arguments.parse_args()
    settings = load("web")
    if not settings.debuggable:
        forbid_dumps()
    logs.configure(settings.log_level, process="web")
    logs.hide([*all_secrets(Routes(settings).upstreams.values()), *settings.s3.secrets])
    logs.capture_output()
    raise_open_file_limit()
    give_back_large_blocks()
    try:
        wait_until_available(settings)
    except DATABASE_UNAVAILABLE as error:
        structlog.get_logger().critical("database_unavailable", error=str(error).strip())
        sys.exit(1)
    except TransactionPooling as error:
        structlog.get_logger().critical("transaction_pooling", error=str(error))
        sys.exit(1)
    app = create_app(settings, options.host)
    config = uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        loop="uvloop",
        http=HttpProtocol,
        ws=_socket_protocol() or "none",
        # uvicorn closes the connection (1009) for a larger message. Up to this size we send an
        # error and keep it open.
        ws_max_size=2 * settings.limits.body,
        # A frame of 59 KiB may inflate to 60 MiB before it is counted.
        ws_per_message_deflate=False,
        ws_ping_interval=settings.web.ping.total_seconds(),
        ws_ping_timeout=settings.web.send_timeout.total_seconds(),
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=int(settings.web.grace.total_seconds()) + 2,
        timeout_keep_alive=75,
    )
    WebServer(config, app).run()


def _socket_protocol() -> type[asyncio.Protocol] | None:
    """The class that serves WebSockets."""
    kinds: list[type[Feature]] = [part.FEATURE for part in feature_parts("web")]
    return next((kind.socket_protocol for kind in kinds if kind.socket_protocol), None)


if __name__ == "__main__":
    main()
