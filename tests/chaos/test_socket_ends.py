"""Ends of a WebSocket that its client did not choose: deaths, restarts, its hour, a revoked key (docs/websocket.md)."""

import asyncio
import secrets
from collections.abc import AsyncIterator

import psycopg
import pytest
from websockets.exceptions import InvalidStatus

from models import keys
from tests.conftest import PrivateStack
from tests.support.api import until
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
async def house(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment whose processes come and go, and whose sockets have three minutes' rest in three seconds."""
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
    ) as one:
        yield one


async def _status(house: Stack, response_id: str) -> str:
    return str(
        await house.value(
            "SELECT status FROM responses WHERE id = %s", response_id.removeprefix("resp_")
        )
    )


async def test_a_killed_worker_leaves_no_hole_in_the_socket(
    house: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("lost"), hang()], reply("whole"))
    async with socket(house.api()) as one:
        await one.create(model, store=False)
        await one.until("response.output_text.delta")
        owner = await house.value(
            "SELECT w.pid FROM workers w JOIN responses r ON r.worker = w.id WHERE r.model = %s",
            model,
        )
        house.kill(next(worker for worker in house.workers if worker.pid == owner))
        await one.read_to_end()
        events = [Socket.decode(frame) for frame in one.frames]
        assert_stream_obeys_contract(events)
        assert events[-1]["response"]["output_text"] == "whole"
        following = await one.create_and_read(
            fake.script(reply("next")),
            store=False,
            previous_response_id=events[-1]["response"]["id"],
        )
        assert following["output_text"] == "next"
    await house.start_worker()


async def test_a_killed_web_process_takes_its_sockets_responses_along(
    house: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("said"), hang()])
    other = await house.start_web()
    async with socket(house.api(other)) as one:
        await one.create(model)
        response_id = (await one.until("response.created"))["response"]["id"]
        await one.until("response.output_text.delta")
        house.kill(other)
        assert await one.read_until_closed() is None
    [asked] = fake.requests_for(model)
    await until(lambda: asked.closed_by_client is not None, 20)

    async def cancelled() -> bool:
        return await _status(house, response_id) == "cancelled"

    await until(cancelled, 20)
    async with socket(house.api()) as elsewhere:
        assert (
            await elsewhere.create_and_read(
                fake.script(reply("here")), previous_response_id=response_id
            )
        )["output_text"] == "here"


async def test_a_stopping_web_process_lets_what_runs_end_and_closes(
    house: Stack, fake: FakeUpstream
) -> None:
    opened = asyncio.Event()
    model = fake.script([text("be"), wait_for(opened), text("gun"), finish(), usage(), done()])
    other = await house.start_web()
    async with socket(house.api(other)) as busy, socket(house.api(other)) as idle:
        await busy.create(model)
        await busy.until("response.output_text.delta")
        stopping = asyncio.create_task(house.stop(other))
        assert await idle.read_until_closed() == 1012
        await busy.create(model)
        refused = await busy.read_error()
        assert (refused["status"], refused["code"], refused["headers"]["retry-after"]) == (
            503,
            "server_error",
            "1",
        )
        opened.set()
        assert (await busy.read_to_end())[-1]["response"]["output_text"] == "begun"
        assert await busy.read_until_closed() == 1012
        await stopping
    assert len(fake.requests_for(model)) == 1


async def test_what_does_not_end_in_the_grace_period_is_cancelled(
    house: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("for ever"), hang()])
    other = await house.start_web()
    async with socket(house.api(other)) as one:
        await one.create(model)
        response_id = (await one.until("response.created"))["response"]["id"]
        await one.until("response.output_text.delta")
        stopping = asyncio.create_task(house.stop(other))
        assert (await one.read_until_error())["status"] == 503
        assert await one.read_until_closed() == 1012
        await stopping

    async def cancelled() -> bool:
        return await _status(house, response_id) == "cancelled"

    await until(cancelled, 20)


async def test_a_connection_has_its_hour(house: Stack, fake: FakeUpstream) -> None:
    opened = asyncio.Event()
    model = fake.script([text("o"), wait_for(opened), text("k"), finish(), usage(), done()])
    house.settings["BACKBURNER_WEB__SOCKET_TIME"] = "2"
    other = await house.start_web()
    del house.settings["BACKBURNER_WEB__SOCKET_TIME"]
    async with socket(house.api(other)) as busy:
        async with socket(house.api(other)) as idle:
            await busy.create(model)
            await busy.until("response.output_text.delta")
            assert (await idle.read_error())["code"] == "websocket_connection_limit_reached"
            assert await idle.read_until_closed() == 1001
        await busy.create(model)
        refused = await busy.read_error()
        assert (refused["status"], refused["code"]) == (400, "websocket_connection_limit_reached")
        opened.set()
        assert (await busy.read_to_end())[-1]["response"]["output_text"] == "ok"
        assert (await busy.read_error())["code"] == "websocket_connection_limit_reached"
        assert await busy.read_until_closed() == 1001
    await house.stop(other)


async def test_a_client_that_reads_nothing_is_let_go(house: Stack, fake: FakeUpstream) -> None:
    model = fake.script([text(*"words"), hang()])
    house.settings |= {"BACKBURNER_WEB__PING": "1", "BACKBURNER_WEB__SEND_TIMEOUT": "1"}
    other = await house.start_web()
    del house.settings["BACKBURNER_WEB__PING"], house.settings["BACKBURNER_WEB__SEND_TIMEOUT"]
    async with socket(house.api(other), max_queue=1, ping_interval=None, close_timeout=0.1) as deaf:
        await deaf.create(model)
        await until(lambda: fake.requests_for(model))
        [asked] = fake.requests_for(model)
        await until(lambda: asked.closed_by_client is not None, 20)
    await house.stop(other)


async def test_a_process_holds_so_many_sockets_and_no_more(house: Stack) -> None:
    async with socket(house.api()), socket(house.api()):
        with pytest.raises(InvalidStatus) as refusal:
            async with socket(house.api()):
                pass
    answer = refusal.value.response
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")

    async def open_again() -> bool:
        try:
            async with socket(house.api()):
                return True
        except InvalidStatus:
            return False

    await until(open_again)


async def test_a_revoked_key_ends_its_sockets_with_the_next_create(
    house: Stack, fake: FakeUpstream
) -> None:
    key = keys.create(house.dsn, "revoked")
    model = fake.script(reply("x"))
    async with socket(house.api(key=key)) as one:
        await one.create_and_read(model)
        async with await psycopg.AsyncConnection.connect(house.dsn, autocommit=True) as connection:
            await connection.execute(
                "UPDATE api_keys SET revoked_at = now() WHERE hash = sha256(convert_to(%s, 'UTF8'))",
                (key,),
            )

        async def refused() -> bool:
            await one.create(model)
            frames = [await one.next()]
            while frames[-1]["type"] not in ("error", "response.completed"):
                frames.append(await one.next())
            return bool(frames[-1]["type"] == "error")

        await until(refused, 20, every=0.5)
        assert Socket.decode(one.frames[-1])["error"]["code"] == "invalid_api_key"
        assert await one.read_until_closed() == 1008


async def test_while_postgres_is_away_creates_are_refused_and_the_socket_lives_on(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    opened = asyncio.Event()
    model = fake.script(
        [text("be"), wait_for(opened), text("gun"), finish(), usage(), done()], reply("after")
    )
    async with (
        private_stack(proxied=True, allowed_tracebacks=("psycopg.",)) as one,
        socket(one.api()) as busy,
    ):
        await busy.create(model)
        await busy.until("response.output_text.delta")
        postgres = one.webs[0].proxies.postgres
        postgres.refuse()
        postgres.cut()
        await busy.create(model, stream_id="another")
        refused = await busy.read_until_error()
        assert (refused["status"], refused["code"]) == (503, "server_error")
        with pytest.raises(InvalidStatus) as refusal:
            async with socket(one.api(key="bb-not-looked-up-yet")):
                pass
        assert refusal.value.response.status_code == 503
        postgres.heal()
        opened.set()
        assert (await busy.read_to_end())[-1]["response"]["output_text"] == "begun"
        assert (await busy.create_and_read(model))["output_text"] == "after"
    assert len(fake.requests_for(model)) == 2
