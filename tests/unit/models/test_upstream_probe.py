"""What `up` and `upstream check` print about an upstream that does not work: one sentence."""

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from pydantic import SecretStr

from models.config.upstream import UpstreamSettings
from models.upstream_probe import UpstreamProbe, chat_models, probe_upstream

KEY = "sesame-sesame"


class Answers(BaseHTTPRequestHandler):
    """An upstream below /v1, and other things below other paths."""

    def do_GET(self) -> None:
        status, body = 404, b"404 page not found"
        if self.path == "/v1/models":
            allowed = self.headers["authorization"] == f"Bearer {KEY}"
            models = {"data": [{"id": "text-embedding-3"}, {"id": "llama3"}]}
            status, body = (200, json.dumps(models).encode()) if allowed else (401, b"{}")
        elif self.path == "/busy/v1/models":
            status, body = 503, b""
        elif self.path == "/limited/v1/models":
            status, body = 429, b""
        elif self.path == "/page/models":
            status, body = 200, b"<html>It works!</html>"
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Prints nothing."""


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def probe(address: str, key: str = KEY) -> UpstreamProbe:
    settings = UpstreamSettings(base_url=address, api_key=SecretStr(key))
    return probe_upstream(settings, timeout=0.5)


def test_the_models_of_an_upstream_that_works(host: str) -> None:
    assert probe(f"http://{host}/v1").models == ("text-embedding-3", "llama3")
    assert chat_models(("text-embedding-3", "llama3"))[0] == "llama3"


@pytest.mark.parametrize(
    ("address", "key", "expected"),
    [
        ("http://{host}", KEY, "has its API at http://{host}/v1: use that address"),
        ("http://{host}", "wrong-key", "has its API at http://{host}/v1: use that address"),
        (
            "http://{host}/v1",
            "wrong-key",
            "refuses the key (401): set BACKBURNER_UPSTREAM__API",
        ),
        ("http://{host}/busy/v1", KEY, "answers 503: look into its log"),
        ("http://{host}/page", KEY, "has no list of models at http://{host}/page/models: check"),
        (
            "http://{host}/limited/v1",
            KEY,
            "answers 429: it limits how often it is called",
        ),
        ("http://{host}/x/v1", KEY, "answers 404 at http://{host}/x/v1/models: check the address"),
        ("https://{host}/v1", KEY, "speaks plain HTTP: use http:// in its address"),
        ("http://127.0.0.1:9/v1", KEY, "refuses the connection: start it, or correct host"),
        ("http://silent.invalid/v1", KEY, "has a host name that does not exist: correct it"),
    ],
)
def test_a_problem_is_one_sentence_with_address_reason_and_remedy(
    host: str, address: str, key: str, expected: str
) -> None:
    address = address.format(host=host)
    problem = probe(address, key).problem
    assert problem is not None
    assert problem.startswith(f"the upstream {address} {expected.format(host=host)}")
    assert key not in problem


def test_a_server_that_does_not_answer_is_not_waited_for_long() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        problem = probe(f"http://127.0.0.1:{silent.getsockname()[1]}/v1").problem
    assert problem is not None
    assert "does not answer within 0.5 s" in problem


def test_a_proxy_variable_that_reaches_a_local_upstream_is_named(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:password@127.0.0.1:9")
    problem = probe(f"http://{host}/v1").problem
    assert problem is not None
    assert "HTTP_PROXY sends it through http://127.0.0.1:9: NO_PROXY=127.0.0.1" in problem
    assert "password" not in problem
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert probe(f"http://{host}/v1").models
