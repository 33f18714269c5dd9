"""The fault matrix: a web process, and a reader."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from models.db.queries import read as read_queries
from tests.support.api import Api, decode, until
from tests.support.chaos.fragments import fragment
from tests.support.chaos.lab import PAST_THE_LEASE, Lab, Victim
from tests.support.chaos.load import ALL, Load, LoadKind
from tests.support.chaos.proxy import Proxy
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import reply

web = Victim("web", workers=1, settings={"BACKBURNER_LEASE__DURATION": "8"})
"""Its lease is longer than a create takes to be refused."""
reader = Victim("reader", settings={"BACKBURNER_WEB__SEND_TIMEOUT": "3"})

VISIBLE = fragment(
    read_queries.VISIBLE_RESPONSE, "r.delete_requested_at IS NULL AND (r.background OR"
)
RUNNING = fragment(
    read_queries.RUNNING_RESPONSE, "SELECT id, status, checkpoint_number, worker FROM responses"
)
WEB_POOL = 16
CANCELLED_WITH_FIRST_WEB = [LoadKind.WAITING]
"""Of a load on web processes 0 and 1, in turn: the foreground member whose client is at the first."""


async def assert_create_refused(lab: Lab) -> str:
    """A create that is answered 503; its model, which must never be asked for."""
    model = lab.fake.script(reply("never"))
    answer = await lab.stack.api().call(
        "POST", "/responses", {"model": model, "input": "x", "background": True}
    )
    assert answer.status == 503, answer.raw
    assert answer.headers["retry-after"] == "1"
    assert answer.error["type"] == "server_error"
    return model


@web.cell("sigstop")
async def stalls_past_its_lease(lab: Lab) -> None:
    """It is declared dead, and whoever waited for a foreground response at it gets none; its readers go on elsewhere."""
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
    back = await lab.stack.start_web(victim.port)
    await load.wait_until_upstream_closed(CANCELLED_WITH_FIRST_WEB)
    await load.finish()
    await load.assert_outcomes(cancelled=CANCELLED_WITH_FIRST_WEB, web=lab.stack.webs.index(back))


@web.cell("refused")
async def loses_its_postgres(lab: Lab) -> None:
    """Its streams go on, over Redis; what it is asked to create is refused, and never runs."""
    load = await lab.start_load()
    lab.stack.webs[0].proxies.postgres.refuse()
    load.release_second_word()
    await load.wait_for_words(2)
    unheard = await assert_create_refused(lab)
    lab.stack.webs[0].proxies.postgres.heal()
    await load.finish()
    await load.assert_outcomes()
    assert not lab.fake.requests_for(unheard)


@web.cell("hung")
async def hears_nothing_from_its_postgres(lab: Lab) -> None:
    """Its streams go on; a create waits for the answer, and is then as good as any."""
    load = await lab.start_load()
    lab.stack.webs[0].proxies.postgres.hang()
    load.release_second_word()
    await load.wait_for_words(2)
    model = lab.fake.script(reply("fine"))
    creating = asyncio.create_task(lab.stack.api().create_background(model))
    await until(lambda: lab.stack.webs[0].proxies.postgres.blocked >= 2)
    assert not creating.done()
    lab.stack.webs[0].proxies.postgres.heal()
    assert (await lab.stack.api().wait_for_end(await creating))["output_text"] == "fine"
    await load.finish()
    await load.assert_outcomes()
    assert len(lab.fake.requests_for(model)) == 1


@web.cell("pool-exhausted")
async def has_all_its_connections_stuck(lab: Lab) -> None:
    """Sixteen clients wait for an answer of Postgres that does not come: the next is refused, and the streams go on."""
    load = await lab.start_load()
    proxy = lab.stack.webs[0].proxies.postgres
    snares = [proxy.hold_answer(VISIBLE) for _ in range(WEB_POOL)]
    named = load.of(LoadKind.CHAINED).response_id
    asking = [asyncio.create_task(lab.stack.api().get(named)) for _ in range(WEB_POOL)]
    await until(lambda: all(snare.answered.is_set() for snare in snares))
    load.release_second_word()
    await load.wait_for_words(2)
    unheard = await assert_create_refused(lab)
    for snare in snares:
        snare.release()
    assert {response["id"] for response in await asyncio.gather(*asking)} == {named}
    await load.finish()
    await load.assert_outcomes()
    assert not lab.fake.requests_for(unheard)


@web.cell("latency-1ms")
async def has_servers_at_some_distance(lab: Lab) -> None:
    await _far_away(lab, 0.001)


@web.cell("latency-1s")
async def has_servers_far_away(lab: Lab) -> None:
    await _far_away(lab, 1.0)


async def _far_away(lab: Lab, seconds: float) -> None:
    load = await lab.start_load()
    for proxy in (lab.stack.webs[0].proxies.postgres, lab.stack.webs[0].proxies.redis):
        proxy.latency(seconds)
    load.release_second_word()
    await load.wait_for_words(2)
    await lab.assert_works()
    await load.finish()
    lab.heal()
    await load.assert_outcomes()


@web.cell("latency-while-it-ends")
async def hears_late_what_was_running(lab: Lab) -> None:
    """A GET whose answer was on its way while the response ended shows what was, once: not what was and what is."""
    load = await lab.start_load()
    named = load.of(LoadKind.POLLED).response_id
    snare = lab.stack.webs[0].proxies.postgres.hold_answer(RUNNING)
    looking = asyncio.create_task(lab.stack.api().get(named))
    await snare.answered.wait()
    await load.finish()
    snare.release()
    assert len((await looking)["output"]) <= 1
    await load.assert_outcomes()


@web.cell("redis-refused")
async def loses_its_redis(lab: Lab) -> None:
    load = await lab.start_load()
    lab.stack.webs[0].proxies.redis.refuse()
    await _without_redis(lab, load)


@web.cell("redis-hung")
async def hears_nothing_from_its_redis(lab: Lab) -> None:
    load = await lab.start_load()
    lab.stack.webs[0].proxies.redis.hang()
    await _without_redis(lab, load)


async def _without_redis(lab: Lab, load: Load) -> None:
    """It reads the journals instead; what it creates is found by a sweep; its cancels are heard by the heartbeat."""
    load.release_second_word()
    await load.wait_for_words(2)
    await lab.assert_works()
    lab.stack.webs[0].proxies.redis.heal()
    await load.finish()
    await load.assert_outcomes()
    assert [member.connections for member in load.members if member.frames] == [1, 1, 1], (
        "nobody had to come back"
    )


# --- a reader ---


@asynccontextmanager
async def _client_through_proxy(lab: Lab) -> AsyncIterator[tuple[Proxy, Api]]:
    """A way of their own for clients, and what they speak through it."""
    near = lab.stack.api()
    port = lab.stack.webs[0].port
    assert port is not None
    proxy = Proxy("127.0.0.1", port)
    try:
        yield proxy, Api(f"http://127.0.0.1:{proxy.port}/v1", near.key, near.session)
    finally:
        await proxy.close()


@reader.cell("kill9")
async def is_cut_off(lab: Lab) -> None:
    """Who reads comes back by number; who waited for a foreground response has cancelled it by going."""
    async with _client_through_proxy(lab) as (proxy, far):
        load = await lab.start_load(ALL, far)
        load.expects_disconnects = True
        proxy.cut()
        load.release_second_word()
        waiting = [LoadKind.FOREGROUND, LoadKind.WAITING]
        await load.wait_until_upstream_closed(waiting)
        await load.finish()
        await load.assert_outcomes(cancelled=waiting)
        assert load.of(LoadKind.STREAMED).connections == 2


@reader.cell("sigstop")
async def takes_nothing_for_longer_than_a_lease(lab: Lab) -> None:
    """A laptop that was closed and is opened again: as long as the buffers hold, it has missed nothing."""
    async with _client_through_proxy(lab) as (proxy, far):
        load = await lab.start_load(ALL, far)
        proxy.hang()
        load.release_second_word()
        finishing = asyncio.create_task(load.finish())
        await asyncio.wait({finishing}, timeout=PAST_THE_LEASE)
        assert not finishing.done()
        proxy.heal()
        await finishing
        await load.assert_outcomes()


@reader.cell("latency-1ms")
async def is_at_some_distance(lab: Lab) -> None:
    await _read_from_afar(lab, 0.001)


@reader.cell("latency-1s")
async def is_far_away(lab: Lab) -> None:
    await _read_from_afar(lab, 1.0)


async def _read_from_afar(lab: Lab, seconds: float) -> None:
    async with _client_through_proxy(lab) as (proxy, far):
        proxy.latency(seconds)
        load = await lab.start_load(ALL, far)
        load.release_second_word()
        await load.wait_for_words(2)
        await load.finish()
        await load.assert_outcomes()


@reader.cell("hung")
async def takes_nothing_of_a_long_answer(lab: Lab) -> None:
    """Once its buffers are full it is let go; the response ends without it, and it comes back by number."""
    model = lab.fake.script(reply(*["word " * 2000] * 700))
    async with _client_through_proxy(lab) as (proxy, far):
        response_id = await far.create_background(model)
        async with far.follow(response_id) as cut:
            await cut.until("response.output_text.delta")
            proxy.hang()
            ended = await lab.stack.api().wait_for_end(response_id, 40)
            await until(lambda: "slow_client_disconnected" in lab.stack.webs[0].tail(), 20)
            proxy.heal()
            with pytest.raises(aiohttp.ClientPayloadError):
                await cut.to_end()
        told = list(cut.frames)
        while not told[-1].startswith(
            b"event: response.completed"
        ):  # on a busy machine this one may be let go as well
            with contextlib.suppress(aiohttp.ClientPayloadError):
                async with far.follow(response_id, decode(told[-1])["sequence_number"]) as rest:
                    while await rest.next() is not None:
                        told.append(rest.frames[-1])
    assert_stream_obeys_contract([decode(frame) for frame in told])
    assert decode(told[-1])["response"] == ended


@reader.cell("pool-exhausted")
async def is_one_of_very_many(lab: Lab) -> None:
    """Ten times as many readers as the web process has connections to Postgres, all at once, all told the same."""
    load = await lab.start_load()
    streamed = load.of(LoadKind.STREAMED)
    crowd = [
        asyncio.create_task(lab.stack.api().replay(streamed.response_id))
        for _ in range(10 * WEB_POOL)
    ]
    load.release_second_word()
    await load.finish()
    for reader_of_it in crowd:
        assert await reader_of_it == streamed.frames
    await load.assert_outcomes()
