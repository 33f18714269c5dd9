"""Metrics for Prometheus: web serves `/metrics` on its port, a worker on a port of the settings.

They are served on the loopback, or to clients that send the token (`BACKBURNER_METRICS__TOKEN`).
Labels have few values: no ids, and of the names that clients choose only those of models that an
upstream has answered, up to a number (`BACKBURNER_METRICS__MODELS`). Projects are named only where
an operator asks for it (`BACKBURNER_METRICS__PROJECTS`).
"""

import hmac
import platform
from collections.abc import Callable, Collection, Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Protocol

import structlog
from prometheus_client import (
    CollectorRegistry,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from models.config.groups import MetricsSettings
from models.errors import HostNotAllowed
from models.hosts import is_loopback, is_own_host
from models.version import VERSION

logger = structlog.get_logger()

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
MILLISECOND_BUCKETS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0),
)
"""Buckets, in seconds, for work that should take milliseconds."""
SECOND_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0),
    *(300.0, 600.0, 1800.0, 3600.0, 6 * 3600.0, 24 * 3600.0),
)
"""Buckets, in seconds, for work that may take as long as the limits let it (docs/guarantees.md)."""
_PORTS = 32
"""Ports that are tried, from the configured one on: each worker of a host takes one."""

disable_created_metrics()  # type: ignore[no-untyped-call]


def new_registry() -> CollectorRegistry:
    """A registry with the metrics of the process itself: CPU, memory, open files, its release."""
    registry = CollectorRegistry(auto_describe=True)
    ProcessCollector(registry=registry)
    build = Gauge(
        "backburner_build_info",
        "1; the labels are this process's release and Python.",
        ["version", "python"],
        registry=registry,
    )
    build.labels(VERSION, platform.python_version()).set(1)
    return registry


class PoolStatistics(Protocol):
    """The pool of connections that a `PoolCollector` reads."""

    def get_stats(self) -> dict[str, int]:
        """Its figures now, and its counters."""


class PoolCollector(Collector):
    """The use of a process's pool of connections to Postgres, read at each scrape."""

    def __init__(self) -> None:
        self.pool: PoolStatistics | None = None
        """Set when the pool is open; the figures are 0 before."""

    def collect(self) -> Iterator[Metric]:
        """Connections by state, their limit, and what had to wait for one."""
        stats = {} if self.pool is None else self.pool.get_stats()
        idle = stats.get("pool_available", 0)
        connections = GaugeMetricFamily(
            "backburner_pool_connections",
            "Connections of this process's pool to Postgres, by state: idle, used.",
            labels=["state"],
        )
        connections.add_metric(["idle"], idle)
        connections.add_metric(["used"], stats.get("pool_size", 0) - idle)
        yield connections
        yield GaugeMetricFamily(
            "backburner_pool_max_connections",
            "Most connections of this process's pool.",
            stats.get("pool_max", 0),
        )
        yield GaugeMetricFamily(
            "backburner_pool_waiting",
            "Statements of this process that wait for a connection now.",
            stats.get("requests_waiting", 0),
        )
        yield CounterMetricFamily(
            "backburner_pool_wait_seconds",
            "Seconds that statements of this process have waited for a connection, in total.",
            stats.get("requests_wait_ms", 0) / 1000,
        )


def scrape_allowed(settings: MetricsSettings, host: str, authorization: str | None) -> bool | None:
    """Whether a scrape at `host` with this `Authorization` header is allowed.

    None if metrics are not served there at all.
    """
    if settings.token is None:
        return True if is_loopback(host) else None
    return hmac.compare_digest(
        (authorization or "").encode(), f"Bearer {settings.token.get_secret_value()}".encode()
    )


def serve(
    settings: MetricsSettings, registry: CollectorRegistry, allowed_hosts: Collection[str] = ()
) -> int | None:
    """Serves `GET /metrics` from a thread, on the first free port from `settings.port` on.

    `allowed_hosts`: the setting of this name; it counts where there is no token.
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
            server = ThreadingHTTPServer(
                (settings.host, port), _scrape_class(settings, registry, allowed_hosts)
            )
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
    settings: MetricsSettings, registry: CollectorRegistry, allowed_hosts: Collection[str]
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
            elif settings.token is None and not is_own_host(
                self.headers.get("host"), allowed_hosts
            ):
                self.send_error(HTTPStatus.FORBIDDEN, explain=HostNotAllowed().message)
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
