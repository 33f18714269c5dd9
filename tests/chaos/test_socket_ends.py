"""Ends of a WebSocket that its client did not cause: deaths, restarts, time limit, revoked key.

The promises are in docs/websocket.md.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator

import psycopg
import pytest
from websockets.exceptions import InvalidStatus

from tests.conftest import PrivateStack
from tests.support import keys
from tests.support.api import until
from tests.support.chaos.tracebacks import POSTGRES_TRACEBACKS
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    done,
    finish,
    hang,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.stack import SHORT_LEASES, Databases, Stack, SuiteSettings, stack
from tests.support.websocket_client import Socket, socket


@pytest.fixture(scope="module")
async def own_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment with two workers, at most two WebSockets a process, and a short grace period."""
    settings = {
        **SHORT_LEASES,
        "BACKBURNER_WEB__SOCKETS": "2",
        "BACKBURNER_WEB__GRACE": "2",
        "BACKBURNER_SECRET_KEYS": secrets.token_urlsafe(32),
    }
    async with stack(
        tmp_path_factory.mktemp("sockets"),
        database_server,
        suite_settings,
        fake,
        webs=1,
        workers=2,
        settings=settings,
    ) as running:
        yield running


async def _status(own_stack: Stack, response_id: str) -> str:
    return str(
        await own_stack.value(
            "SELECT status FROM responses WHERE id = %s", response_id.removeprefix("resp_")
        )
    )


async def test_a_killed_worker_leaves_no_hole_in_the_events_of_a_websocket(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("lost"), hang()], reply("whole"))
    async with socket(own_stack.api()) as connection:
        await connection.create(model, store=False)
        await connection.until("response.output_text.delta")
        owner = await own_stack.value(
            "SELECT w.pid FROM workers w JOIN responses r ON r.worker = w.id WHERE r.model = %s",
            model,
        )
        own_stack.kill(next(worker for worker in own_stack.workers if worker.pid == owner))
        await connection.read_to_end()
        events = [Socket.decode(frame) for frame in connection.frames]
        assert_stream_obeys_contract(events)
        assert events[-1]["response"]["output_text"] == "whole"
        continued = await connection.create_and_read(
            fake.script(reply("next")),
            store=False,
            previous_response_id=events[-1]["response"]["id"],
        )
        assert continued["output_text"] == "next"
    await own_stack.start_worker()


async def test_a_killed_web_process_cancels_the_responses_of_its_websockets(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("said"), hang()])
    web = await own_stack.start_web()
    async with socket(own_stack.api(web)) as connection:
        await connection.create(model)
        response_id = (await connection.until("response.created"))["response"]["id"]
        await connection.until("response.output_text.delta")
        own_stack.kill(web)
        assert await connection.read_until_closed() is None
    [request] = fake.requests_for(model)
    await until(lambda: request.closed_by_client is not None, 20)

    async def is_cancelled() -> bool:
        return await _status(own_stack, response_id) == "cancelled"

    await until(is_cancelled, 20)
    async with socket(own_stack.api()) as reconnected:
        assert (
            await reconnected.create_and_read(
                fake.script(reply("here")), previous_response_id=response_id
            )
        )["output_text"] == "here"


async def test_a_stopping_web_process_finishes_running_responses_and_closes(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script([text("be"), wait_for(released), text("gun"), finish(), usage(), done()])
    web = await own_stack.start_web()
    async with socket(own_stack.api(web)) as busy, socket(own_stack.api(web)) as idle:
        await busy.create(model)
        await busy.until("response.output_text.delta")
        stopping = asyncio.create_task(own_stack.stop(web))
        assert await idle.read_until_closed() == 1012
        await busy.create(model)
        refused = await busy.read_error()
        assert (refused["status"], refused["code"], refused["headers"]["retry-after"]) == (
            503,
            "server_error",
            "1",
        )
        released.set()
        assert (await busy.read_to_end())[-1]["response"]["output_text"] == "begun"
        assert await busy.read_until_closed() == 1012
        await stopping
    assert len(fake.requests_for(model)) == 1


async def test_a_response_longer_than_the_grace_period_is_cancelled(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("endless"), hang()])
    web = await own_stack.start_web()
    async with socket(own_stack.api(web)) as connection:
        await connection.create(model)
        response_id = (await connection.until("response.created"))["response"]["id"]
        await connection.until("response.output_text.delta")
        stopping = asyncio.create_task(own_stack.stop(web))
        assert (await connection.read_until_error())["status"] == 503
        assert await connection.read_until_closed() == 1012
        await stopping

    async def is_cancelled() -> bool:
        return await _status(own_stack, response_id) == "cancelled"

    await until(is_cancelled, 20)


async def test_a_connection_is_closed_after_its_time_limit(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script([text("o"), wait_for(released), text("k"), finish(), usage(), done()])
    own_stack.settings["BACKBURNER_WEB__SOCKET_TIME"] = "2"
    web = await own_stack.start_web()
    del own_stack.settings["BACKBURNER_WEB__SOCKET_TIME"]
    async with socket(own_stack.api(web)) as busy:
        async with socket(own_stack.api(web)) as idle:
            await busy.create(model)
            await busy.until("response.output_text.delta")
            assert (await idle.read_error())["code"] == "websocket_connection_limit_reached"
            assert await idle.read_until_closed() == 1001
        await busy.create(model)
        refused = await busy.read_error()
        assert (refused["status"], refused["code"]) == (400, "websocket_connection_limit_reached")
        released.set()
        assert (await busy.read_to_end())[-1]["response"]["output_text"] == "ok"
        assert (await busy.read_error())["code"] == "websocket_connection_limit_reached"
        assert await busy.read_until_closed() == 1001
    await own_stack.stop(web)


async def test_a_client_that_reads_nothing_is_disconnected(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text(*"words"), hang()])
    own_stack.settings |= {"BACKBURNER_WEB__PING": "1", "BACKBURNER_WEB__SEND_TIMEOUT": "1"}
    web = await own_stack.start_web()
    del (
        own_stack.settings["BACKBURNER_WEB__PING"],
        own_stack.settings["BACKBURNER_WEB__SEND_TIMEOUT"],
    )
    async with socket(
        own_stack.api(web), max_queue=1, ping_interval=None, close_timeout=0.1
    ) as unread:
        await unread.create(model)
        await until(lambda: fake.requests_for(model))
        [request] = fake.requests_for(model)
        await until(lambda: request.closed_by_client is not None, 20)
    await own_stack.stop(web)


async def test_a_process_refuses_websockets_over_its_limit(own_stack: Stack) -> None:
    async with socket(own_stack.api()), socket(own_stack.api()):
        with pytest.raises(InvalidStatus) as refusal:
            async with socket(own_stack.api()):
                pass
    answer = refusal.value.response
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")

    async def is_accepted() -> bool:
        try:
            async with socket(own_stack.api()):
                return True
        except InvalidStatus:
            return False

    await until(is_accepted)


async def test_a_revoked_key_closes_its_websockets(own_stack: Stack, fake: FakeUpstream) -> None:
    key = keys.create(own_stack.dsn, "revoked")
    model = fake.script(reply("x"))
    async with socket(own_stack.api(key=key)) as connection:
        await connection.create_and_read(model)
        async with await psycopg.AsyncConnection.connect(
            own_stack.dsn, autocommit=True
        ) as database:
            await database.execute(
                "UPDATE api_keys SET revoked_at = now()"
                " WHERE hash = sha256(convert_to(%s, 'UTF8'))",
                (key,),
            )
        async with asyncio.timeout(5):
            assert (await connection.read_error())["code"] == "invalid_api_key"
            assert await connection.read_until_closed() == 1008


_SLOW_HEARTBEAT = {
    "BACKBURNER_LEASE__DURATION": "4",
    "BACKBURNER_LEASE__BEAT": "1",
    "BACKBURNER_LEASE__CAUTION": "2",
    "BACKBURNER_LEASE__OBSERVE": "60",
}
"""The lease runs out in an outage of some seconds, and no worker declares the process dead for it.
When Postgres is back, the heartbeat renews the lease up to a second later."""


@pytest.mark.long
async def test_while_postgres_is_down_creates_are_refused_and_the_websocket_stays_open(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script(
        [text("be"), wait_for(released), text("gun"), finish(), usage(), done()], reply("after")
    )
    async with (
        private_stack(
            proxied=True, settings=_SLOW_HEARTBEAT, allowed_tracebacks=POSTGRES_TRACEBACKS
        ) as running,
        socket(running.api()) as busy,
    ):
        await busy.create(model)
        await busy.until("response.output_text.delta")
        postgres = running.webs[0].proxies.postgres
        postgres.refuse()
        postgres.cut()
        await busy.create(model, stream_id="another")
        refused = await busy.read_until_error()
        assert (refused["status"], refused["code"]) == (503, "server_error")
        with pytest.raises(InvalidStatus) as refusal:
            async with socket(running.api(key="bb-not-looked-up-yet")):
                pass
        assert refusal.value.response.status_code == 503
        postgres.heal()
        released.set()
        assert (await busy.read_to_end())[-1]["response"]["output_text"] == "begun"
        assert (await busy.create_and_read(model))["output_text"] == "after"
    assert len(fake.requests_for(model)) == 2


async def test_a_client_that_leaves_while_several_lanes_send_is_no_error(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    """The first lane's send notices that the client has left; those of the others fail with it."""
    model = fake.script([text(*["word "] * 3000, gap=0.002), hang()])
    for _ in range(3):
        async with socket(own_stack.api()) as connection:
            for lane in range(12):
                await connection.create(model, stream_id=f"lane-{lane}", store=False)
            for _ in range(200):
                await connection.next()
            connection.connection.transport.abort()
    await until(lambda: all(not request.is_open for request in fake.requests_for(model)), 20)
    assert not own_stack.tracebacks()
