"""Which hosts a request may name for pages that need no key: DNS rebinding gets none of them."""

import http.client
from contextlib import closing

import pytest
from prometheus_client import CollectorRegistry

from cli.embedded.process import free_port
from models.config.groups import MetricsSettings
from models.hosts import is_own_host
from models.metrics import serve

ALLOWED = ("backburner.example", "Metrics.Internal.")


@pytest.mark.parametrize(
    "host",
    [
        *("localhost", "LOCALHOST:8000", "app.localhost", "localhost."),
        *("127.0.0.1:8000", "10.1.2.3", "[::1]:8000", "[2001:db8::1]"),
        *("backburner.example:443", "BACKBURNER.example.", "metrics.internal"),
    ],
)
def test_names_of_this_server_are_accepted(host: str) -> None:
    assert is_own_host(host, ALLOWED)


@pytest.mark.parametrize(
    "host",
    [
        *(None, "", ":8000", "evil.example", "evil.example:8000", "localhost.evil.example"),
        *("127.0.0.1.evil.example", "x.backburner.example", "localhost@evil.example"),
        *("evil.example, localhost", "[::1", "127.0.0.1:8000:evil", "0x7f.1", "2130706433"),
    ],
)
def test_names_of_others_are_refused(host: str | None) -> None:
    assert not is_own_host(host, ALLOWED)


def test_a_worker_serves_metrics_without_a_token_only_under_its_own_names() -> None:
    port = serve(MetricsSettings(port=free_port()), CollectorRegistry(), ("w.internal",))
    assert port is not None
    statuses = {}
    for host in ("evil.example", f"127.0.0.1:{port}", "w.internal"):
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
            connection.request("GET", "/metrics", headers={"Host": host})
            statuses[host] = connection.getresponse().status
    assert list(statuses.values()) == [403, 200, 200]
