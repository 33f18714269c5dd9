"""No request leaves a worker unless its lease is looked at directly before: whatever sends it, over
a new connection and over one that was open."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from uuid import uuid4

import httpx2
import pytest

from features.retrieval.embedder import Embedder, TextOwner
from models.config.feature_groups import RetrievalSettings
from models.config.groups import EgressSettings, LimitSettings
from models.config.settings import Settings
from models.config.upstream import UpstreamSettings
from models.egress import EgressPolicy
from models.fence import FENCE, RowLease, RowLeaseEnded
from models.projects.routes import ProjectRoutes
from tests.unit.upstream.test_request_sender import BODY, OK, UNAVAILABLE, raw_server
from worker.outbound.guarded_http import AnswerLimits, GuardedTransport
from worker.outbound.guarded_session import NO_TIMEOUT, guarded_session
from worker.upstream.client import Upstream

_EMBEDDED = b'{"data":[{"index":0,"embedding":[1.0,0.0]}]}'
_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(_EMBEDDED),
    _EMBEDDED,
)
_EGRESS = EgressPolicy(EgressSettings(allow=("127.0.0.1",)))

Send = Callable[[], Awaitable[object]]
Sender = Callable[[str], AbstractAsyncContextManager[Send]]


@asynccontextmanager
async def _upstream(url: str) -> AsyncIterator[Upstream]:
    fields = {"base_url": url, "api_key": "secret"}
    upstream = Upstream(UpstreamSettings.model_validate(fields), LimitSettings(), 8)
    yield upstream
    await upstream.close()


@asynccontextmanager
async def _turn(url: str) -> AsyncIterator[Send]:
    async with _upstream(url) as upstream:

        async def send() -> None:
            await upstream.call(BODY).read(lambda _: None)

        yield send


@asynccontextmanager
async def _forwarded(url: str) -> AsyncIterator[Send]:
    async with _upstream(url) as upstream:
        yield lambda: upstream.plain.call("/embeddings", {"model": "m", "input": "x"})


@asynccontextmanager
async def _embedding(url: str) -> AsyncIterator[Send]:
    settings = Settings(
        database_url="postgresql://unused",
        redis_url="redis://unused",
        retrieval=RetrievalSettings(embedding_model="m"),
        upstream=UpstreamSettings(base_url=url),
    )
    embedder = Embedder(settings.retrieval, ProjectRoutes(settings))
    yield lambda: embedder.embed(TextOwner(uuid4(), None), ["x"], "m", None)
    await embedder.close()


@asynccontextmanager
async def _of_mcp(url: str) -> AsyncIterator[Send]:
    transport = GuardedTransport(_EGRESS, connect=5, limits=AnswerLimits(1000, 1000))
    async with httpx2.AsyncClient(transport=transport) as http:
        yield lambda: http.post(url, content=b"{}")


@asynccontextmanager
async def _guarded(url: str) -> AsyncIterator[Send]:
    """As webhooks, web search and downloads send."""

    async def send() -> None:
        target = _EGRESS.check_url(url)
        async with (
            guarded_session(_EGRESS, target, [], headers={}) as session,
            session.post(target.url, data=b"{}", timeout=NO_TIMEOUT) as answer,
        ):
            await answer.read()

    yield send


@pytest.fixture
def asked() -> Iterator[asyncio.Queue[asyncio.Event]]:
    """What a request waits for directly before it is sent."""
    queue: asyncio.Queue[asyncio.Event] = asyncio.Queue()

    async def fence() -> None:
        permitted = asyncio.Event()
        queue.put_nowait(permitted)
        await permitted.wait()

    token = FENCE.set(fence)
    yield queue
    FENCE.reset(token)


@pytest.mark.parametrize(
    ("sender", "answer"),
    [(_turn, OK), (_forwarded, _JSON), (_embedding, _JSON), (_of_mcp, _JSON), (_guarded, _JSON)],
    ids=["turn", "forwarded", "embedding", "mcp", "guarded"],
)
async def test_each_request_passes_the_fence(
    asked: asyncio.Queue[asyncio.Event], sender: Sender, answer: bytes
) -> None:
    async with raw_server(answer, answer) as server, sender(server.url) as send:
        for before in range(2):
            sending = asyncio.ensure_future(send())
            permitted = await asked.get()
            assert len(server.requests) == before
            permitted.set()
            await sending
            assert len(server.requests) == before + 1
        assert asked.empty()


@pytest.mark.parametrize(
    ("sender", "answer"), [(_turn, OK), (_forwarded, _JSON)], ids=["turn", "forwarded"]
)
async def test_a_retry_passes_the_fence_again(
    asked: asyncio.Queue[asyncio.Event], sender: Sender, answer: bytes
) -> None:
    async with raw_server(UNAVAILABLE, answer) as server, sender(server.url) as send:
        sending = asyncio.ensure_future(send())
        for before in range(2):
            permitted = await asked.get()
            assert len(server.requests) == before
            permitted.set()
        await sending


@pytest.mark.parametrize("sender", [_embedding, _guarded])
async def test_nothing_is_sent_after_the_end_of_a_rows_lease(sender: Sender) -> None:
    lease = RowLease(timedelta(seconds=20), time.monotonic() - 20)
    FENCE.set(lease.require)
    async with raw_server(_JSON) as server, sender(server.url) as send:
        with pytest.raises(RowLeaseEnded):
            await send()
        assert server.requests == []
        lease.renew(time.monotonic())
        await send()
        assert len(server.requests) == 1
