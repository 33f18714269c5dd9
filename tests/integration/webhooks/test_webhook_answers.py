"""What endpoints of webhooks do wrong: none of it holds up a worker or fills its memory, and
nothing of an answer is kept."""

import asyncio
import gzip
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from features.webhooks.events import new_secret, seal_secrets
from features.webhooks.queries import Delivery
from features.webhooks.sender import DeliveryOutcome, send
from features.webhooks.worker import Deliverer
from models.config.feature_groups import WebhookSettings
from models.config.groups import EgressSettings
from models.egress import EgressPolicy
from models.fence import RowLease, RowLeaseEnded
from models.ids import new_uuid
from models.projects.policy import SERVER_EGRESS
from models.secrets import Sealer

TIME_LIMIT = 0.25
MAX_BYTES = 8 * 1024 * 1024
"""What a receiver can send before it is not read any more: buffers of the two sockets."""
MARK = b"text-of-the-receiver"
OK = b"HTTP/1.1 200 OK\r\n"
SEALER = Sealer([b"k" * 32])
LOCAL = EgressPolicy(EgressSettings(allow=("127.0.0.0/8",)))

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class RawReceiver:
    """What has reached a receiver that writes any bytes."""

    url: str = ""
    requests: int = 0
    sent: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def raw_receiver(answer: Answer) -> AsyncIterator[RawReceiver]:
    receiver = RawReceiver()
    running: list[asyncio.Task[Any]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        receiver.requests += 1
        if (task := asyncio.current_task()) is not None:
            running.append(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                write = writer.write

                def counted(data: bytes) -> None:
                    receiver.sent += len(data)
                    write(data)

                writer.write = counted  # type: ignore[assignment, method-assign]
                await answer(writer)
            writer.close()
        except asyncio.CancelledError:
            writer.transport.abort()
        receiver.done.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()[:2]
    receiver.url = f"http://{host}:{port}/hook"
    async with server:
        yield receiver
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def answers(*parts: bytes) -> Answer:
    """Writes these bytes, then closes."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()

    return answer


def endless(first: bytes, part: bytes, pause: float = 0.0) -> Answer:
    """Writes `part` again and again, until nobody reads it."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while True:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause)

    return answer


async def hang(_writer: asyncio.StreamWriter) -> None:
    """Never answers."""
    await asyncio.Event().wait()


BOMB = gzip.compress(b"\0" * 50_000_000)
SLOW = f"did not answer within {TIME_LIMIT} s"
BROKEN = "broke off before it answered"
FAULTS: list[tuple[str, Answer, DeliveryOutcome]] = [
    ("hangs", hang, DeliveryOutcome(error=SLOW)),
    ("dribbles its head", endless(OK, b"x", 0.02), DeliveryOutcome(error=SLOW)),
    ("begins and hangs", endless(OK, b"", 0.1), DeliveryOutcome(error=SLOW)),
    ("promises an answer for ever", endless(b"", b"HTTP/1.1 103 Early\r\n\r\n"), DeliveryOutcome()),
    ("closes", answers(), DeliveryOutcome(error=BROKEN)),
    ("closes in its head", answers(OK), DeliveryOutcome(error=BROKEN)),
    ("speaks no HTTP", answers(b"SSH-2.0-", MARK, b"\r\n\r\n"), DeliveryOutcome(error=BROKEN)),
    (
        "has an endless head",
        endless(OK, b"x-a: " + MARK * 50 + b"\r\n"),
        DeliveryOutcome(error=BROKEN),
    ),
    ("has an endless line", endless(OK, MARK * 1000), DeliveryOutcome(error=BROKEN)),
    ("has an endless body", endless(OK + b"\r\n", MARK * 1000), DeliveryOutcome(200)),
    (
        "has a bomb as body",
        answers(OK + b"content-encoding: gzip\r\n\r\n", BOMB * 20),
        DeliveryOutcome(200),
    ),
    (
        "redirects",
        answers(b"HTTP/1.1 307 X\r\nlocation: /else\r\ncontent-length: 0\r\n\r\n"),
        DeliveryOutcome(307),
    ),
    (
        "names a date",
        answers(b"HTTP/1.1 429 X\r\nretry-after: Fri, 01 Jan 2100 00:00:00 GMT\r\n\r\n", MARK),
        DeliveryOutcome(429, retry_after=1.0),
    ),
    ("is gone", answers(b"HTTP/1.1 410 " + MARK + b"\r\n\r\n", MARK), DeliveryOutcome(410)),
]


def delivery_to(url: str) -> Delivery:
    sealed = seal_secrets(SEALER, endpoint := new_uuid(), [new_secret()])
    return Delivery(
        id=new_uuid(),
        attempts=1,
        event_id=new_uuid(),
        type="response.completed",
        object_id="resp_1",
        created_at=datetime.now(UTC),
        endpoint_id=endpoint,
        project_id=new_uuid(),
        url=url,
        secret_key_id=sealed.key_id,
        secrets=sealed.sealed,
        has_old_secret=False,
    )


@pytest.mark.parametrize(
    ("answer", "outcome"), [case[1:] for case in FAULTS], ids=[c[0] for c in FAULTS]
)
async def test_a_receiver_that(answer: Answer, outcome: DeliveryOutcome) -> None:
    async with raw_receiver(answer) as receiver:
        delivery = delivery_to(receiver.url)
        got = await send(delivery, SEALER, LOCAL, TIME_LIMIT)
        assert got.status == outcome.status
        if outcome.error is not None:
            assert got.error == outcome.error
        assert got.is_delivered == (outcome.status == 200)
        assert (got.retry_after is None) == (outcome.retry_after is None)
        assert MARK.decode() not in repr(got)
        assert receiver.requests == 1
        assert receiver.sent < MAX_BYTES


@pytest.mark.parametrize("frozen", [0, 30])
async def test_a_delivery_whose_lease_has_ended_is_not_sent_and_has_no_result(
    monkeypatch: pytest.MonkeyPatch, frozen: int
) -> None:
    """The worker was frozen for so many seconds between taking it and sending it."""
    results: list[DeliveryOutcome] = []

    async def store(_: Deliverer, __: Delivery, outcome: DeliveryOutcome) -> None:
        results.append(outcome)

    async def policy(_: UUID) -> SimpleNamespace:
        return SimpleNamespace(egress=SERVER_EGRESS)

    monkeypatch.setattr(Deliverer, "_store", store)
    policies: Any = SimpleNamespace(policy=policy)
    no_pool: Any = None
    deliverer = Deliverer(WebhookSettings(), no_pool, SEALER, LOCAL, policies)
    lease = RowLease(timedelta(seconds=30), time.monotonic() - frozen)
    async with raw_receiver(answers(OK, b"content-length: 0\r\n\r\n")) as receiver:
        with suppress(RowLeaseEnded):
            await asyncio.create_task(deliverer._deliver(delivery_to(receiver.url), lease))
        assert (receiver.sent > 0, len(results)) == ((False, 0) if frozen else (True, 1))
