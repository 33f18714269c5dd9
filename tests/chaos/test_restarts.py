"""Web processes, Postgres, or everything at once go away and come back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.api import Api, decode, until
from tests.support.chaos.attempts import assert_one_stream
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
from tests.support.stack import SHORT_LEASES, Databases, Stack, SuiteSettings, databases, stack

WORDS = [f"w{number} " for number in range(100)]


@pytest.fixture(scope="module")
async def house(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A worker and a web process that stay; each test starts the web process it ends."""
    async with stack(
        tmp_path_factory.mktemp("house"),
        database_server,
        suite_settings,
        fake,
        settings=SHORT_LEASES,
    ) as one:
        yield one


async def test_a_background_stream_outlives_its_web_process(
    house: Stack, fake: FakeUpstream
) -> None:
    opened = asyncio.Event()
    model = fake.script([text("a", "b"), wait_for(opened), text("c"), finish(), usage(), done()])
    web = await house.start_web()
    async with house.api(web).post_stream(model, background=True) as cut:
        await cut.until("response.output_text.delta", count=2)
        stopping = asyncio.create_task(house.stop(web))
        await cut.to_end()  # asserts that it ends between two frames
        await stopping
    web = await house.start_web(web.port)
    async with house.api(web).follow(cut.response_id, after=cut.last_number) as rest:
        opened.set()
        await rest.to_end()
    await house.stop(web)
    assert_stream_obeys_contract([decode(frame) for frame in cut.frames + rest.frames])
    assert rest.final["output_text"] == "abc"
    assert len(fake.requests_for(model)) == 1


async def test_a_background_stream_outlives_a_killed_web_process(
    house: Stack, fake: FakeUpstream
) -> None:
    opened = asyncio.Event()
    model = fake.script([text("a"), wait_for(opened), text("b"), finish(), usage(), done()])
    web = await house.start_web()
    response_id = await house.api(web).create_background(model)
    async with house.api(web).follow(response_id) as cut:
        await cut.until("response.output_text.delta")
        house.kill(web)
    async with house.api().follow(response_id, after=cut.last_number) as rest:
        opened.set()
        await rest.to_end()
    assert_stream_obeys_contract([decode(frame) for frame in cut.frames + rest.frames])


async def test_a_foreground_response_ends_with_its_web_process(
    house: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("half"), hang()])
    web = await house.start_web()
    async with house.api(web).post_stream(model) as stream:
        await stream.until("response.output_text.delta")
        house.kill(web)
    [request] = fake.requests_for(model)
    await until(lambda: request.closed_by_client is not None, 20)

    async def is_cancelled() -> bool:
        answer = await house.api().call("GET", f"/responses/{stream.response_id}")
        return answer.status == 200 and answer.body["status"] == "cancelled"

    await until(is_cancelled)
    assert len(fake.requests_for(model)) == 1


async def test_a_foreground_request_may_finish_while_its_web_process_stops(
    house: Stack, fake: FakeUpstream
) -> None:
    opened = asyncio.Event()
    model = fake.script([text("a"), wait_for(opened), text("b"), finish(), usage(), done()])
    web = await house.start_web()

    async def refuses() -> bool:
        try:
            return (await house.api(web).call("GET", "/models")).status != 200
        except aiohttp.ClientConnectionError:
            return True

    async with house.api(web).post_stream(model) as stream:
        await stream.until("response.output_text.delta")
        stopping = asyncio.create_task(house.stop(web))
        await until(refuses)
        opened.set()
        await stream.to_end()
        await stopping
    assert stream.final["output_text"] == "ab"


async def test_after_kill_9_of_everything_old_responses_end_and_finished_ones_are_as_they_were(
    embedded_postgres: None,
    embedded_redis: None,
    tmp_path: Path,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> None:
    async with databases(tmp_path / "pg", suite_settings) as database_server:
        assert database_server.server is not None
        # the processes may notice that their servers are gone before it is their turn
        allowed = ("psycopg.", "redis.exceptions.", "kombu.exceptions.")
        async with stack(
            tmp_path,
            database_server,
            suite_settings,
            fake,
            settings=SHORT_LEASES,
            allowed_tracebacks=allowed,
        ) as one:
            finished = await one.api().wait_for_end(
                await one.api().create_background(fake.script(reply("done before")))
            )
            told = await one.api().replay(finished["id"])
            model = fake.script([text("half"), hang()], reply("whole"))
            async with one.api().post_stream(model, background=True) as cut:
                await cut.until("response.output_text.delta")
                assert one.valkey is not None
                for process in [*one.webs, *one.workers]:
                    one.kill(process)
                one.valkey.kill()
                database_server.server.kill()
            database_server.server.start()
            one.valkey.start()
            one.spawn_worker()
            await one.start_web()
            ended = await one.api().wait_for_end(cut.response_id)
            assert (ended["status"], ended["output_text"]) == ("completed", "whole")
            frames = await one.api().replay(cut.response_id)
            assert_one_stream(frames)
            assert await one.api().get(finished["id"]) == finished
            assert await one.api().replay(finished["id"]) == told


async def test_a_running_response_survives_a_restart_of_postgres(
    embedded_postgres: None, tmp_path: Path, suite_settings: SuiteSettings, fake: FakeUpstream
) -> None:
    async with databases(tmp_path / "pg", suite_settings) as database_server:
        assert database_server.server is not None
        async with stack(
            tmp_path,
            database_server,
            suite_settings,
            fake,
            webs=2,
            allowed_tracebacks=("psycopg.",),
        ) as one:
            gates = [asyncio.Event() for _ in range(3)]
            steps = [
                text("a"),
                wait_for(gates[0]),
                text(*WORDS),
                wait_for(gates[1]),
                text("b"),
                wait_for(gates[2]),
                finish(),
                usage(),
                done(),
            ]
            model = fake.script(steps, reply("never"))
            response_id = await one.api().create_background(model)
            async with one.api(0).follow(response_id) as stream:
                await stream.until("response.output_text.delta")
                database_server.server.stop()
                gates[0].set()
                gates[1].set()
                refused = await one.api(1).call(
                    "POST", "/responses", {"model": model, "input": "x", "background": True}
                )
                assert refused.status == 503
                assert refused.headers["retry-after"] == "1"
                assert refused.error["type"] == "server_error"
                database_server.server.start()
                await stream.until("response.output_text.delta", count=len(WORDS) + 1)
                gates[2].set()
                await stream.to_end()
            assert stream.final["output_text"] == "a" + "".join(WORDS) + "b"
            assert_one_stream(stream.frames)
            assert await one.api(1).replay(response_id) == stream.frames
            assert len(fake.requests_for(model)) == 1, (
                "the attempt and its upstream connection survived, and the refused one never ran"
            )


async def test_a_running_response_survives_a_crash_of_postgres(
    embedded_postgres: None, tmp_path: Path, suite_settings: SuiteSettings, fake: FakeUpstream
) -> None:
    """The crash empties the journal; the worker has everything since its last flush in memory."""
    async with databases(tmp_path / "pg", suite_settings) as database_server:
        assert database_server.server is not None
        async with stack(
            tmp_path, database_server, suite_settings, fake, allowed_tracebacks=("psycopg.",)
        ) as one:
            opened = asyncio.Event()
            model = fake.script(
                [text(*WORDS), wait_for(opened), text("b"), finish(), usage(), done()],
                reply("never"),
            )
            async with one.api().post_stream(model, background=True) as stream:
                await stream.until("response.output_text.delta", count=len(WORDS))
                database_server.server.kill()
                database_server.server.start()
                opened.set()
                await _end_of(one.api(), stream.response_id)
            frames = await one.api().replay(stream.response_id)
            assert_one_stream(frames)
            assert frames[: len(stream.frames)] == stream.frames
            assert decode(frames[-1])["response"]["output_text"] == "".join(WORDS) + "b"
            assert len(fake.requests_for(model)) == 1


async def _end_of(api: Api, response_id: str) -> None:
    async def is_over() -> bool:
        answer = await api.call("GET", f"/responses/{response_id}")
        return answer.status == 200 and answer.body["status"] == "completed"

    await until(is_over, 30)
