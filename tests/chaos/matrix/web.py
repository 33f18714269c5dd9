"""The fault matrix: a web process, and a reader."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from models.config.web import WebSettings
from models.db.queries import read as read_queries
from tests.chaos.matrix.checks import (
    assert_completes,
    assert_create_refused,
    assert_readers_stayed_connected,
    assert_streams_continue,
)
from tests.support.api import Api, decode, until
from tests.support.chaos.fragments import fragment
from tests.support.chaos.lab import PAST_THE_LEASE, Lab, Victim
from tests.support.chaos.load import Load
from tests.support.chaos.load_client import ALL, LoadKind
from tests.support.chaos.proxy import Proxy
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import reply

web = Victim("web", workers=1, settings={"BACKBURNER_LEASE__DURATION": "8"})
"""Its lease is longer than the time until a create is refused."""
reader = Victim("reader", settings={"BACKBURNER_WEB__SEND_TIMEOUT": "3"})

SHOWN = fragment(read_queries.SHOWN_RESPONSES, "r.worker IS NOT DISTINCT FROM")
"""Part of the statement of a GET."""
LISTED = fragment(read_queries.INPUT_ITEMS["desc"], "i.direction = 'input'")
"""Part of the statement that lists the input of a response."""
WEB_POOL = WebSettings().pool_size
CANCELLED_WITH_FIRST_WEB = [LoadKind.WAITING]
"""The foreground member whose client is at the first of two web processes."""


@web.cell("sigstop")
async def is_frozen_past_its_lease(lab: Lab) -> None:
    """It is declared dead: its foreground responses are cancelled, its readers resume elsewhere."""
    load = await lab.start_load()
    victim = lab.stack.webs[0]
    lab.freeze(victim)
    load.release_second_word()
    await lab.wait_until_reaped(victim)
    lab.thaw(victim)
    await lab.wait_until_exited(victim)
    await load.wait_until_upstream_closed(CANCELLED_WITH_FIRST_WEB)
    await load.finish()
    await load.assert_outcomes(cancelled=CANCELLED_WITH_FIRST_WEB)


@web.cell("restart")
async def is_killed_and_comes_back(lab: Lab) -> None:
    load = await lab.start_load()
    victim = lab.stack.webs[0]
    lab.kill(victim)
    load.release_second_word()
    successor = await lab.stack.start_web(victim.port)
    await load.wait_until_upstream_closed(CANCELLED_WITH_FIRST_WEB)
    await load.finish()
    await load.assert_outcomes(
        cancelled=CANCELLED_WITH_FIRST_WEB, web=lab.stack.webs.index(successor)
    )


@web.cell("refused")
async def is_refused_by_its_postgres(lab: Lab) -> None:
    """Its streams continue over Redis; a create in that time is refused and never runs."""
    load = await lab.start_load()
    victim = lab.stack.webs[0]
    lab.fault("disconnected", victim)
    victim.proxies.postgres.refuse()
    load.release_second_word()
    await load.wait_for_words(2)
    refused = await assert_create_refused(lab)
    victim.proxies.postgres.heal()
    await assert_completes(lab, load)
    assert not await lab.is_dead(victim)
    assert not lab.fake.requests_for(refused)


@web.cell("hung")
async def gets_no_reply_from_its_postgres(lab: Lab) -> None:
    """Its streams continue; a create waits for the reply and then runs."""
    load = await lab.start_load()
    postgres = lab.stack.webs[0].proxies.postgres
    postgres.hang()
    load.release_second_word()
    await load.wait_for_words(2)
    model = lab.fake.script(reply("fine"))
    create = asyncio.create_task(lab.stack.api().create_background(model))
    await until(lambda: postgres.blocked >= 2)
    assert not create.done()
    postgres.heal()
    assert (await lab.stack.api().wait_for_end(await create))["output_text"] == "fine"
    await assert_completes(lab, load)
    assert len(lab.fake.requests_for(model)) == 1


@web.cell("pool-exhausted")
async def has_no_free_connection(lab: Lab) -> None:
    """As many requests of a project as it may have connections wait for replies: streams continue,
    and so do its creates, which belong to all projects."""
    load = await lab.start_load()
    proxy = lab.stack.webs[0].proxies.postgres
    share = WEB_POOL * 2 // 3 + 1  # models/load/fair_queue.py
    held = [proxy.hold_answer(LISTED) for _ in range(share)]
    path = f"/responses/{load.of(LoadKind.CHAINED).response_id}/input_items"
    lists = [asyncio.create_task(lab.stack.api().call("GET", path)) for _ in range(share)]
    await until(lambda: all(answer.answered.is_set() for answer in held))
    load.release_second_word()
    await load.wait_for_words(2)
    created = await lab.stack.api().create_background(lab.fake.script(reply("fine")))
    for answer in held:
        answer.release()
    assert {answer.status for answer in await asyncio.gather(*lists)} == {200}
    assert (await lab.stack.api().wait_for_end(created))["output_text"] == "fine"
    await assert_completes(lab, load)


@web.latency_cells
async def has_slow_servers(lab: Lab, seconds: float) -> None:
    load = await lab.start_load()
    for proxy in (lab.stack.webs[0].proxies.postgres, lab.stack.webs[0].proxies.redis):
        proxy.latency(seconds)
    await assert_streams_continue(lab, load)
    await assert_completes(lab, load)


@web.cell("latency-while-it-ends")
async def gets_a_late_reply_during_an_ending(lab: Lab) -> None:
    """A GET whose reply was on its way during the ending shows the earlier state, items once."""
    load = await lab.start_load()
    response_id = load.of(LoadKind.POLLED).response_id
    held = lab.stack.webs[0].proxies.postgres.hold_answer(SHOWN)
    get = asyncio.create_task(lab.stack.api().get(response_id))
    await held.answered.wait()
    await load.finish()
    held.release()
    assert len((await get)["output"]) <= 1
    await load.assert_outcomes()


@web.cell("redis-refused")
async def is_refused_by_its_redis(lab: Lab) -> None:
    load = await lab.start_load()
    lab.stack.webs[0].proxies.redis.refuse()
    await _assert_works_without_redis(lab, load)


@web.cell("redis-hung")
async def gets_no_reply_from_its_redis(lab: Lab) -> None:
    load = await lab.start_load()
    lab.stack.webs[0].proxies.redis.hang()
    await _assert_works_without_redis(lab, load)


async def _assert_works_without_redis(lab: Lab, load: Load) -> None:
    """It reads the journals; sweeps find its creates; heartbeats of workers see its cancels."""
    await assert_streams_continue(lab, load)
    lab.stack.webs[0].proxies.redis.heal()
    await assert_completes(lab, load)
    assert_readers_stayed_connected(load)


# --- a reader ---


@asynccontextmanager
async def _client_through_proxy(lab: Lab) -> AsyncIterator[tuple[Proxy, Api]]:
    """A proxy before the first web process, and a client that uses it."""
    direct = lab.stack.api()
    port = lab.stack.webs[0].port
    assert port is not None
    proxy = Proxy("127.0.0.1", port)
    try:
        yield proxy, Api(f"http://127.0.0.1:{proxy.port}/v1", direct.key, direct.session)
    finally:
        await proxy.close()


@reader.cell("kill9")
async def is_disconnected(lab: Lab) -> None:
    """Readers resume by number; clients of foreground responses have cancelled them."""
    async with _client_through_proxy(lab) as (proxy, api):
        load = await lab.start_load(ALL, api)
        load.expects_disconnects = True
        proxy.cut()
        load.release_second_word()
        cancelled = [LoadKind.FOREGROUND, LoadKind.WAITING]
        await load.wait_until_upstream_closed(cancelled)
        await load.finish()
        await load.assert_outcomes(cancelled=cancelled)
        assert load.of(LoadKind.STREAMED).connections == 2


@reader.cell("sigstop")
async def reads_nothing_for_longer_than_a_lease(lab: Lab) -> None:
    """As a laptop that was closed: while the buffers have room, it misses nothing."""
    async with _client_through_proxy(lab) as (proxy, api):
        load = await lab.start_load(ALL, api)
        proxy.hang()
        load.release_second_word()
        finish = asyncio.create_task(load.finish())
        await asyncio.wait({finish}, timeout=PAST_THE_LEASE)
        assert not finish.done()
        proxy.heal()
        await finish
        await load.assert_outcomes()


@reader.latency_cells
async def has_a_slow_connection(lab: Lab, seconds: float) -> None:
    async with _client_through_proxy(lab) as (proxy, api):
        proxy.latency(seconds)
        load = await lab.start_load(ALL, api)
        load.release_second_word()
        await load.wait_for_words(2)
        await load.finish()
        await load.assert_outcomes()


@reader.cell("hung")
async def reads_nothing_of_a_long_answer(lab: Lab) -> None:
    """It is disconnected when its buffers are full; the response ends, and it resumes by number."""
    model = lab.fake.script(reply(*["word " * 2000] * 700))
    async with _client_through_proxy(lab) as (proxy, api):
        response_id = await api.create_background(model)
        async with api.follow(response_id) as stream:
            await stream.until("response.output_text.delta")
            proxy.hang()
            ended = await lab.stack.api().wait_for_end(response_id, 40)
            await until(lambda: "slow_client_disconnected" in lab.stack.webs[0].tail(), 20)
            proxy.heal()
            with pytest.raises(aiohttp.ClientPayloadError):
                await stream.to_end()
        frames = await _resume_to_end(api, response_id, stream.frames)
    assert_stream_obeys_contract([decode(frame) for frame in frames])
    assert decode(frames[-1])["response"] == ended


async def _resume_to_end(api: Api, response_id: str, first_frames: list[bytes]) -> list[bytes]:
    """Resumes until the terminal event; on a busy machine it may be disconnected again."""
    frames = list(first_frames)
    while not frames[-1].startswith(b"event: response.completed"):
        number = decode(frames[-1])["sequence_number"]
        async with api.follow(response_id, number) as stream:
            with contextlib.suppress(aiohttp.ClientPayloadError):
                await stream.to_end()
        frames += stream.frames
    return frames


@reader.cell("pool-exhausted")
async def is_one_of_very_many(lab: Lab) -> None:
    """Ten times as many readers as connections to PostgreSQL: all get the same frames."""
    load = await lab.start_load()
    streamed = load.of(LoadKind.STREAMED)
    replays = [
        asyncio.create_task(lab.stack.api().replay(streamed.response_id))
        for _ in range(10 * WEB_POOL)
    ]
    load.release_second_word()
    await load.finish()
    for replay in replays:
        assert await replay == streamed.frames
    await load.assert_outcomes()
