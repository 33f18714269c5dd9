"""Every write whose answer is lost, done or not done: the outcome that docs/guarantees.md states, one test a row of its table.

A proxy on the Postgres wire loses the answer to the one statement concerned (`DONE`), or keeps that statement from the server
(`NEVER`). Whoever sent it sees the same in both cases: the end of the connection.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
import pytest

from models.db.database import DATABASE_UNAVAILABLE, connect_sync, fetch, open_pool
from models.db.queries import claim as claim_queries
from models.db.queries import create as create_queries
from models.db.queries import end as end_queries
from models.db.queries import leases
from models.db.queries import read as read_queries
from models.ids import new_uuid
from models.lifecycle import TERMINAL, Status
from models.ownership.lease import Lease
from models.wire.events import split_frames
from tests.support.api import Api, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.chaos.proxy import Proxy, Statements
from tests.support.chaos.step_worker import StepRun, StepWorker
from tests.support.fake_upstream import FakeUpstream, hang, reply, text
from tests.support.sql import run_sql
from tests.support.stack import RUNNING_STACKS, Databases, Service, Stack, SuiteSettings, stack
from tests.support.worker_rows import SeededDatabase, settings_for

DONE, NEVER = "done", "never"
both_kinds = pytest.mark.parametrize("kind", [DONE, NEVER])


def lose(proxy: Proxy, words: bytes, kind: str) -> None:
    """The next statement with these words gets no answer."""
    if kind == DONE:
        proxy.hold_answer(words).lose()
    else:
        proxy.drop_request(words)


# --- one statement at a time ---


class Unsure:
    """A worker whose way to Postgres goes through a proxy; everybody else's does not."""

    def __init__(self, house: SeededDatabase, proxy: Proxy, hand: StepWorker) -> None:
        self.house = house
        self.proxy = proxy
        self.hand = hand

    async def telling(self, *, words: str = "Hello.") -> StepRun:
        """A response that it runs, and of which something was said and stored."""
        telling = await self.hand.claim(await self.house.create_response())
        assert telling is not None
        self.hand.append_delta(telling, words)
        await self.hand.write_journal()
        return telling

    async def numbers(self, name: UUID) -> list[int]:
        """The numbers of its event log, frame by frame."""
        rows = await fetch(self.house.pool, claim_queries.LOG_SINCE, {"id": name, "after": -1})
        return [
            number for row in rows for number, _ in enumerate(split_frames(row.frames), row.first)
        ]

    async def items(self, name: UUID) -> list[str]:
        return [
            item["type"]
            for item in await fetch(self.house.pool, read_queries.OUTPUT_ITEMS, {"id": name})
        ]

    async def mine(self) -> list[leases.OwnedResponse]:
        """What its next heartbeat will find."""
        return await fetch(self.house.pool, leases.OWNED_RESPONSES, {"me": self.hand.id})


@pytest.fixture(scope="module")
async def house(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    dsn = await database_server.create_copy()
    pool = open_pool(settings_for(dsn), "unclear-commits", 4)
    await pool.open(wait=True)
    house = SeededDatabase(pool, dsn)
    await house.create_project()
    yield house
    await pool.close()


@pytest.fixture
async def unsure(house: SeededDatabase) -> AsyncIterator[Unsure]:
    parts = urlsplit(house.dsn)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = Proxy(parts.hostname, parts.port, new_parser=Statements)
    settings = settings_for(proxy.url(house.dsn))
    pool = open_pool(settings, "unsure", 2)
    await pool.open(wait=True)
    numbers = itertools.count(1)
    hand = StepWorker(pool, settings, lambda prefix: f"{prefix}_{next(numbers)}")
    await house.register(hand)
    yield Unsure(house, proxy, hand)
    if hand.journal_writer.batch_writer.connection is not None:
        await hand.journal_writer.batch_writer.connection.close()
    await pool.close()
    await proxy.close()


@both_kinds
async def test_claim(unsure: Unsure, kind: str) -> None:
    name = await unsure.house.create_response()
    lose(unsure.proxy, b"attempt = r.attempt + 1", kind)
    with pytest.raises(DATABASE_UNAVAILABLE):
        await unsure.hand.ownership.take(name)
    assert [row.id for row in await unsure.mine()] == [name] * (kind == DONE)
    for row in await unsure.mine():
        await unsure.hand.ownership.release_unknown(name, row.attempt)
    claim = await (await unsure.house.create_worker()).ownership.take(name)
    assert claim is not None
    assert (claim.attempt, claim.row.crashes) == (2 if kind == DONE else 1, 0), (
        "no death is counted"
    )


@both_kinds
async def test_take_over(unsure: Unsure, kind: str) -> None:
    owner = await unsure.house.create_worker()
    name = await unsure.house.create_response()
    assert await owner.ownership.take(name) is not None
    await owner.journal(1, name, 1, 2, 5)
    await unsure.house.declare_dead(owner)
    lose(unsure.proxy, b"COMMIT", kind)
    with pytest.raises(DATABASE_UNAVAILABLE):
        await unsure.hand.ownership.take(name)
    assert await unsure.numbers(name) == list(range(6 if kind == DONE else 2)), (
        "adopted with the claim, or not at all"
    )
    standing = await unsure.house.response_row(name)
    assert standing["worker"] == (unsure.hand.id if kind == DONE else owner.id)
    for row in await unsure.mine():
        await unsure.hand.ownership.release_unknown(name, row.attempt)
    claim = await (await unsure.house.create_worker()).ownership.take(name)
    assert claim is not None
    assert (claim.attempt, claim.row.crashes, claim.log_end) == (3 if kind == DONE else 2, 1, 5)
    assert await unsure.numbers(name) == list(range(6))


@both_kinds
async def test_journal(unsure: Unsure, kind: str) -> None:
    telling = await unsure.telling()
    unsure.hand.append_delta(telling, "More.")
    unsure.hand.bus.pending.clear()
    lose(unsure.proxy, b"INSERT INTO journal", kind)
    await unsure.hand.write_journal()
    question = "SELECT batch, first_numbers FROM journal WHERE worker = %(me)s AND batch > 0 ORDER BY batch"
    stored = await run_sql(unsure.house.pool, question, {"me": unsure.hand.id})
    assert [row["batch"] for row in stored] == [1, 2]
    assert len(unsure.hand.bus.pending) == 1, "shown once, after it was known to be stored"


@both_kinds
async def test_flush(unsure: Unsure, kind: str) -> None:
    telling = await unsure.telling()
    last = telling.log.next_number - 1
    lose(unsure.proxy, b"flushed_batch", kind)
    await unsure.hand.flush_all()
    assert await unsure.numbers(telling.claim.id) == list(range(last + 1))
    assert not telling.log.tail


@both_kinds
async def test_checkpoint(unsure: Unsure, kind: str) -> None:
    telling = await unsure.telling()
    lose(unsure.proxy, b"checkpoint_number = ", kind)
    await unsure.hand.checkpoint(telling)
    standing = await unsure.house.response_row(telling.claim.id)
    assert (standing["turns"], standing["checkpoint_number"]) == (1, telling.log.next_number - 1)
    assert await unsure.items(telling.claim.id) == ["message"]
    assert await unsure.numbers(telling.claim.id) == list(range(telling.log.next_number))


@both_kinds
@pytest.mark.parametrize("status", sorted(TERMINAL))
async def test_finish(unsure: Unsure, status: Status, kind: str) -> None:
    telling = await unsure.telling()
    lose(unsure.proxy, f"SET status = '{status}'".encode(), kind)
    assert await unsure.hand.finish(telling, status, send_twice=False) is status
    standing = await unsure.house.response_row(telling.claim.id)
    assert (standing["status"], standing["worker"]) == (status, None)
    numbers = await unsure.numbers(telling.claim.id)
    assert numbers == list(range(len(numbers)))
    assert await unsure.items(telling.claim.id) == ["message"]


@both_kinds
async def test_finish_while_a_cancel_is_recorded(unsure: Unsure, kind: str) -> None:
    """Whichever came first counts: an ending that is done stands, one that never was gives way to the cancel."""
    telling = await unsure.telling()
    lose(unsure.proxy, b"SET status = 'completed'", kind)
    ending = asyncio.ensure_future(unsure.hand.finish(telling, Status.COMPLETED, send_twice=False))
    if kind == NEVER:
        await until(lambda: not unsure.proxy._dropped_patterns)
        assert await fetch(unsure.house.pool, end_queries.REQUEST_CANCEL, {"id": telling.claim.id})
    ended = await ending
    late = await fetch(unsure.house.pool, end_queries.REQUEST_CANCEL, {"id": telling.claim.id})
    assert late == []
    assert ended is (Status.COMPLETED if kind == DONE else Status.CANCELLED)
    assert (await unsure.house.response_row(telling.claim.id))["status"] == ended


@both_kinds
async def test_release(unsure: Unsure, kind: str) -> None:
    """The hand-over of a stopping worker."""
    telling = await unsure.telling()
    last = telling.log.next_number - 1
    lose(unsure.proxy, b"SET worker = NULL, enqueue_count", kind)
    await unsure.hand.hand_over(telling)
    claim = await (await unsure.house.create_worker()).ownership.take(telling.claim.id)
    assert claim is not None
    assert (claim.attempt, claim.row.crashes, claim.log_end) == (2, 0, last)


@both_kinds
async def test_register(unsure: Unsure, kind: str) -> None:
    """The process ends and is started anew, with a new id; the row that may be there owns nothing and runs out."""
    lease = Lease(settings_for(unsure.proxy.url(unsure.house.dsn)), "worker")
    lose(unsure.proxy, b"INSERT INTO workers", kind)

    def register() -> None:
        with pytest.raises(psycopg.OperationalError):
            lease.register()

    await _beside(register)
    rows = await run_sql(
        unsure.house.pool, "SELECT dead FROM workers WHERE id = %(id)s", {"id": lease.id}
    )
    assert [row["dead"] for row in rows] == [False] * (kind == DONE)


@both_kinds
async def test_renew(unsure: Unsure, kind: str) -> None:
    settings = settings_for(unsure.proxy.url(unsure.house.dsn))
    lease = unsure.hand.lease
    lose(unsure.proxy, b"SET expires_at", kind)

    def beat() -> None:
        with connect_sync(settings, "beat") as connection, pytest.raises(psycopg.OperationalError):
            lease._renew(connection)
        with connect_sync(settings, "beat") as connection:
            lease._renew(connection)

    await _beside(beat)
    assert lease.is_fresh


async def _beside(work: Callable[[], None]) -> None:
    """In a thread, as the heartbeat: the proxy needs this loop."""
    await asyncio.to_thread(work)


# --- through the running product ---

SETTINGS = {
    "BACKBURNER_LEASE__BEAT": "0.5",
    "BACKBURNER_LEASE__SWEEP": "0.5",
    "BACKBURNER_LEASE__RING_INTERVAL": "1",
}
"""The leases themselves are as long as by default: nobody is to be declared dead here."""


@pytest.fixture(scope="module")
async def product(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    folder = tmp_path_factory.mktemp("unclear")
    async with stack(
        folder,
        database_server,
        suite_settings,
        fake,
        settings=SETTINGS,
        proxied=True,
        allowed_tracebacks=("psycopg.",),
    ) as one:
        yield one
    RUNNING_STACKS.remove(one)


@pytest.fixture
def web(product: Stack) -> Service:
    return product.webs[0]


@pytest.fixture
def worker(product: Stack) -> Service:
    return product.workers[0]


@both_kinds
async def test_intake_answers_200_once_it_is_back(
    product: Stack, web: Service, fake: FakeUpstream, kind: str
) -> None:
    model = fake.script(reply("once"))
    lose(web.proxies.postgres, b"INSERT INTO responses", kind)
    assert (await product.api().wait_for_end(await product.api().create_background(model)))[
        "output_text"
    ] == "once"
    assert len(fake.requests_for(model)) == 1
    assert await product.value("SELECT count(*) FROM responses WHERE model = %s", model) == 1


@both_kinds
@pytest.mark.parametrize("in_conversation", [False, True])
async def test_intake_of_a_remembered_answer(
    product: Stack, web: Service, fake: FakeUpstream, kind: str, *, in_conversation: bool
) -> None:
    """Stored by a transaction of two statements: once, whatever became of its COMMIT's answer."""
    api, model = product.api(), fake.script(reply("once"))
    conversation = (
        (await api.call("POST", "/conversations", {})).body["id"] if in_conversation else None
    )
    await api.create(model, cache=True)
    unclear = web.log.read_text().count("create_outcome_unknown")
    lose(web.proxies.postgres, b"COMMIT", kind)
    hit = await api.create(model, cache=True, conversation=conversation)
    assert web.log.read_text().count("create_outcome_unknown") == unclear + 1
    assert await api.get(hit["id"]) == hit
    assert len(fake.requests_for(model)) == 1
    assert await product.value("SELECT count(*) FROM responses WHERE model = %s", model) == 2
    if in_conversation:
        items = (await api.call("GET", f"/conversations/{conversation}/items")).body["data"]
        assert [item["content"][0]["text"] for item in items] == ["once", "Hello."]


@both_kinds
async def test_intake_that_answered_503_never_runs(
    product: Stack, web: Service, fake: FakeUpstream, kind: str
) -> None:
    """Not before its outcome is clear, while sweeps go on, and not after."""
    api, wire = product.api(), web.proxies.postgres
    model, other = fake.script(reply("never")), fake.script(reply("swept"))
    if kind == DONE:
        snare = wire.hold_answer(b"INSERT INTO responses")
        asking = asyncio.ensure_future(
            api.call("POST", "/responses", {"model": model, "input": "Hi.", "background": True})
        )
        await snare.answered.wait()
        wire.refuse()
    else:
        wire.refuse()
        asking = asyncio.ensure_future(
            api.call("POST", "/responses", {"model": model, "input": "Hi.", "background": True})
        )
    control = await _insert_without_a_bell(product, other)
    answer = await asking
    assert (answer.status, answer.headers["retry-after"], answer.error["code"]) == (
        503,
        "1",
        "server_error",
    )
    await until(lambda: fake.requests_for(other), 20)  # a sweep has taken what is younger
    assert fake.requests_for(model) == []
    wire.heal()
    question = "SELECT count(*) FROM responses WHERE status = 'cancelled' AND reason = 'create_refused' AND (model = %s OR model = '')"
    await until(lambda: product.value(question, model), 20)
    await until(lambda: _is_ended(product, control), 20)
    assert (await api.wait_for_end(await api.create_background(other)))["status"] == "completed"
    assert fake.requests_for(model) == []
    await fetch_nothing_open(product)


@both_kinds
async def test_claim_by_a_running_worker(
    product: Stack, worker: Service, fake: FakeUpstream, kind: str
) -> None:
    """The heartbeat finds what is not run, and gives it back."""
    model = fake.script(reply("once"))
    lose(worker.proxies.postgres, b"attempt = r.attempt + 1", kind)
    ended = await product.api().wait_for_end(await product.api().create_background(model))
    assert ended["output_text"] == "once"
    assert len(fake.requests_for(model)) == 1


@both_kinds
@pytest.mark.parametrize(
    "words",
    [b"INSERT INTO journal", b"flushed_batch", b"SET status = 'completed'"],
    ids=["journal", "flush", "finish"],
)
async def test_a_running_response_does_not_notice(
    product: Stack, worker: Service, fake: FakeUpstream, words: bytes, kind: str
) -> None:
    model = fake.script(reply("a", "b", "c", gap=0.5))
    lose(worker.proxies.postgres, words, kind)
    async with product.api().post_stream(model, background=True) as stream:
        await stream.to_end()
    assert_one_stream(stream.frames)
    assert stream.final["output_text"] == "abc"
    assert await product.api().replay(stream.response_id) == stream.frames
    assert await product.api().get(stream.response_id) == stream.final
    assert len(fake.requests_for(model)) == 1


@both_kinds
@pytest.mark.parametrize("state", ["queued", "running"])
async def test_cancel(
    product: Stack, web: Service, fake: FakeUpstream, state: str, kind: str
) -> None:
    """200, and the same object as ever: the statement is asked once more, and finds its own traces."""
    model = fake.script([text("half"), hang()])
    response_id = await _in_state(product, model, state)
    lose(
        web.proxies.postgres,
        b"SET status = 'cancelled'" if state == "queued" else b"coalesce(cancel_requested_at",
        kind,
    )
    answer = await product.api().cancel(response_id)
    assert (answer.status, answer.body["status"]) == (200, "cancelled")
    assert (await product.api().get(response_id)) == answer.body


@both_kinds
@pytest.mark.parametrize(
    "words", [b"SET delete_requested_at", b"DELETE FROM responses USING"], ids=["request", "delete"]
)
async def test_delete(
    product: Stack, web: Service, fake: FakeUpstream, words: bytes, kind: str
) -> None:
    response_id = (
        await product.api().wait_for_end(
            await product.api().create_background(fake.script(reply("x")))
        )
    )["id"]
    lose(web.proxies.postgres, words, kind)
    answer = await product.api().call("DELETE", f"/responses/{response_id}")
    assert (answer.status, answer.body["deleted"]) == (200, True)
    assert (await product.api().call("GET", f"/responses/{response_id}")).status == 404


async def _in_state(product: Stack, model: str, state: str) -> str:
    """A response that runs, or one that no worker claims: it is marked as not yet to be rung for, and has no bell."""
    if state == "running":
        api: Api = product.api()
        async with api.post_stream(model, background=True) as stream:
            await stream.until("response.output_text.delta")
            return stream.response_id
    return f"resp_{(await _insert_without_a_bell(product, model, waits=timedelta(hours=1))).hex}"


async def _insert_without_a_bell(
    product: Stack, model: str, waits: timedelta = timedelta(0)
) -> UUID:
    """A queued response as intake stores it; sweeps see it after `waits`."""
    name = new_uuid()
    project = await product.value("SELECT id FROM projects")
    house = SeededDatabase(None, product.dsn)  # type: ignore[arg-type]  # only its values are wanted
    house.project = project
    values = house.insert_values(name) | {"model": model}
    async with await psycopg.AsyncConnection.connect(product.dsn, autocommit=True) as connection:
        await connection.execute(create_queries.INSERT.sql, values)
        await connection.execute(
            "UPDATE responses SET enqueued_at = enqueued_at + %s WHERE id = %s", (waits, name)
        )
    return name


async def _is_ended(product: Stack, name: UUID) -> bool:
    return await product.value("SELECT status FROM responses WHERE id = %s", name) in TERMINAL


async def fetch_nothing_open(product: Stack) -> None:
    """Nothing is left that could still run."""
    assert (
        await product.value(
            "SELECT count(*) FROM responses WHERE status IN ('queued', 'in_progress')"
        )
        == 0
    )
