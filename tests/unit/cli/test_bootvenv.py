"""How the installer of `./dev` finds pip on a Python that has none: it asks as pip itself would."""

import base64
import hashlib
import http.server
import threading
import urllib.error
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli import bootvenv

WHEEL = b"a wheel"
LOGIN = "reader:se%40cret"


class _Index(http.server.BaseHTTPRequestHandler):
    """A package index that wants a password."""

    def do_GET(self) -> None:
        wanted = "Basic " + base64.b64encode(b"reader:se@cret").decode()
        if self.headers["Authorization"] != wanted:
            self.send_error(401)
            return
        page = f'<a href="../../files/{bootvenv.PIP}#sha256=0">{bootvenv.PIP}</a>'.encode()
        body = page if self.path == "/simple/pip/" else WHEEL
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def index() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Index) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}/simple"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _own_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip's configuration as the test writes it, and nothing of this machine's."""
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    monkeypatch.delenv("PIP_CERT", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("no_proxy", "*")


def test_index_and_certificates_come_from_pips_own_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.conf").write_text(
        "[global]\nindex-url = http://a.test/simple\ncert = /ca.pem\n[install]\nindex-url = http://b.test/simple\n"
    )
    assert bootvenv.pip_option("index-url") == "http://b.test/simple"
    assert bootvenv.pip_option("cert") == "/ca.pem"
    monkeypatch.setenv("PIP_INDEX_URL", "http://c.test/simple")
    monkeypatch.setenv("PIP_CERT", "/other.pem")
    assert bootvenv.pip_option("index-url") == "http://c.test/simple"
    assert bootvenv.pip_option("cert") == "/other.pem"


def test_pip_is_fetched_from_an_index_with_a_password(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootvenv, "PIP_SHA256", hashlib.sha256(WHEEL).hexdigest())
    assert bootvenv.fetch_pip(f"http://{LOGIN}@{index}") == WHEEL


def test_a_wheel_that_is_another_is_refused(index: str) -> None:
    with pytest.raises(bootvenv.CannotInstall, match="SHA-256 is another"):
        bootvenv.fetch_pip(f"http://{LOGIN}@{index}")


def test_a_refusing_index_is_one_sentence_without_the_password(index: str) -> None:
    with pytest.raises(bootvenv.CannotInstall, match="could not be fetched") as refused:
        bootvenv.fetch_pip(f"http://reader:wrong-word@{index}")
    assert "wrong-word" not in str(refused.value)
    assert isinstance(refused.value.__cause__, urllib.error.HTTPError)
    refused.value.__cause__.close()


@pytest.mark.parametrize("address", ["file:///simple", "simple"])
def test_an_index_that_is_not_on_the_web_is_one_sentence(address: str) -> None:
    with pytest.raises(bootvenv.CannotInstall, match="not on the web"):
        bootvenv.fetch_pip(address)


def test_certificates_that_are_not_there_are_one_sentence(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CERT", "/nowhere/ca.pem")
    with pytest.raises(bootvenv.CannotInstall, match="could not be fetched"):
        bootvenv.fetch_pip(f"http://{LOGIN}@{index}")
