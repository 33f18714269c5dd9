"""REDIS_URL with `rediss://`: connections are encrypted, and the certificate is checked."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from cli.embedded.process import ServerProcess, free_port
from tests.conftest import PrivateStack
from tests.support.certificates import self_signed
from tests.support.fake_upstream import FakeUpstream, reply

pytestmark = pytest.mark.long


class TlsRedis(ServerProcess):
    """The system's Redis, which listens with TLS only. Skips the test if it is not installed."""

    def __init__(self, folder: Path) -> None:
        super().__init__("redis", folder / "redis.log")
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("Redis is not installed (apt-get install redis-server)")
        certificate = self_signed(folder / "certificate")
        port = free_port()
        self.command = [
            *(program, "--bind", "127.0.0.1", "--port", "0", "--tls-port", str(port)),
            *("--tls-cert-file", str(certificate.file), "--tls-key-file", str(certificate.key)),
            *("--tls-auth-clients", "no", "--requirepass", "secret", "--dir", str(folder)),
        ]
        self.url = (
            f"rediss://:secret@127.0.0.1:{port}/0"
            f"?ssl_cert_reqs=required&ssl_ca_certs={certificate.file}"
        )

    def is_ready(self) -> bool:
        try:
            with redis.Redis.from_url(self.url) as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False


@pytest.fixture
def tls_redis(tmp_path: Path) -> Iterator[TlsRedis]:
    with TlsRedis(tmp_path) as running:
        yield running


async def test_messages_and_events_go_through_tls(
    tls_redis: TlsRedis, private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(settings={"REDIS_URL": tls_redis.url}) as own_stack:
        api, started_at = own_stack.api(), time.monotonic()
        created = await api.create_background(fake.script(reply("woken")))
        assert (await api.wait_for_end(created))["output_text"] == "woken"
        assert time.monotonic() - started_at < 4, "started by a message, not by a sweep"
        assert (await own_stack.readyz())["redis"] == "ok"
        async with api.post_stream(fake.script(reply("streamed"))) as stream:
            await stream.to_end()
        assert stream.final["output_text"] == "streamed"
