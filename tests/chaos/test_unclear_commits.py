"""Every write whose reply is lost, applied or not: one test for each row of the table.

The table is in docs/guarantees.md.

A proxy before PostgreSQL drops the reply to one statement (`DONE`), or the statement itself
(`NEVER`). In both cases the sender only sees the end of the connection.
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
from models.lifecycle import TERMINAL, Status
from models.ownership.lease import Lease
from models.wire.events import split_frames
from tests.support import keys
from tests.support.api import Api, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.chaos.fragments import fragment
from tests.support.chaos.lost_replies import (
    DONE,
    FREQUENT_SWEEPS,
    NEVER,
    both_kinds,
    lose_reply,
)
from tests.support.chaos.proxy import Proxy
from tests.support.chaos.step_worker import StepRun, StepWorker
from tests.support.chaos.tracebacks import POSTGRES_TRACEBACKS
from tests.support.chaos.wire import Statements
from tests.support.fake_upstream import FakeUpstream, hang, reply, text
from tests.support.sql import run_sql
from tests.support.stack import RUNNING_STACKS, Databases, Service, Stack, SuiteSettings, stack
from tests.support.worker_rows import (
    SeededDatabase,
    insert_values,
    open_seeded_database,
    settings_for,
)

END_TOGETHER = fragment(end_queries.END_TOGETHER, "SET status = owned.status")

# --- one statement at a time ---


class ProxiedWorker:
    """A worker that reaches PostgreSQL through a proxy; all others connect directly."""

    def __init__(self, database: SeededDatabase, proxy: Proxy, step_worker: StepWorker) -> None:
        self.database = database
        self.proxy = proxy
        self.step_worker = step_worker

    async def start_run(self, *, text: str = "Hello.") -> StepRun:
        """A response that this worker runs, with some text stored in the journal."""
        run = await self.step_worker.claim(await self.database.create_response())
        assert run is not None
        self.step_worker.append_delta(run, text)
        await self.step_worker.write_journal()
        return run

    async def numbers(self, response_id: UUID) -> list[int]:
        """The numbers of its event log, one for each frame."""
        rows = await fetch(
            self.database.pool, claim_queries.LOG_SINCE, {"id": response_id, "after": -1}
        )
        return [
            number for row in rows for number, _ in enumerate(split_frames(row.frames), row.first)
        ]

    async def items(self, response_id: UUID) -> list[str]:
        values = {"id": response_id, "max_size": read_queries.ANY_SIZE}
        items = await fetch(self.database.pool, read_queries.OUTPUT_ITEMS, values)
        return [one.item["type"] for one in items if one.item is not None]

    async def owned(self) -> list[leases.OwnedResponse]:
        """The rows that its next heartbeat reads."""
        return await fetch(self.database.pool, leases.OWNED_RESPONSES, {"me": self.step_worker.id})


@pytest.fixture(scope="module")
async def database(database_server: Databases) -> AsyncIterator[SeededDatabase]:
    async with open_seeded_database(database_server, 4) as database:
        yield database


@pytest.fixture
async def proxied(database: SeededDatabase) -> AsyncIterator[ProxiedWorker]:
    parts = urlsplit(database.dsn)
    assert parts.hostname is not None
    assert parts.port is not None
    proxy = Proxy(parts.hostname, parts.port, new_parser=Statements)
    settings = settings_for(proxy.url(database.dsn))
    pool = open_pool(settings, "proxied-worker", 2)
    await pool.open(wait=True)
    numbers = itertools.count(1)
    step_worker = StepWorker(pool, settings, lambda prefix: f"{prefix}_{next(numbers)}")
    await database.register(step_worker)
    yield ProxiedWorker(database, proxy, step_worker)
    if step_worker.journal_writer.batch_writer.connection is not None:
        await step_worker.journal_writer.batch_writer.connection.close()
    await pool.close()
    await proxy.close()


@both_kinds
async def test_a_claim_with_a_lost_reply_counts_no_death(proxied: ProxiedWorker, kind: str) -> None:
    response_id = await proxied.database.create_response()
    lose_reply(proxied.proxy, b"(r.attempt + 1", kind)
    with pytest.raises(DATABASE_UNAVAILABLE):
        await proxied.step_worker.ownership.take(response_id)
    assert [row.id for row in await proxied.owned()] == [response_id] * (kind == DONE)
    for owned in await proxied.owned():
        await proxied.step_worker.ownership.release_unknown(response_id, owned.attempt)
    claim = await (await proxied.database.create_worker()).ownership.take(response_id)
    assert claim is not None
    assert (claim.attempt, claim.row.crashes) == (2 if kind == DONE else 1, 0), "a death is counted"


@both_kinds
async def test_a_claim_of_an_orphan_with_a_lost_reply_adopts_the_journal_once(
    proxied: ProxiedWorker, kind: str
) -> None:
    owner = await proxied.database.create_worker()
    response_id = await proxied.database.create_response()
    assert await owner.ownership.take(response_id) is not None
    await owner.journal(1, response_id, 1, 2, 5)
    await proxied.database.declare_dead(owner)
    lose_reply(proxied.proxy, b"COMMIT", kind)
    with pytest.raises(DATABASE_UNAVAILABLE):
        await proxied.step_worker.ownership.take(response_id)
    assert await proxied.numbers(response_id) == list(range(6 if kind == DONE else 2)), (
        "adopted with the claim, or not at all"
    )
    row = await proxied.database.response_row(response_id)
    assert row["worker"] == (proxied.step_worker.id if kind == DONE else owner.id)
    for owned in await proxied.owned():
        await proxied.step_worker.ownership.release_unknown(response_id, owned.attempt)
    claim = await (await proxied.database.create_worker()).ownership.take(response_id)
    assert claim is not None
    assert (claim.attempt, claim.row.crashes, claim.log_end) == (3 if kind == DONE else 2, 1, 5)
    assert await proxied.numbers(response_id) == list(range(6))


@both_kinds
async def test_claims_of_orphans_with_a_lost_reply_adopt_their_journals_once(
    proxied: ProxiedWorker, kind: str
) -> None:
    """All of them are claimed, with their journals, or none is."""
    database = proxied.database
    owner = await database.create_worker()
    ids = [await database.create_response() for _ in range(3)]
    for batch, response_id in enumerate(ids, 1):
        assert await owner.ownership.take(response_id) is not None
        await owner.journal(batch, response_id, 1, 2, 5)
    await database.declare_dead(owner)
    lose_reply(proxied.proxy, b"COMMIT", kind)
    with pytest.raises(DATABASE_UNAVAILABLE):
        await proxied.step_worker.ownership.take_orphans(ids)
    for response_id in ids:
        assert await proxied.numbers(response_id) == list(range(6 if kind == DONE else 2))
    owned = await proxied.owned()
    assert {row.id for row in owned} == (set(ids) if kind == DONE else set())
    for row in owned:
        await proxied.step_worker.ownership.release_unknown(row.id, row.attempt)
    claims = await (await database.create_worker()).ownership.take_orphans(ids)
    assert {claim.id for claim in claims} == set(ids)
    attempt = 3 if kind == DONE else 2
    for claim in claims:
        assert (claim.attempt, claim.row.crashes, claim.log_end) == (attempt, 1, 5)
        assert await proxied.numbers(claim.id) == list(range(6))


@both_kinds
async def test_a_journal_write_with_a_lost_reply_is_stored_and_published_once(
    proxied: ProxiedWorker, kind: str
) -> None:
    run = await proxied.start_run()
    proxied.step_worker.append_delta(run, "More.")
    proxied.step_worker.bus.pending.clear()
    lose_reply(proxied.proxy, b"INSERT INTO journal", kind)
    await proxied.step_worker.write_journal()
    select_batches = (
        "SELECT batch, first_numbers FROM journal"
        " WHERE worker = %(me)s AND batch > 0 ORDER BY batch"
    )
    stored = await run_sql(proxied.database.pool, select_batches, {"me": proxied.step_worker.id})
    assert [row["batch"] for row in stored] == [1, 2]
    assert len(proxied.step_worker.bus.pending) == 1, "published once, after it was stored"


@both_kinds
async def test_a_flush_with_a_lost_reply_stores_each_event_once(
    proxied: ProxiedWorker, kind: str
) -> None:
    run = await proxied.start_run()
    last = run.log.next_number - 1
    lose_reply(proxied.proxy, b"flushed_batch", kind)
    await proxied.step_worker.flush_all()
    assert await proxied.numbers(run.claim.id) == list(range(last + 1))
    assert not run.log.tail


@both_kinds
async def test_a_checkpoint_with_a_lost_reply_stores_its_turn_once(
    proxied: ProxiedWorker, kind: str
) -> None:
    run = await proxied.start_run()
    lose_reply(proxied.proxy, b"checkpoint_number = ", kind)
    await proxied.step_worker.checkpoint(run)
    row = await proxied.database.response_row(run.claim.id)
    assert (row["turns"], row["checkpoint_number"]) == (1, run.log.next_number - 1)
    assert await proxied.items(run.claim.id) == ["message"]
    assert await proxied.numbers(run.claim.id) == list(range(run.log.next_number))


@both_kinds
@pytest.mark.parametrize("status", sorted(TERMINAL))
@pytest.mark.parametrize("is_alone", [False, True])
async def test_an_ending_with_a_lost_reply_is_stored_once(
    proxied: ProxiedWorker, status: Status, kind: str, *, is_alone: bool
) -> None:
    """It is first sent with other endings, then alone."""
    run = await proxied.start_run()
    lose_reply(proxied.proxy, END_TOGETHER, NEVER if is_alone else kind)
    if is_alone:
        alone = fragment(end_queries.END[status], f"SET status = '{status}'")
        lose_reply(proxied.proxy, alone, kind)
    assert await proxied.step_worker.finish(run, status, send_twice=False) is status
    row = await proxied.database.response_row(run.claim.id)
    assert (row["status"], row["worker"]) == (status, None)
    numbers = await proxied.numbers(run.claim.id)
    assert numbers == list(range(len(numbers)))
    assert await proxied.items(run.claim.id) == ["message"]


@both_kinds
async def test_endings_sent_together_with_a_lost_reply_are_each_stored_once(
    proxied: ProxiedWorker, kind: str
) -> None:
    runs = [await proxied.start_run() for _ in range(4)]
    proxied.proxy.interceptions.counts[END_TOGETHER] = 0
    lose_reply(proxied.proxy, END_TOGETHER, kind)
    await asyncio.gather(
        *(proxied.step_worker.finish(run, Status.COMPLETED, send_twice=False) for run in runs)
    )
    assert proxied.proxy.interceptions.counts[END_TOGETHER] == 1, "then each is sent alone"
    for run in runs:
        assert (await proxied.database.response_row(run.claim.id))["status"] == "completed"
        assert await proxied.items(run.claim.id) == ["message"]
        numbers = await proxied.numbers(run.claim.id)
        assert numbers == list(range(len(numbers)))


@both_kinds
async def test_an_ending_with_a_lost_reply_and_a_cancel_have_one_outcome(
    proxied: ProxiedWorker, kind: str
) -> None:
    """A stored ending is kept; an ending that was never applied gives way to the cancel."""
    run = await proxied.start_run()
    lose_reply(proxied.proxy, END_TOGETHER, kind)
    if kind == NEVER:
        lose_reply(proxied.proxy, b"SET status = 'completed'", kind)
    ending = asyncio.ensure_future(
        proxied.step_worker.finish(run, Status.COMPLETED, send_twice=False)
    )
    if kind == NEVER:
        await until(lambda: not proxied.proxy.interceptions.dropped_patterns)
        assert await fetch(proxied.database.pool, end_queries.REQUEST_CANCEL, {"id": run.claim.id})
    outcome = await ending
    late_cancel = await fetch(
        proxied.database.pool, end_queries.REQUEST_CANCEL, {"id": run.claim.id}
    )
    assert late_cancel == []
    assert outcome is (Status.COMPLETED if kind == DONE else Status.CANCELLED)
    assert (await proxied.database.response_row(run.claim.id))["status"] == outcome


@both_kinds
async def test_a_hand_over_with_a_lost_reply_loses_no_event(
    proxied: ProxiedWorker, kind: str
) -> None:
    """The release by a worker that stops."""
    run = await proxied.start_run()
    last = run.log.next_number - 1
    lose_reply(proxied.proxy, b"SET worker = NULL, enqueue_count", kind)
    await proxied.step_worker.hand_over(run)
    claim = await (await proxied.database.create_worker()).ownership.take(run.claim.id)
    assert claim is not None
    assert (claim.attempt, claim.row.crashes, claim.log_end) == (2, 0, last)


@both_kinds
async def test_a_registration_with_a_lost_reply_ends_the_process(
    proxied: ProxiedWorker, kind: str
) -> None:
    """The process starts again with a new id. The first row owns nothing, and its lease expires."""
    lease = Lease(settings_for(proxied.proxy.url(proxied.database.dsn)), "worker")
    lose_reply(proxied.proxy, b"INSERT INTO workers", kind)

    def register() -> None:
        with pytest.raises(psycopg.OperationalError):
            lease.register()

    await _in_thread(register)
    rows = await run_sql(
        proxied.database.pool, "SELECT dead FROM workers WHERE id = %(id)s", {"id": lease.id}
    )
    assert [row["dead"] for row in rows] == [False] * (kind == DONE)


@both_kinds
async def test_a_heartbeat_with_a_lost_reply_keeps_the_lease(
    proxied: ProxiedWorker, kind: str
) -> None:
    settings = settings_for(proxied.proxy.url(proxied.database.dsn))
    lease = proxied.step_worker.lease
    lose_reply(proxied.proxy, b"SET expires_at", kind)

    def renew_twice() -> None:
        with connect_sync(settings, "beat") as connection, pytest.raises(psycopg.OperationalError):
            lease._renew(connection)
        with connect_sync(settings, "beat") as connection:
            lease._renew(connection)

    await _in_thread(renew_twice)
    assert lease.is_fresh


async def _in_thread(work: Callable[[], None]) -> None:
    """Runs it in a thread, as the heartbeat does: the proxy needs this event loop."""
    await asyncio.to_thread(work)


# --- in a running deployment ---


@pytest.fixture(scope="module")
async def own_stack(
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
        settings=FREQUENT_SWEEPS,
        proxied=True,
        allowed_tracebacks=POSTGRES_TRACEBACKS,
    ) as running:
        yield running
    RUNNING_STACKS.remove(running)


@pytest.fixture
def web(own_stack: Stack) -> Service:
    return own_stack.webs[0]


@pytest.fixture
def worker(own_stack: Stack) -> Service:
    return own_stack.workers[0]


@both_kinds
async def test_a_create_with_a_lost_reply_is_answered_200_and_runs_once(
    own_stack: Stack, web: Service, fake: FakeUpstream, kind: str
) -> None:
    model = fake.script(reply("once"))
    lose_reply(web.proxies.postgres, b"INSERT INTO responses", kind)
    assert (await own_stack.api().wait_for_end(await own_stack.api().create_background(model)))[
        "output_text"
    ] == "once"
    assert len(fake.requests_for(model)) == 1
    assert await own_stack.value("SELECT count(*) FROM responses WHERE model = %s", model) == 1


@both_kinds
@pytest.mark.parametrize("in_conversation", [False, True])
async def test_a_create_from_the_cache_with_a_lost_reply_is_stored_once(
    own_stack: Stack, web: Service, fake: FakeUpstream, kind: str, *, in_conversation: bool
) -> None:
    """It is stored in a transaction of two statements; the reply to its COMMIT is lost."""
    api, model = own_stack.api(), fake.script(reply("once"))
    conversation = (
        (await api.call("POST", "/conversations", {})).body["id"] if in_conversation else None
    )
    await api.create(model, cache=True)
    unclear_before = web.log.read_text().count("create_outcome_unknown")
    lose_reply(web.proxies.postgres, b"COMMIT", kind)
    cached = await api.create(model, cache=True, conversation=conversation)
    assert web.log.read_text().count("create_outcome_unknown") == unclear_before + 1
    assert await api.get(cached["id"]) == cached
    assert len(fake.requests_for(model)) == 1
    assert await own_stack.value("SELECT count(*) FROM responses WHERE model = %s", model) == 2
    if in_conversation:
        items = (await api.call("GET", f"/conversations/{conversation}/items")).body["data"]
        assert [item["content"][0]["text"] for item in items] == ["once", "Hello."]


@both_kinds
async def test_a_create_answered_503_never_runs(
    own_stack: Stack, web: Service, fake: FakeUpstream, kind: str
) -> None:
    """Neither while its outcome is unknown and sweeps run, nor later."""
    api = own_stack.api(key=keys.create(own_stack.dsn, f"{kind}-never-runs"))
    assert (await api.call("GET", "/models")).status == 200  # the web process caches the new key
    proxy = web.proxies.postgres
    model, other = fake.script(reply("never")), fake.script(reply("swept"))
    if kind == DONE:
        held = proxy.hold_answer(b"INSERT INTO responses")
        create_task = asyncio.ensure_future(
            api.call("POST", "/responses", {"model": model, "input": "Hi.", "background": True})
        )
        await held.answered.wait()
        proxy.refuse()
    else:
        proxy.refuse()
        create_task = asyncio.ensure_future(
            api.call("POST", "/responses", {"model": model, "input": "Hi.", "background": True})
        )
    younger = await _insert_without_message(own_stack, other)
    answer = await create_task
    assert (answer.status, answer.headers["retry-after"], answer.error["code"]) == (
        503,
        "1",
        "server_error",
    )
    await until(lambda: fake.requests_for(other), 20)  # a sweep has claimed a younger response
    assert fake.requests_for(model) == []
    proxy.heal()
    count_cancelled = (
        "SELECT count(*) FROM responses WHERE status = 'cancelled'"
        " AND reason = 'create_refused' AND (model = %s OR model = '')"
    )
    await until(lambda: own_stack.value(count_cancelled, model), 20)
    await until(lambda: _is_ended(own_stack, younger), 20)
    assert (await api.wait_for_end(await api.create_background(other)))["status"] == "completed"
    assert fake.requests_for(model) == []
    await assert_nothing_open(own_stack)


@both_kinds
async def test_a_claim_with_a_lost_reply_is_returned_by_a_running_worker(
    own_stack: Stack, worker: Service, fake: FakeUpstream, kind: str
) -> None:
    """The heartbeat sees a response that this worker owns and does not run, and releases it."""
    model = fake.script(reply("once"))
    lose_reply(worker.proxies.postgres, b"(r.attempt + 1", kind)
    ended = await own_stack.api().wait_for_end(await own_stack.api().create_background(model))
    assert ended["output_text"] == "once"
    assert len(fake.requests_for(model)) == 1


async def test_an_orphan_that_cannot_be_claimed_keeps_no_other_one_waiting(
    own_stack: Stack, worker: Service, fake: FakeUpstream
) -> None:
    """A sweep claims them together; the statement fails each time because of one of them."""
    models = [fake.script(reply("claimed")) for _ in range(4)]
    ids = [
        await _insert_without_message(own_stack, model, delay=timedelta(hours=1))
        for model in models
    ]
    refused, *others = ids
    async with await psycopg.AsyncConnection.connect(own_stack.dsn, autocommit=True) as connection:
        await connection.execute(
            "CREATE FUNCTION refuse_claim() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'canceled' USING ERRCODE = '57014'; END $$"
        )
        await connection.execute(
            "CREATE TRIGGER refuse_claim BEFORE INSERT ON attempts FOR EACH ROW"
            f" WHEN (NEW.response_id = '{refused}') EXECUTE FUNCTION refuse_claim()"
        )
        # So many messages were sent that the next one is a minute away: only a sweep claims them.
        await connection.execute(
            "UPDATE responses SET enqueue_count = 6,"
            " enqueued_at = clock_timestamp() - interval '5 s'"
            " WHERE id = ANY(%s)",
            [ids],
        )
        for response_id in others:
            await until(lambda: _is_ended(own_stack, response_id), 20)  # noqa: B023
        assert not await _is_ended(own_stack, refused)
        await connection.execute("DROP TRIGGER refuse_claim ON attempts")
    await until(lambda: _is_ended(own_stack, refused), 20)
    assert [len(fake.requests_for(model)) for model in models] == [1, 1, 1, 1]
    await assert_nothing_open(own_stack)


@both_kinds
@pytest.mark.parametrize(
    "pattern",
    [b"INSERT INTO journal", b"flushed_batch", END_TOGETHER],
    ids=["journal", "flush", "finish"],
)
async def test_a_running_response_continues_after_a_lost_reply(
    own_stack: Stack, worker: Service, fake: FakeUpstream, pattern: bytes, kind: str
) -> None:
    model = fake.script(reply("a", "b", "c", gap=0.5))
    lose_reply(worker.proxies.postgres, pattern, kind)
    async with own_stack.api().post_stream(model, background=True) as stream:
        await stream.to_end()
    assert_one_stream(stream.frames)
    assert stream.final["output_text"] == "abc"
    assert await own_stack.api().replay(stream.response_id) == stream.frames
    assert await own_stack.api().get(stream.response_id) == stream.final
    assert len(fake.requests_for(model)) == 1


@both_kinds
@pytest.mark.parametrize("state", ["queued", "running"])
async def test_a_cancel_with_a_lost_reply_is_answered_200(
    own_stack: Stack, web: Service, fake: FakeUpstream, state: str, kind: str
) -> None:
    """The statement is sent again and finds its first result: 200 and the usual object."""
    model = fake.script([text("half"), hang()])
    response_id = await _in_state(own_stack, model, state)
    lose_reply(
        web.proxies.postgres,
        b"SET status = 'cancelled'" if state == "queued" else b"coalesce(cancel_requested_at",
        kind,
    )
    answer = await own_stack.api().cancel(response_id)
    assert (answer.status, answer.body["status"]) == (200, "cancelled")
    assert (await own_stack.api().get(response_id)) == answer.body


@both_kinds
@pytest.mark.parametrize(
    "pattern",
    [b"SET delete_requested_at", b"DELETE FROM responses USING"],
    ids=["request", "delete"],
)
async def test_a_delete_with_a_lost_reply_is_answered_200(
    own_stack: Stack, web: Service, fake: FakeUpstream, pattern: bytes, kind: str
) -> None:
    response_id = (
        await own_stack.api().wait_for_end(
            await own_stack.api().create_background(fake.script(reply("x")))
        )
    )["id"]
    lose_reply(web.proxies.postgres, pattern, kind)
    answer = await own_stack.api().call("DELETE", f"/responses/{response_id}")
    assert (answer.status, answer.body["deleted"]) == (200, True)
    assert (await own_stack.api().call("GET", f"/responses/{response_id}")).status == 404


async def _in_state(own_stack: Stack, model: str, state: str) -> str:
    """A response that runs, or one that no worker claims: no message, and sweeps leave it out."""
    if state == "running":
        api: Api = own_stack.api()
        async with api.post_stream(model, background=True) as stream:
            await stream.until("response.output_text.delta")
            return stream.response_id
    return f"resp_{(await _insert_without_message(own_stack, model, delay=timedelta(hours=1))).hex}"


async def _insert_without_message(
    own_stack: Stack, model: str, delay: timedelta = timedelta(0)
) -> UUID:
    """Stores a queued response as a create does; sweeps include it after `waits`."""
    project = await own_stack.value("SELECT id FROM projects")
    database = SeededDatabase(None, own_stack.dsn)  # type: ignore[arg-type]  # used for its values only
    database.project = project
    row = database.new_row(model=model)
    async with await psycopg.AsyncConnection.connect(own_stack.dsn, autocommit=True) as connection:
        await connection.execute(create_queries.INSERT.sql, insert_values(row))
        await connection.execute(
            "UPDATE responses SET enqueued_at = enqueued_at + %s WHERE id = %s",
            (delay, row.id),
        )
    return row.id


async def _is_ended(own_stack: Stack, response_id: UUID) -> bool:
    return (
        await own_stack.value("SELECT status FROM responses WHERE id = %s", response_id) in TERMINAL
    )


async def assert_nothing_open(own_stack: Stack) -> None:
    """Checks that no response is left that could still run."""
    assert (
        await own_stack.value(
            "SELECT count(*) FROM responses WHERE status IN ('queued', 'in_progress')"
        )
        == 0
    )
