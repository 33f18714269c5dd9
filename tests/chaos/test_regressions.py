"""Faults that campaigns have shown, each as a test that meets it every time."""

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import psycopg

from models.config.settings import Settings
from models.ids import new_uuid
from tests.conftest import PrivateStack
from tests.support.api import until
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
from tests.support.stack import SHORT_LEASES
from web.stream.bus import Bus


async def test_a_get_across_the_end_of_a_turn_shows_each_item_once(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """GET read the log and then the items: an ending in between showed the message twice (I7)."""
    async with private_stack(webs=2, proxied=True) as running:
        released = asyncio.Event()
        model = fake.script([text("a", "b"), wait_for(released), finish(), usage(), done()])
        async with running.api(1).post_stream(model, background=True) as stream:
            await stream.until("response.output_text.delta", count=2)
            held_answer = running.webs[0].proxies.postgres.hold_answer(b"JOIN journal j")
            get_task = asyncio.create_task(running.api(0).get(stream.response_id))
            await held_answer.answered.wait()
            released.set()
            await stream.to_end()
            held_answer.release()
            response = await get_task
        assert (response["status"], response["output_text"]) == ("in_progress", "ab")
        assert len(response["output"]) == 1


async def test_output_is_kept_until_the_next_attempt_has_output(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """GET showed no output after a takeover, and a cancel brought the old output back (I7, I10)."""
    async with private_stack(settings=SHORT_LEASES) as running:
        model = fake.script([text("a", "b"), hang()], [hang()])
        api = running.api()
        async with api.post_stream(model, background=True) as stream:
            await stream.until("response.output_text.delta", count=2)
            running.kill(running.workers[0])
            await running.start_worker()
            await until(lambda: len(fake.requests_for(model)) == 2, 30)
            response = await api.get(stream.response_id)
            assert (response["status"], response["output_text"]) == ("in_progress", "ab")
            await api.cancel(stream.response_id)
            await stream.to_end()
            assert [item["id"] for item in stream.final["output"]] == [
                item["id"] for item in response["output"]
            ]


async def test_a_create_waits_for_a_lease_that_is_about_to_be_renewed(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """After an outage a foreground create was refused although Postgres was back: a statement found
    a connection before the heartbeat did."""
    settings = SHORT_LEASES | {"BACKBURNER_LEASE__OBSERVE": "60"}
    async with (
        private_stack(settings=settings) as running,
        await psycopg.AsyncConnection.connect(running.dsn) as database,
    ):
        # Only renewals need this lock.
        await database.execute("SELECT 1 FROM workers WHERE kind = 'web' FOR NO KEY UPDATE")

        async def has_run_out() -> bool:
            url = f"http://127.0.0.1:{running.webs[0].port}/readyz"
            async with running.session.get(url) as answer:
                return bool((await answer.json())["lease"] == "not renewed")

        await until(has_run_out, 20)
        create = asyncio.create_task(running.api().create(fake.script(reply("here"))))
        await asyncio.wait({create}, timeout=0.5)
        assert not create.done()
        await database.rollback()
        assert (await create)["output_text"] == "here"


async def test_a_new_stream_needs_no_read_of_its_log(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """Each new stream waited for a read of its log before its first event, and before its last.

    A stream that stays silent for two seconds reads its log, so on a busy machine some may.
    """
    async with private_stack(proxied=True) as running:
        postgres = running.webs[0].proxies.postgres
        postgres.latency(0.1)  # the create takes longer than the subscription
        postgres.count(b"is_rewritten")
        for background in (False, True):
            total_reads = [*postgres.counts.values()]
            for _ in range(3):
                model = fake.script([text("a", "b"), finish(), usage(), done()])
                async with running.api().post_stream(model, background=background) as stream:
                    await stream.to_end()
                total_reads += postgres.counts.values()
            assert any(before == after for before, after in pairwise(total_reads)), total_reads
        postgres.latency(0)
        [reads] = postgres.counts.values()
        await running.api().replay(stream.response_id)
        assert list(postgres.counts.values()) == [reads + 1]


async def test_a_resumed_worker_calls_no_upstream_for_a_response_that_it_has_lost(
    private_stack: PrivateStack, fake: FakeUpstream, tmp_path: Path
) -> None:
    """It was suspended while the response waited for a place at the upstream, and another worker
    has run it. The place becomes free as soon as it is resumed (I5)."""
    file = tmp_path / "backburner.toml"
    file.write_text(
        f"""
        [upstreams]
        narrow = {{ base_url = "{fake.base_url}", concurrency = 1, wait = 60 }}
        [routes]
        "*" = "narrow"
        """
    )
    settings = {**SHORT_LEASES, "BACKBURNER_CONFIG": str(file)}
    async with private_stack(settings=settings) as running:
        suspended, released = running.workers[0], asyncio.Event()
        first = fake.script([wait_for(released), *reply("a")], reply("b"))
        second = fake.script(reply("once"), reply("twice"))
        await running.api().create_background(first)
        await until(lambda: fake.requests_for(first))
        async with running.api().post_stream(second, background=True) as stream:
            await stream.until("response.in_progress")
            suspended.pause()
            released.set()
            await running.start_worker()
            await stream.to_end()
        suspended.resume()
        await until(lambda: not suspended.running())
        running.forget(suspended)
        assert stream.final["output_text"] == "once"
        assert len(fake.requests_for(second)) == 1


_CLOSED_TRANSPORT = (
    "unable to perform operation on <TCPTransport closed=True>; the handler is closed"
)


class _ClosedConnection:
    """A Redis connection as uvloop leaves it just after it was closed."""

    def write(self, *_: object) -> None:
        raise RuntimeError(_CLOSED_TRANSPORT)


async def test_a_reader_that_connects_as_redis_stops_reads_the_log() -> None:
    """The RuntimeError of a closed connection ended the reader's stream (I3, I8)."""
    settings = Settings(
        database_url=cast("Any", "postgres://unused/none"), redis_url=cast("Any", "redis://unused")
    )
    bus = Bus(settings, new_uuid())
    [server] = bus._servers
    server._connection = cast("Any", _ClosedConnection())
    async with bus.subscribe(new_uuid()) as inbox:
        bus.wake_all()
        assert await inbox.next() is None
