"""Failover to an asynchronous standby: the last commits are missing, and nothing else goes wrong.

The processes keep running. Their proxies lead to the new primary once it is promoted.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from cli.database.migrate import migrate
from cli.embedded.postgres import Postgres
from cli.embedded.process import free_port
from tests.support.api import Stream, until
from tests.support.chaos.load import Load
from tests.support.chaos.tracebacks import SERVER_TRACEBACKS
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import FakeUpstream, hang, reply, text, wait_for
from tests.support.stack import Stack, SuiteSettings, databases, stack
from tests.support.standby import Standby
from tests.support.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.support.webhooks import SEALED, Hooks

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("embedded_postgres", "embedded_redis")]

DELTA = "response.output_text.delta"


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookReceiver]:
    async with webhook_receiver() as one:
        yield one


@pytest.fixture
async def servers(
    tmp_path: Path, suite_settings: SuiteSettings, fake: FakeUpstream
) -> AsyncIterator[tuple[Stack, Postgres, Standby]]:
    """A deployment, its primary, and a standby of that."""
    async with databases(tmp_path / "pg", suite_settings) as own_databases:
        primary = own_databases.server
        assert primary is not None
        standby = Standby(
            tmp_path / "standby" / "data", tmp_path / "standby", primary, port=free_port()
        )
        with standby:
            async with stack(
                tmp_path,
                own_databases,
                suite_settings,
                fake,
                proxied=True,
                settings=SEALED,
                allowed_tracebacks=SERVER_TRACEBACKS,
            ) as own_stack:
                yield own_stack, primary, standby


async def test_after_a_failover_with_lost_commits_nothing_is_mixed_and_everything_ends(
    servers: tuple[Stack, Postgres, Standby], fake: FakeUpstream, receiver: WebhookReceiver
) -> None:
    own_stack, primary, standby = servers
    hooks = await asyncio.to_thread(Hooks, own_stack, "failover")
    await hooks.create(receiver)
    api, (worker,) = hooks.api, own_stack.workers
    released, second_word, finished = (asyncio.Event() for _ in range(3))
    models = {
        "kept": fake.script([text("one "), wait_for(released), *reply("two")]),
        "shortened": fake.script(
            [text("one "), wait_for(second_word), text("two "), hang()], reply("again")
        ),
        "finished": fake.script([text("one "), wait_for(finished), *reply("two")], reply("again")),
        "unclaimed": fake.script([text("lost ", "words "), hang()], reply("found words")),
        "lost": fake.script([text("one "), hang()]),
    }
    conversation = (await api.call("POST", "/conversations", {})).body["id"]
    async with (
        api.post_stream(models["kept"], background=True) as kept,
        api.post_stream(models["shortened"], background=True) as shortened,
        api.post_stream(models["finished"], background=True) as ended,
    ):
        for stream in (kept, shortened, ended):
            await stream.until(DELTA)
            await _wait_until_flushed(own_stack, stream)
        worker.pause()
        unclaimed_id = await api.create_background(models["unclaimed"])
        await standby.wait_until_equal()
        await standby.lose_contact()
        worker.resume()

        # All of this is lost.
        finished.set()
        second_word.set()
        await ended.to_end()
        assert ended.is_done
        await until(lambda: _events_of(receiver, ended.response_id))
        await shortened.until(DELTA)
        await _wait_until_flushed(own_stack, shortened)
        key = {"idempotency-key": "lost-with-its-response"}
        body = {"model": models["lost"], "input": "x", "background": True}
        lost_id = (await api.call("POST", "/responses", body, headers=key)).body["id"]
        in_conversation = await api.create(
            fake.script(reply("lost too")), conversation=conversation, background=True
        )
        await api.wait_for_end(in_conversation["id"])
        async with api.follow(lost_id) as lost, api.follow(unclaimed_id) as unclaimed:
            await lost.until(DELTA)
            await unclaimed.until(DELTA, count=2)
            await _fail_over(own_stack, primary, standby)
            for stream in (shortened, lost, unclaimed):
                frames = len(stream.frames)
                await stream.to_end()
                assert not stream.is_done
                assert len(stream.frames) == frames, "frames of another attempt were mixed in"
        released.set()
        await kept.to_end()
    assert_stream_obeys_contract(kept.events)
    assert kept.final["output_text"] == "one two"
    assert len(fake.requests_for(models["kept"])) == 1

    for response_id, output in (
        (shortened.response_id, "again"),
        (ended.response_id, "again"),
        (unclaimed_id, "found words"),
    ):
        response = await api.wait_for_end(response_id)
        assert (response["status"], response["output"][-1]["content"][0]["text"]) == (
            "completed",
            output,
        )
        async with api.follow(response_id) as replay:
            await replay.to_end()
        assert replay.is_done
        assert_stream_obeys_contract(replay.events)
        assert replay.final == response

    # It was delivered, which is lost, and it has ended once more: with the same id.
    await until(lambda: len(_events_of(receiver, ended.response_id)) == 2)
    [first, second] = _events_of(receiver, ended.response_id)
    assert first == second
    for missing in (lost_id, in_conversation["id"]):
        assert (await api.call("GET", f"/responses/{missing}")).status == 404
    await until(lambda: fake.requests_for(models["lost"])[0].closed_by_client)
    again = await api.call("POST", "/responses", body, headers=key)
    assert (again.status, again.body["status"]) == (200, "queued")
    await until(lambda: len(fake.requests_for(models["lost"])) == 2)
    assert (await api.cancel(again.body["id"])).status == 200
    items = await api.call("GET", f"/conversations/{conversation}/items")
    assert items.body["data"] == []
    continued = await api.create(fake.script(reply("fine")), conversation=conversation)
    assert continued["output_text"] == "fine"

    assert worker.running()
    assert await own_stack.value("SELECT max(crashes) FROM responses") == 0
    assert await own_stack.value("SELECT count(*) FROM responses WHERE completed_at IS NULL") == 0


def _events_of(receiver: WebhookReceiver, response_id: str) -> list[tuple[str, str]]:
    """The header and the id of each event of this response."""
    bodies = ((hook.id, json.loads(hook.body)) for hook in receiver.hooks)
    return [(name, body["id"]) for name, body in bodies if body["data"]["id"] == response_id]


async def _wait_until_flushed(own_stack: Stack, stream: Stream) -> None:
    """Waits until the event log has what the stream has received."""
    query = (
        "SELECT max(l.last_number) FROM event_log l JOIN responses r ON r.id = l.response_id"
        " WHERE 'resp_' || replace(r.id::text, '-', '') = %s"
    )

    async def is_flushed() -> bool:
        return bool(await own_stack.value(query, stream.response_id) >= stream.last_number)

    await until(is_flushed)


async def _fail_over(own_stack: Stack, primary: Postgres, standby: Standby) -> None:
    """The primary dies; all processes find the standby in its place, which is then promoted."""
    await asyncio.to_thread(primary.kill)
    for process in own_stack.started:
        process.proxies.postgres.redirect(standby.port)
    refused = await own_stack.api().call("POST", "/responses", {"model": "never", "input": "x"})
    assert refused.status == 503
    await standby.promote()
    parts = urlsplit(own_stack.dsn)
    address = parts.netloc.replace(f":{primary.port}", f":{standby.port}")
    own_stack.dsn = urlunsplit(parts._replace(netloc=address))


async def test_a_failover_that_loses_nothing_keeps_every_attempt(
    servers: tuple[Stack, Postgres, Standby], fake: FakeUpstream
) -> None:
    own_stack, primary, standby = servers
    load = Load(own_stack, fake, faults=[])
    await load.begin(own_stack.api())
    load.release_second_word()
    await load.wait_for_words(2)
    await standby.wait_until_equal()
    await _fail_over(own_stack, primary, standby)
    await load.finish()
    await load.assert_outcomes()
    # A list of hosts: the one that is the primary is used.
    both = own_stack.dsn.replace(f":{standby.port}", f":{primary.port},127.0.0.1:{standby.port}")
    await asyncio.to_thread(migrate, both)
    own_stack.settings["DATABASE_URL"] = both
    await own_stack.start_web()
    answer = await own_stack.api(1).create(fake.script(reply("fine")), background=False)
    assert answer["output_text"] == "fine"
