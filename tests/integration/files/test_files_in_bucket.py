"""Files in a bucket, over HTTP: they are stored and read, and a server that fails is an answer."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from cli.configuration.deployment_warnings import storage_warnings
from features.files.web import StorageState
from models.files.s3_storage import S3Storage
from models.files.storage import StorageError
from tests.conftest import PrivateStack
from tests.support.api import Api, until
from tests.support.batches import line, results, start, until_status
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.s3_server import SECRET_KEY, Bucket, S3Server
from tests.support.stack import Service, Stack
from tests.support.worker_rows import settings_for

MIB = 1024 * 1024
BOUNDARY = "form"
HEAD = (
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.bin"\r\n\r\n'
).encode()
TAIL = f"\r\n--{BOUNDARY}--\r\n".encode()


@asynccontextmanager
async def web_with(stack: Stack, bucket: Bucket) -> AsyncIterator[Service]:
    """One more web process of the deployment, which stores files in the bucket."""
    before = dict(stack.settings)
    stack.settings |= bucket.environment()
    try:
        web = await stack.start_web()
    finally:
        stack.settings.clear()
        stack.settings |= before
    try:
        yield web
    finally:
        stack.forget(web)
        web.stop()


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server that the tests of this file may stop. Each leaves it running."""
    with S3Server(tmp_path_factory.mktemp("own-s3")) as server:
        yield server


@pytest.fixture(scope="module")
def bucket(own_server: S3Server) -> Bucket:
    return own_server.create_bucket()


@pytest.fixture(scope="module")
async def web(shared_stack: Stack, bucket: Bucket) -> AsyncIterator[Service]:
    async with web_with(shared_stack, bucket) as process:
        yield process


@pytest.fixture
def client(shared_stack: Stack, web: Service) -> openai.AsyncOpenAI:
    return shared_stack.openai(shared_stack.webs.index(web))


@pytest.fixture
def api(shared_stack: Stack, web: Service) -> Api:
    return shared_stack.api(web)


class Upload:
    """A file that is being uploaded, without an announced length."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()
        self.answer = asyncio.ensure_future(self._send())

    def send(self, data: bytes) -> None:
        """The next bytes; none: the end."""
        self._pieces.put_nowait(data)

    async def _send(self) -> tuple[int, Mapping[str, str], dict[str, Any]]:
        async with self._api.session.post(
            f"{self._api.base_url}/files",
            data=self._body(),
            headers={
                "authorization": f"Bearer {self._api.key}",
                "content-type": f"multipart/form-data; boundary={BOUNDARY}",
            },
        ) as answer:
            return answer.status, answer.headers, await answer.json()

    async def _body(self) -> AsyncIterator[bytes]:
        yield HEAD
        while piece := await self._pieces.get():
            yield piece
        yield TAIL


async def test_a_file_is_stored_in_the_bucket_read_and_listed(
    client: openai.AsyncOpenAI, bucket: Bucket, api: Api
) -> None:
    content = os.urandom(12 * MIB + 5)
    before = bucket.objects()
    file = await client.files.create(file=("a.bin", content), purpose="user_data")
    assert len(bucket.objects() - before) == 1
    assert not bucket.uploads()
    assert (await client.files.content(file.id)).content == content
    headers = {"authorization": f"Bearer {api.key}", "range": f"bytes={5 * MIB - 2}-{5 * MIB + 1}"}
    url = f"{api.base_url}/files/{file.id}/content"
    async with api.session.get(url, headers=headers) as answer:
        assert answer.status == 206
        assert await answer.read() == content[5 * MIB - 2 : 5 * MIB + 2]
    assert (await client.files.delete(file.id)).deleted
    async with api.session.get(f"{api.base_url.removesuffix('/v1')}/readyz") as answer:
        assert (await answer.json())["files"] == "ok"


async def test_an_upload_that_breaks_off_leaves_nothing(api: Api, bucket: Bucket) -> None:
    before = bucket.objects()
    upload = Upload(api)
    upload.send(bytes(6 * MIB))
    await until(bucket.uploads)
    upload.answer.cancel()
    await until(lambda: not bucket.uploads())
    assert bucket.objects() == before


async def test_an_upload_of_a_killed_process_is_aborted_by_the_purge(
    shared_stack: Stack, own_server: S3Server
) -> None:
    bucket = own_server.create_bucket()
    async with web_with(shared_stack, bucket) as process:
        upload = Upload(shared_stack.api(process))
        upload.send(bytes(6 * MIB))
        [key] = await until(bucket.uploads)
        process.kill()
        with pytest.raises(aiohttp.ClientError):
            await upload.answer
    part = key.rpartition("/")[2]
    # Its writer may be alive for all that the purge knows, until an upload must be over.
    assert await shared_stack.value("SELECT bytes IS NULL FROM file_parts WHERE id = %s", part)
    await S3Storage(bucket.settings()).discard(key.removeprefix("files/"))
    assert not bucket.uploads()


async def test_a_server_that_stops_is_a_clear_answer_and_no_lasting_harm(
    client: openai.AsyncOpenAI, api: Api, bucket: Bucket, own_server: S3Server, web: Service
) -> None:
    file = await client.files.create(file=("a.bin", bytes(32 * MIB)), purpose="user_data")
    upload = Upload(api)
    upload.send(bytes(6 * MIB))
    await until(bucket.uploads)
    url = f"{api.base_url}/files/{file.id}/content"
    headers = {"authorization": f"Bearer {api.key}"}
    async with api.session.get(url, headers=headers) as download:
        await download.content.readexactly(1000)
        own_server.kill()
        with pytest.raises(aiohttp.ClientPayloadError):
            await download.read()
    upload.send(bytes(6 * MIB))
    upload.send(b"")
    status, given, body = await upload.answer
    assert (status, body["error"]["code"], given["retry-after"]) == (503, "server_error", "1")
    assert (await api.call("GET", f"/files/{file.id}/content")).status == 503
    log = web.log.read_text()
    assert "does not answer" in log
    assert SECRET_KEY not in log
    own_server.start()
    await until(lambda: _is_stored(client))
    assert len((await client.files.content(file.id)).content) == 32 * MIB


async def _is_stored(client: openai.AsyncOpenAI) -> bool:
    try:
        return bool(await client.files.create(file=("a.txt", b"text"), purpose="user_data"))
    except openai.InternalServerError:
        return False


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"access_key": "unknown-key"}, "the server does not know the access key"),
        ({"secret_key": "another-secret"}, "the secret key is wrong"),
        ({"bucket": "no-such-bucket"}, "there is no such bucket"),
        ({"endpoint": "http://127.0.0.1:1"}, "the server does not answer"),
    ],
    ids=["key", "secret", "bucket", "address"],
)
async def test_a_wrong_setting_is_named_in_one_line(
    own_server: S3Server, changes: dict[str, str], reason: str
) -> None:
    bucket = own_server.create_bucket()
    storage = S3Storage(bucket.settings(**changes))
    uses = (
        storage.check(),
        storage.write("ab/c", _bytes(1)),
        storage.write("ab/c", _bytes(6 * MIB)),
        anext(storage.read("ab/c", 0, 1)),
        storage.delete("ab/c"),
        storage.discard("ab/c"),
    )
    for use in uses:
        with pytest.raises(StorageError, match=reason) as caught:
            await use
        assert "secret" not in str(caught.value).replace("the secret key is wrong", "")
        assert "\n" not in str(caught.value)
    assert reason in await StorageState(storage).show()
    await storage.close()
    settings = settings_for("postgresql://nowhere/x").model_copy(
        update={"s3": bucket.settings(**changes)}
    )
    [warning] = await asyncio.to_thread(storage_warnings, settings)
    assert reason in warning
    assert not bucket.objects()


async def test_the_check_of_a_good_bucket_leaves_nothing(bucket: Bucket) -> None:
    before = bucket.objects()
    settings = settings_for("postgresql://nowhere/x").model_copy(update={"s3": bucket.settings()})
    assert await asyncio.to_thread(storage_warnings, settings) == []
    assert bucket.objects() == before


async def test_a_download_goes_on_after_the_server_was_restarted(own_server: S3Server) -> None:
    storage = S3Storage(own_server.create_bucket().settings())
    content = os.urandom(32 * MIB)
    await storage.write("ab/c", _bytes_of(content))
    async with aclosing(storage.read("ab/c", 7, len(content) - 7)) as chunks:
        received = await anext(chunks)
        own_server.kill()
        own_server.start()
        async for chunk in chunks:
            received += chunk
    assert received == content[7:]
    await storage.close()


@pytest.mark.long
async def test_a_server_that_hangs_holds_up_one_request_only(own_server: S3Server) -> None:
    storage = S3Storage(own_server.create_bucket().settings(timeout="1s"))
    await storage.check()
    os.kill(own_server.pid, signal.SIGSTOP)
    try:
        waited = await asyncio.gather(*(_seconds_until_refused(storage) for _ in range(40)))
    finally:
        os.kill(own_server.pid, signal.SIGCONT)
    # Three tries of the sixteen that begin together; the others are not sent.
    assert max(waited) < 15
    await until(lambda: _has_written(storage))
    await storage.close()


async def _seconds_until_refused(storage: S3Storage) -> float:
    began = asyncio.get_running_loop().time()
    with pytest.raises(StorageError, match="the server does not answer"):
        await storage.write("ab/c", _bytes(1))
    return asyncio.get_running_loop().time() - began


async def _has_written(storage: S3Storage) -> bool:
    with suppress(StorageError):
        return await storage.write("ab/c", _bytes(1)) == 1
    return False


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_files_and_batches_live_in_a_bucket(
    private_stack: PrivateStack, own_server: S3Server, fake: FakeUpstream
) -> None:
    bucket = own_server.create_bucket()
    async with private_stack(webs=1, workers=1, settings=bucket.environment()) as own_stack:
        client = own_stack.openai()
        await client.files.create(file=("a.bin", bytes(6 * MIB)), purpose="user_data")
        before = _peak(own_stack.webs[0].pid)
        upload = Upload(own_stack.api())
        for _ in range(500):
            upload.send(os.urandom(MIB))
        upload.send(b"")
        status, _, body = await upload.answer
        assert (status, body["bytes"]) == (200, 500 * MIB)
        grown = _peak(own_stack.webs[0].pid) - before
        print(f"500 MiB: {grown / MIB:.1f} MiB more memory")
        assert grown < 40 * MIB

        names = [f"request-{number}" for number in range(400)]
        model = fake.script(reply("yes"))
        batch = await start(client, [line(name, model) for name in names])
        await until(lambda: own_stack.value("SELECT id FROM responses LIMIT 1"))
        killed = own_stack.workers[0]
        own_stack.forget(killed)
        killed.kill()
        await own_stack.start_worker()
        batch = await until_status(client, batch, "completed")
        assert sorted(await results(client, batch.output_file_id)) == sorted(names)
        assert not bucket.uploads()
        assert not (own_stack.folder / "files").exists()


def _peak(pid: int) -> int:
    """The largest resident memory until now, in bytes; the next call begins anew."""
    status = Path(f"/proc/{pid}/status").read_text()
    [peak] = re.findall(r"VmHWM:\s+(\d+) kB", status)
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return int(peak) * 1024


async def _bytes_of(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _bytes(count: int) -> AsyncIterator[bytes]:
    yield bytes(count)
