"""Metrics for Prometheus: web serves `/metrics` on its port, a worker on a port of the settings.

They are served on the loopback, or to clients that send the token (`BACKBURNER_METRICS__TOKEN`).
Labels have few, fixed values: no ids, no model names.
"""

import hmac
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import structlog
from prometheus_client import (
    CollectorRegistry,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from models.config.groups import MetricsSettings
from models.hosts import is_loopback

logger = structlog.get_logger()

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
MILLISECOND_BUCKETS = (
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    10.0,
)
"""Buckets, in seconds, for work that should take milliseconds."""
SECOND_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0, 300.0, 1800.0)
"""Buckets, in seconds, for work that may take longer."""
_PORTS = 32
"""Ports that are tried, from the configured one on: each worker of a host takes one."""

disable_created_metrics()  # type: ignore[no-untyped-call]


def new_registry() -> CollectorRegistry:
    """A registry with the metrics of the process itself: CPU, memory, open files."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    return registry


def scrape_allowed(settings: MetricsSettings, host: str, authorization: str | None) -> bool | None:
    """Whether a scrape at `host` with this `Authorization` header is allowed.

    None if metrics are not served there at all.
    """
    if settings.token is None:
        return True if is_loopback(host) else None
    return hmac.compare_digest(
        (authorization or "").encode(), f"Bearer {settings.token.get_secret_value()}".encode()
    )


def serve(settings: MetricsSettings, registry: CollectorRegistry) -> int | None:
    """Serves `GET /metrics` from a thread, on the first free port from `settings.port` on.

    Returns the port; None if metrics are not served.
    """
    if settings.port is None:
        return None
    if scrape_allowed(settings, settings.host, None) is None:
        logger.info(
            "metrics_not_served", host=settings.host, reason="not on loopback, and no token is set"
        )
        return None
    for port in range(settings.port, settings.port + _PORTS):
        try:
            server = ThreadingHTTPServer((settings.host, port), _scrape_class(settings, registry))
        except OSError:
            continue
        Thread(target=server.serve_forever, name="metrics", daemon=True).start()
        logger.info("metrics_served", host=settings.host, port=server.server_port)
        return server.server_port
    logger.warning(
        "metrics_not_served",
        host=settings.host,
        reason=f"no free port from {settings.port} to {settings.port + _PORTS - 1}",
    )
    return None


def _scrape_class(
    settings: MetricsSettings, registry: CollectorRegistry
) -> Callable[..., BaseHTTPRequestHandler]:
    class Scrape(BaseHTTPRequestHandler):
        timeout = 10
        server_version = "backburner"
        sys_version = ""

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(HTTPStatus.NOT_FOUND)
            elif not scrape_allowed(settings, settings.host, self.headers.get("authorization")):
                self.send_error(HTTPStatus.UNAUTHORIZED)
            else:
                body = generate_latest(registry)
                self.send_response(HTTPStatus.OK)
                self.send_header("content-type", CONTENT_TYPE)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class's name for it)
            """Scrapes are not logged."""

    return Scrape
