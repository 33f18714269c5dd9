"""Web processes, PostgreSQL, or all processes at once are stopped or killed and come back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cli.embedded.postgres import Postgres
from models.console_links import LOGIN_PATH, create_link
from tests.support.api import Api, decode, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.chaos.tracebacks import POSTGRES_TRACEBACKS, SERVER_TRACEBACKS
from tests.support.console import console_user
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

CHUNKS = [f"w{number} " for number in range(100)]


@asynccontextmanager
async def own_servers(
    folder: Path, suite_settings: SuiteSettings, fake: FakeUpstream, **options: Any
) -> AsyncIterator[tuple[Stack, Postgres]]:
    """A deployment with a PostgreSQL of its own."""
    async with (
        databases(folder / "pg", suite_settings) as database_server,
        stack(folder, database_server, suite_settings, fake, **options) as running,
    ):
        assert database_server.server is not None
        yield running, database_server.server


@pytest.fixture(scope="module")
async def own_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A worker and a web process that keep running; each test starts the web process it ends."""
    async with stack(
        tmp_path_factory.mktemp("restarts"),
        database_server,
        suite_settings,
        fake,
        settings=SHORT_LEASES,
    ) as running:
        yield running


async def test_a_background_stream_outlives_its_web_process(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script([text("a", "b"), wait_for(released), text("c"), finish(), usage(), done()])
    web = await own_stack.start_web()
    async with own_stack.api(web).post_stream(model, background=True) as first_part:
        await first_part.until("response.output_text.delta", count=2)
        stopping = asyncio.create_task(own_stack.stop(web))
        await first_part.to_end()  # it asserts that the stream ends between two frames
        await stopping
    web = await own_stack.start_web(web.port)
    async with own_stack.api(web).follow(
        first_part.response_id, after=first_part.last_number
    ) as second_part:
        released.set()
        await second_part.to_end()
    await own_stack.stop(web)
    assert_stream_obeys_contract(
        [decode(frame) for frame in first_part.frames + second_part.frames]
    )
    assert second_part.final["output_text"] == "abc"
    assert len(fake.requests_for(model)) == 1


async def test_a_background_stream_outlives_a_killed_web_process(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script([text("a"), wait_for(released), text("b"), finish(), usage(), done()])
    web = await own_stack.start_web()
    response_id = await own_stack.api(web).create_background(model)
    async with own_stack.api(web).follow(response_id) as first_part:
        await first_part.until("response.output_text.delta")
        own_stack.kill(web)
    async with own_stack.api().follow(response_id, after=first_part.last_number) as second_part:
        released.set()
        await second_part.to_end()
    assert_stream_obeys_contract(
        [decode(frame) for frame in first_part.frames + second_part.frames]
    )


async def test_a_foreground_response_ends_with_its_web_process(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("half"), hang()])
    web = await own_stack.start_web()
    async with own_stack.api(web).post_stream(model) as stream:
        await stream.until("response.output_text.delta")
        own_stack.kill(web)
    [request] = fake.requests_for(model)
    await until(lambda: request.closed_by_client is not None, 20)

    async def is_cancelled() -> bool:
        answer = await own_stack.api().call("GET", f"/responses/{stream.response_id}")
        return answer.status == 200 and answer.body["status"] == "cancelled"

    await until(is_cancelled)
    assert len(fake.requests_for(model)) == 1


async def test_a_foreground_request_may_finish_while_its_web_process_stops(
    own_stack: Stack, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script([text("a"), wait_for(released), text("b"), finish(), usage(), done()])
    web = await own_stack.start_web()

    async def refuses() -> bool:
        try:
            return (await own_stack.api(web).call("GET", "/models")).status != 200
        except aiohttp.ClientConnectionError:
            return True

    async with own_stack.api(web).post_stream(model) as stream:
        await stream.until("response.output_text.delta")
        stopping = asyncio.create_task(own_stack.stop(web))
        await until(refuses)
        released.set()
        await stream.to_end()
        await stopping
    assert stream.final["output_text"] == "ab"


async def test_after_kill_9_of_all_processes_open_responses_end_and_ended_ones_are_unchanged(
    embedded_postgres: None,
    embedded_redis: None,
    tmp_path: Path,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> None:
    # The processes may notice that their servers are down before they are killed.
    async with own_servers(
        tmp_path, suite_settings, fake, settings=SHORT_LEASES, allowed_tracebacks=SERVER_TRACEBACKS
    ) as (running, postgres):
        finished = await running.api().wait_for_end(
            await running.api().create_background(fake.script(reply("done before")))
        )
        frames_before = await running.api().replay(finished["id"])
        model = fake.script([text("half"), hang()], reply("whole"))
        async with running.api().post_stream(model, background=True) as first_part:
            await first_part.until("response.output_text.delta")
            assert running.valkey is not None
            for process in [*running.webs, *running.workers]:
                running.kill(process)
            running.valkey.kill()
            postgres.kill()
        postgres.start()
        running.valkey.start()
        running.spawn_worker()
        await running.start_web()
        ended = await running.api().wait_for_end(first_part.response_id)
        assert (ended["status"], ended["output_text"]) == ("completed", "whole")
        frames = await running.api().replay(first_part.response_id)
        assert_one_stream(frames)
        assert await running.api().get(finished["id"]) == finished
        assert await running.api().replay(finished["id"]) == frames_before


async def test_a_running_response_survives_a_restart_of_postgres(
    embedded_postgres: None, tmp_path: Path, suite_settings: SuiteSettings, fake: FakeUpstream
) -> None:
    async with own_servers(
        tmp_path, suite_settings, fake, webs=2, allowed_tracebacks=POSTGRES_TRACEBACKS
    ) as (running, postgres):
        gates = [asyncio.Event() for _ in range(3)]
        steps = [
            text("a"),
            wait_for(gates[0]),
            text(*CHUNKS),
            wait_for(gates[1]),
            text("b"),
            wait_for(gates[2]),
            finish(),
            usage(),
            done(),
        ]
        model = fake.script(steps, reply("never"))
        response_id = await running.api().create_background(model)
        async with running.api(0).follow(response_id) as stream, console_user(running) as user:
            await stream.until("response.output_text.delta")
            await user.get(f"{LOGIN_PATH}{create_link(running.dsn)}")
            postgres.stop()
            gates[0].set()
            gates[1].set()
            refused, page = await asyncio.gather(
                running.api(1).call(
                    "POST", "/responses", {"model": model, "input": "x", "background": True}
                ),
                user.get("/console/responses"),
            )
            assert (page.status, "PostgreSQL does not answer" in page.text) == (503, True)
            assert refused.status == 503
            assert refused.headers["retry-after"] == "1"
            assert refused.error["type"] == "server_error"
            postgres.start()
            await stream.until("response.output_text.delta", count=len(CHUNKS) + 1)
            gates[2].set()
            await stream.to_end()
        assert stream.final["output_text"] == "a" + "".join(CHUNKS) + "b"
        assert_one_stream(stream.frames)
        assert await running.api(1).replay(response_id) == stream.frames
        assert len(fake.requests_for(model)) == 1, (
            "the attempt and its upstream connection survived; the refused create never ran"
        )


@pytest.mark.long
async def test_a_running_response_survives_a_crash_of_postgres(
    embedded_postgres: None, tmp_path: Path, suite_settings: SuiteSettings, fake: FakeUpstream
) -> None:
    """The crash empties the journal; the worker has all events since its last flush in memory."""
    async with own_servers(
        tmp_path, suite_settings, fake, allowed_tracebacks=POSTGRES_TRACEBACKS
    ) as (running, postgres):
        released = asyncio.Event()
        model = fake.script(
            [text(*CHUNKS), wait_for(released), text("b"), finish(), usage(), done()],
            reply("never"),
        )
        async with running.api().post_stream(model, background=True) as stream:
            await stream.until("response.output_text.delta", count=len(CHUNKS))
            postgres.kill()
            postgres.start()
            released.set()
            await _end_of(running.api(), stream.response_id)
        frames = await running.api().replay(stream.response_id)
        assert_one_stream(frames)
        assert frames[: len(stream.frames)] == stream.frames
        assert decode(frames[-1])["response"]["output_text"] == "".join(CHUNKS) + "b"
        assert len(fake.requests_for(model)) == 1


async def _end_of(api: Api, response_id: str) -> None:
    async def is_over() -> bool:
        answer = await api.call("GET", f"/responses/{response_id}")
        return answer.status == 200 and answer.body["status"] == "completed"

    await until(is_over, 30)
