"""`python -m web [--host 127.0.0.1] [--port 8000]`: one web process."""

import gc

if __name__ == "__main__":
    gc.disable()  # imports free nothing, and collections are a sixth of their time

import argparse
import asyncio
import sys

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
from web.app import create_app
from web.http.protocol import HttpProtocol
from web.server import WebServer
from web.state import Feature


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
