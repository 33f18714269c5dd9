"""The neighbour: a client of another project, whose requests are measured while others attack.

A process of its own (`python -m tests.support.neighbour ARGUMENTS`), with an upstream of its own:
what a test does in its event loop delays neither. Requests begin at fixed moments, also while
earlier ones are still open, so a server that stands still for a second is seen by all requests of
that second. It ends after SIGTERM, when all its requests are answered.
"""

import asyncio
import contextlib
import itertools
import json
import signal
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TextIO

import aiohttp

from tests.support.api import Api
from tests.support.embeddings import EMBEDDING_MODEL, embeddings
from tests.support.fake_upstream import FakeUpstream, Script, UpstreamRequest, reply

Kind = Literal["create", "start", "get", "stream", "first_token", "ingest"]
"""`create` and `get` end with the answer, `stream` with the terminal event, `first_token` with the
first delta of a stream, and `start` is the time
from the beginning of a create to the request that its background response sends to the upstream.
`ingest` is the time from the upload of a small file until a vector store has it."""
_REQUESTS: tuple[Kind, ...] = ("create", "get", "stream")
INTERVAL = 1 / 30
"""The usual seconds between the beginnings of two requests."""
MODEL = "neighbour"
_INGEST_EVERY = 30
"""Of so many requests, one is an ingest, if there are ingests."""
_INGEST_LOOK = 0.1
"""Seconds between two looks whether it has ended."""
_BOUNDARY = "neighbour"
_TIMEOUT = 30.0
"""Seconds after which a request counts as never answered."""


@dataclass(frozen=True, slots=True)
class NeighbourArguments:
    """What the process needs."""

    base_urls: list[str]
    """Those of the web processes, with `/v1`; they are used in turn."""
    keys: str
    """A file whose last line is the API key; it is read again for each request."""
    upstream_port: int
    measurements: str
    """The file to which each request's measurement is appended."""
    interval: float = INTERVAL
    """Seconds between the beginnings of two requests."""
    notes_first_token: bool = False
    """Whether the first delta of each stream is a measurement of its own."""
    ingests: bool = False
    """Whether it has a vector store, to which it adds a file now and then."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One request."""

    kind: Kind
    began: float
    """When it had to begin (`time.monotonic()`)."""
    seconds: float
    fault: str | None
    """What is wrong with the answer."""


def read_measurements(path: Path) -> list[Measurement]:
    """The measurements in a file."""
    return [Measurement(**json.loads(line)) for line in path.read_text().splitlines()]


class _Neighbour:
    def __init__(
        self,
        arguments: NeighbourArguments,
        upstream: FakeUpstream,
        session: aiohttp.ClientSession,
        file: TextIO,
    ) -> None:
        self._arguments = arguments
        self._session = session
        self._file = file
        self._urls = itertools.cycle(arguments.base_urls)
        self._jobs: dict[str, asyncio.Future[float]] = {}
        """By input: when the upstream got the request."""
        self._known_id = self._store = ""
        upstream.decide(MODEL, self._answer)
        upstream.decide(EMBEDDING_MODEL, embeddings)

    async def run(self, stopping: asyncio.Event) -> None:
        """Sends requests until `stopping`; returns when all are answered."""
        await self._request("create", time.monotonic(), "first job")
        if self._arguments.ingests:
            api = Api(next(self._urls), self._key(), self._session)
            made = await api.call("POST", "/vector_stores", {"name": "neighbour"})
            self._store = made.body["id"]
        begin = time.monotonic()
        async with asyncio.TaskGroup() as requests:
            for number in itertools.count():
                moment = begin + number * self._arguments.interval
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(_loop_time(moment)):
                        await stopping.wait()
                if stopping.is_set():
                    return
                kind = _REQUESTS[number % len(_REQUESTS)]
                if self._store and number % _INGEST_EVERY == 0:
                    kind = "ingest"
                requests.create_task(self._measure(kind, moment, f"job {moment}"))

    async def _measure(self, kind: Kind, moment: float, name: str) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT):
                await self._request(kind, moment, name)
        except TimeoutError:
            self._write(kind, moment, f"not answered within {_TIMEOUT} s")
        except (AssertionError, aiohttp.ClientError, OSError) as error:
            self._write(kind, moment, repr(error)[:500])

    async def _request(self, kind: Kind, moment: float, name: str) -> None:
        api = Api(next(self._urls), self._key(), self._session)
        match kind:
            case "get":
                shown = await api.get(self._known_id)
                assert shown["status"] != "failed", shown
            case "stream":
                async with api.post_stream(MODEL) as stream:
                    if self._arguments.notes_first_token:
                        await stream.until("response.output_text.delta")
                        self._write("first_token", moment)
                    await stream.to_end()
                    assert stream.final["output_text"] == "Hello, neighbour.", stream.final
            case "ingest":
                await self._ingest(api, name)
            case _:
                self._jobs[name] = asyncio.get_running_loop().create_future()
                self._known_id = await api.create_background(MODEL, input=name)
        self._write(kind, moment)
        if name in self._jobs:
            await self._jobs[name]
            del self._jobs[name]
            self._write("start", moment)

    async def _ingest(self, api: Api, name: str) -> None:
        form = (
            f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nassistants\r\n'
            f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\n'
            f"\r\n{name}\r\n--{_BOUNDARY}--\r\n"
        )
        headers = {"content-type": f"multipart/form-data; boundary={_BOUNDARY}"}
        file = await api.call("POST", "/files", form.encode(), headers=headers)
        assert file.status == 200, file.raw
        files = f"/vector_stores/{self._store}/files"
        added = await api.call("POST", files, {"file_id": file.body["id"]})
        while added.body["status"] == "in_progress":
            await asyncio.sleep(_INGEST_LOOK)
            added = await api.call("GET", f"{files}/{file.body['id']}")
        assert added.body["status"] == "completed", added.body

    def _key(self) -> str:
        return Path(self._arguments.keys).read_text().split()[-1]

    def _answer(self, request: UpstreamRequest) -> Script:
        job = self._jobs.get(request.texts[-1])
        if job is not None and not job.done():
            job.set_result(request.started)
        return reply("Hello, ", "neighbour", ".")

    def _write(self, kind: Kind, moment: float, fault: str | None = None) -> None:
        measurement = Measurement(kind, moment, time.monotonic() - moment, fault)
        print(json.dumps(asdict(measurement)), file=self._file, flush=True)


def _loop_time(moment: float) -> float:
    """A moment of `time.monotonic()` on the clock of the event loop."""
    return asyncio.get_running_loop().time() + moment - time.monotonic()


async def _run(arguments: NeighbourArguments, file: TextIO) -> None:
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with (
        FakeUpstream(port=arguments.upstream_port) as upstream,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        await _Neighbour(arguments, upstream, session, file).run(stopping)


def _main(arguments: NeighbourArguments) -> None:
    with Path(arguments.measurements).open("a") as file:
        asyncio.run(_run(arguments, file))


if __name__ == "__main__":
    _main(NeighbourArguments(**json.loads(sys.argv[1])))
