"""nginx and Caddy with TLS in front, configured as docs/deploy.md shows: nothing is held back."""

import asyncio
import dataclasses
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.api import Api
from tests.support.certificates import Certificate, self_signed
from tests.support.console import OPERATOR_TOKEN, ConsoleUser
from tests.support.fake_upstream import FakeUpstream, reply, text, wait_for
from tests.support.reverse_proxies import Caddy, Nginx, ReverseProxy
from tests.support.stack import Stack
from tests.support.websocket_client import socket


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return self_signed(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def trusting(certificate: Certificate) -> ssl.SSLContext:
    """What a client needs to accept the certificate."""
    return ssl.create_default_context(cafile=certificate.file)


@pytest.fixture(params=[Nginx, Caddy])
async def proxied(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    shared_stack: Stack,
    certificate: Certificate,
    trusting: ssl.SSLContext,
) -> AsyncIterator[Api]:
    """A client that reaches both web processes of the shared deployment through the proxy."""
    proxy: ReverseProxy = request.param(
        tmp_path / "proxy", certificate, [web.port for web in shared_stack.webs]
    )
    await asyncio.to_thread(proxy.start)
    connector = aiohttp.TCPConnector(ssl=trusting)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield dataclasses.replace(shared_stack.api(), base_url=proxy.base_url, session=session)
    await asyncio.to_thread(proxy.stop)


async def test_events_are_not_held_back_and_other_pages_are_not_forwarded(
    proxied: Api, fake: FakeUpstream
) -> None:
    """A stream, its resumption, a foreground answer, and one path that is not the API's."""
    released = asyncio.Event()
    model = fake.script([text("first "), wait_for(released), *reply("second")])
    async with proxied.post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        async with proxied.follow(stream.response_id) as resumed:
            await resumed.until("response.output_text.delta")
            released.set()
            assert (await resumed.to_end())[-1] == (await stream.to_end())[-1]
    assert stream.final["output_text"] == "first second"
    assert (await proxied.create(fake.script(reply("fine"))))["output_text"] == "fine"
    outside = dataclasses.replace(proxied, base_url=proxied.base_url.removesuffix("/v1"))
    assert (await outside.call("GET", "/readyz")).status == 404


async def test_an_operator_logs_in_to_the_console(proxied: Api) -> None:
    """By a cookie that is bound to https and this host."""
    # As browsers do on https.
    headers = {"sec-fetch-site": "same-origin"}
    console = ConsoleUser(proxied.base_url.removesuffix("/v1"), proxied.session, headers)
    page = await console.log_in(OPERATOR_TOKEN)
    assert (page.status, "Overview" in page.text) == (200, True)
    cookies = {each.key: each for each in proxied.session.cookie_jar}
    assert cookies["__Host-backburner-console"]["secure"] is True
    assert (await console.get("/console/responses")).status == 200


async def test_a_websocket_passes(
    proxied: Api, fake: FakeUpstream, trusting: ssl.SSLContext
) -> None:
    """Two responses over one connection."""
    async with socket(proxied, ssl=trusting) as connection:
        for word in ("one", "two"):
            model = fake.script(reply(word))
            answer = await connection.create_and_read(model)
            assert answer["output_text"] == word
