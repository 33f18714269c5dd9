"""Downloads for clients, over real sockets: the address of each connection decides."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver, ResolveResult

from models.config.groups import EgressSettings
from models.egress import NOT_REACHED, EgressPolicy, EgressRefused
from models.errors import UpstreamFailed
from worker.outbound.download import Downloader, DownloadError, FileMemory
from worker.run.attachments import Attachments
from worker.upstream.request_body import pieces

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/pdf; x=y\r\ncontent-length: 5\r\n\r\nhello"


class Site:
    """A server on every loopback address. `answers` has a raw answer for each path.

    `requests` has the address and the path of each request.
    """

    def __init__(self) -> None:
        self.answers: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        self.heads: list[str] = []
        self.port = 0
        self.release = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        path = head.split(" ")[1]
        self.heads.append(head)
        self.requests.append((writer.get_extra_info("sockname")[0], path))
        writer.write(self.answers.get(path, b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"))
        if path == "/endless":
            await self.release.wait()
        writer.close()

    def redirect(self, path: str, to: str, status: int = 302) -> None:
        self.answers[path] = (
            f"HTTP/1.1 {status} Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n".encode()
        )


@asynccontextmanager
async def _running() -> AsyncIterator[Site]:
    site = Site()
    server = await asyncio.start_server(site.serve, "0.0.0.0", 0)
    site.port = server.sockets[0].getsockname()[1]
    try:
        yield site
    finally:
        site.release.set()
        server.close()
        await server.wait_closed()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with _running() as running:
        yield running


class FakeDns(AbstractResolver):
    """Answers each question with the next of its answers; the last one repeats. An empty one: there
    is no such name."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self._answers = list(answers)
        self.questions = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        answer = self._answers[min(self.questions, len(self._answers) - 1)]
        self.questions += 1
        if not answer:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET,
                "proto": 0,
                "flags": socket.AI_NUMERICHOST,
            }
            for address in answer
        ]

    async def close(self) -> None:
        """Nothing to close."""


PUBLIC, INSIDE = "127.0.0.2", "127.0.0.1"
"""Two addresses with a server: these tests allow the first and not the second."""


def downloads(
    *dns: Sequence[str], allow: tuple[str, ...] = (PUBLIC,), redirects: int = 3
) -> Downloader:
    return Downloader(
        EgressPolicy(EgressSettings(allow=allow)),
        redirects=redirects,
        resolver=FakeDns(*dns) if dns else None,
    )


async def fetch(
    downloader: Downloader, url: str, most: int = 1000, within: float = 5
) -> tuple[bytes, str, str]:
    download = await downloader.fetch(url, max_bytes=most, time_limit=within)
    return download.content, download.media_type, download.name


async def test_a_file_is_fetched_with_its_type_and_name(site: Site) -> None:
    site.answers["/a/b%20c.pdf?x=1"] = OK
    result = await fetch(downloads([PUBLIC]), f"http://files.example:{site.port}/a/b%20c.pdf?x=1")
    assert result == (b"hello", "application/pdf", "b c.pdf")
    assert site.requests == [(PUBLIC, "/a/b%20c.pdf?x=1")]
    head = site.heads[0].lower()
    assert f"host: files.example:{site.port}" in head
    assert "accept-encoding: identity" in head
    assert "authorization" not in head
    assert "cookie" not in head


@pytest.mark.parametrize(
    ("content_type", "path", "media_type"),
    [
        ("", "/a.pdf", "application/pdf"),
        ("application/octet-stream", "/a.csv", "text/csv"),
        ("", "/a", "application/octet-stream"),
        ("TEXT/Plain;charset=x", "/a.pdf", "text/plain"),
        ("a,b;base64,<x>", "/a", "application/octet-stream"),
    ],
)  # fmt: skip
async def test_an_invalid_media_type_is_replaced_by_a_guess_from_the_name(
    site: Site, content_type: str, path: str, media_type: str
) -> None:
    site.answers[path] = (
        f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: 1\r\n\r\nx".encode()
    )
    assert (await fetch(downloads([PUBLIC]), f"http://x.example:{site.port}{path}"))[
        1
    ] == media_type


@pytest.mark.parametrize("name", ["internal.example", "localhost"])
async def test_a_name_with_a_private_address_is_not_connected_to(site: Site, name: str) -> None:
    with pytest.raises(DownloadError, match=NOT_REACHED):
        await fetch(downloads([INSIDE]), f"http://{name}:{site.port}/a")
    assert site.requests == []


async def test_a_name_that_leads_nowhere_gets_the_error_of_one_that_leads_inside() -> None:
    with pytest.raises(DownloadError, match=f"^its server {NOT_REACHED}$"):
        await fetch(downloads([]), "http://nowhere.example/a")


async def test_addresses_of_the_systems_resolver_are_checked_too(site: Site) -> None:
    with pytest.raises(DownloadError, match=NOT_REACHED):
        await fetch(downloads(), f"http://localhost:{site.port}/a")
    assert site.requests == []


async def test_dns_rebinding_does_not_reach_a_private_address(site: Site) -> None:
    """The first look-up returns a public address, the second a private one."""
    site.redirect("/a", "/b")
    site.answers["/b"] = OK
    rebinding = downloads([PUBLIC], [INSIDE])
    with pytest.raises(DownloadError, match=NOT_REACHED):
        await fetch(rebinding, f"http://rebind.example:{site.port}/a")
    assert site.requests == [(PUBLIC, "/a")]


async def test_a_name_is_looked_up_once_for_each_connection(site: Site) -> None:
    """A second look-up between check and use could have another answer."""
    site.answers["/a"] = OK
    dns = FakeDns([PUBLIC], [INSIDE])
    downloader = Downloader(
        EgressPolicy(EgressSettings(allow=(PUBLIC,))), redirects=0, resolver=dns
    )
    await fetch(downloader, f"http://x.example:{site.port}/a")
    assert (dns.questions, site.requests) == (1, [(PUBLIC, "/a")])


@pytest.mark.parametrize("order", [[INSIDE, PUBLIC], [PUBLIC, INSIDE]])
async def test_only_the_public_ones_of_several_addresses_are_connected_to(
    site: Site, order: list[str]
) -> None:
    site.answers["/a"] = OK
    await fetch(downloads(order), f"http://x.example:{site.port}/a")
    assert {address for address, _ in site.requests} == {PUBLIC}


@pytest.mark.parametrize(
    "to",
    [
        "http://127.0.0.1:{port}/secret", "//127.0.0.1:{port}/secret", "http://[::1]:{port}/secret",
        "file:///etc/passwd", "http://2130706433:{port}/secret", "http://user@x.example/",
        "gopher://x.example/", "http://x.example\\@127.0.0.1/", "http://[", "",
    ],
)  # fmt: skip
async def test_a_redirect_is_checked_like_the_first_address(site: Site, to: str) -> None:
    site.redirect("/a", to.format(port=site.port))
    with pytest.raises((EgressRefused, DownloadError)):
        await fetch(downloads([PUBLIC], [INSIDE]), f"http://x.example:{site.port}/a")
    assert {address for address, _ in site.requests} == {PUBLIC}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_an_allowed_address_is_followed(site: Site, status: int) -> None:
    site.redirect("/a", "b/c.pdf", status)
    site.answers["/b/c.pdf"] = OK
    assert (await fetch(downloads([PUBLIC]), f"http://x.example:{site.port}/a"))[2] == "c.pdf"


async def test_endless_redirects_end(site: Site) -> None:
    site.redirect("/a", "/a")
    with pytest.raises(DownloadError, match="redirects too often"):
        await fetch(downloads([PUBLIC]), f"http://x.example:{site.port}/a")
    assert len(site.requests) == 4


async def test_an_allowed_name_may_have_any_address_but_may_not_redirect_to_other_names(
    site: Site,
) -> None:
    site.answers["/a"] = OK
    site.redirect("/b", f"http://other.example:{site.port}/a")
    trusting = downloads([INSIDE], allow=("intern.example",))
    assert (await fetch(trusting, f"http://intern.example:{site.port}/a"))[0] == b"hello"
    with pytest.raises(DownloadError, match=NOT_REACHED):
        await fetch(trusting, f"http://intern.example:{site.port}/b")


BAD_ANSWERS = [
    pytest.param(
        b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n",
        "larger than the 1000 bytes",
        id="announces too many bytes",
    ),
    pytest.param(
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 5000, "larger than the 1000 bytes", id="is too large"
    ),
    pytest.param(
        b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 1\r\n\r\nx",
        "compressed",
        id="compressed",
    ),
    pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx", "broke off", id="breaks off"),
    pytest.param(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n", "HTTP 403", id="403"),
    pytest.param(
        b"HTTP/1.1 206 Partial Content\r\ncontent-length: 0\r\n\r\n", "HTTP 206", id="206"
    ),
    pytest.param(
        b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n", "HTTP 302", id="a redirect to nowhere"
    ),
    pytest.param(b"220 smtp ready\r\n", "broke off, or answered", id="not HTTP"),
    pytest.param(
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
        "broke off, or answered",
        id="an endless header",
    ),
    pytest.param(b"", "broke off, or answered", id="nothing"),
]


@pytest.mark.parametrize(("answer", "why"), BAD_ANSWERS)
async def test_a_failed_download_reports_the_reason(site: Site, answer: bytes, why: str) -> None:
    site.answers["/a"] = answer
    with pytest.raises(DownloadError, match=why):
        await fetch(downloads([PUBLIC]), f"http://x.example:{site.port}/a")


async def test_a_port_without_a_server_is_reported(site: Site) -> None:
    with socket.socket() as unused:
        unused.bind((PUBLIC, 0))
        with pytest.raises(DownloadError, match=NOT_REACHED):
            await fetch(downloads([PUBLIC]), f"http://x.example:{unused.getsockname()[1]}/a")


async def test_a_slow_server_is_given_up_after_the_time_limit(site: Site) -> None:
    site.answers["/endless"] = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx"
    with pytest.raises(DownloadError, match="it took too long"):
        await fetch(downloads([PUBLIC]), f"http://x.example:{site.port}/endless", within=0.1)


# Files in a history


def message(*parts: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": list(parts),
    }


def file(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "input_file", "file_url": url, **more}


def rules(**settings: Any) -> EgressPolicy:
    return EgressPolicy(EgressSettings(allow=(PUBLIC,), **settings))


def attachments(memory: int = 10**9, **settings: Any) -> Attachments:
    return Attachments(rules(**settings), FileMemory(memory), FakeDns([PUBLIC]))


async def test_files_in_a_history_are_sent_as_data(site: Site) -> None:
    site.answers["/a.pdf"] = OK
    url = f"http://x.example:{site.port}/a.pdf"
    text = {"type": "input_text", "text": "see"}
    output = {"type": "function_call_output", "call_id": "c", "output": [file(url)]}
    history = [message(text, file(url, filename="mine.pdf")), message(text), output]
    files = attachments()
    whole = await files.inline(await files.fetch(history, 3))
    data = "data:application/pdf;base64,aGVsbG8="
    assert whole == [
        message(text, {"type": "input_file", "filename": "mine.pdf", "file_data": data}),
        message(text),
        {**output, "output": [{"type": "input_file", "filename": "a.pdf", "file_data": data}]},
    ]
    assert history[0]["content"][1]["file_url"] == url, "the stored history was not changed"


async def test_a_history_without_files_is_not_copied() -> None:
    history = [message({"type": "input_text", "text": "x"})]
    assert await attachments().fetch(history, 1) is history


@pytest.mark.parametrize(
    ("own", "param"),
    [
        (2, "input[1].content[1].file_url"),
        (1, "input[0].content[1].file_url"),
        (0, "previous_response_id"),
    ],
)
async def test_a_failed_file_is_named_by_the_clients_own_index(
    site: Site, own: int, param: str
) -> None:
    url = f"http://x.example:{site.port}/none"
    text = {"type": "input_text", "text": "see"}
    with pytest.raises(UpstreamFailed) as failure:
        await attachments().fetch([message(text), message(text, file(url))], own)
    error = failure.value
    assert (error.status, error.param, error.code, error.envelope_code) == (
        400,
        param,
        "invalid_prompt",
        "invalid_value",
    )
    assert (
        error.message
        == f"Failed to download the file from '{url}': its server answered with HTTP 404."
    )


async def test_all_files_of_a_response_share_one_limit(site: Site) -> None:
    site.answers["/a"] = OK
    url = f"http://x.example:{site.port}/a"
    await attachments(file_bytes=10).fetch([message(file(url), file(url))], 1)
    with pytest.raises(UpstreamFailed, match=r"larger than the 4 bytes that are left") as failure:
        await attachments(file_bytes=9).fetch([message(file(url), file(url))], 1)
    assert failure.value.param == "input[0].content[1].file_url"


async def test_a_file_that_was_dropped_for_others_is_fetched_again_when_it_is_sent(
    site: Site,
) -> None:
    site.answers["/a"] = OK
    url = f"http://x.example:{site.port}/a"
    memory = FileMemory(12)
    first, second = (Attachments(rules(file_bytes=5), memory, FakeDns([PUBLIC])) for _ in range(2))
    await first.fetch([message(file(url))], 1)
    await first.hold()
    assert len(site.requests) == 1, "it was still here"
    first.release()
    await second.fetch([message(file(url))], 1)
    await second.hold()  # 5 bytes, and as base64 with their type 40
    second.release()
    assert memory.used <= 12
    before = len(site.requests)
    await first.hold()
    assert len(site.requests) == before + 1
    first.close()
    second.close()
    assert memory.used == 0


async def test_responses_wait_for_each_other_before_they_send_files() -> None:
    memory = FileMemory(10)
    await memory.reserve(8)
    waiting = [asyncio.ensure_future(memory.reserve(size)) for size in (6, 1, 50)]
    await asyncio.sleep(0)
    assert not any(reservation.done() for reservation in waiting), "not out of turn either"
    memory.free(8)
    await asyncio.wait(waiting[:2])
    assert not waiting[2].done()
    memory.free(7)
    await waiting[2]  # more than there is, when nothing else is reserved
    assert memory.used == 50


async def test_a_large_body_is_freed_when_it_was_sent() -> None:
    sent = asyncio.Event()
    content = bytes(1_000_000)
    received = [bytes(piece) async for piece in pieces(content, sent.set)]
    assert b"".join(received) == content
    assert sent.is_set()
