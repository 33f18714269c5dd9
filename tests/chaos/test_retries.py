"""Retries of creates whose first try lost its connection or its web process."""

import asyncio
from typing import Any

import psycopg
import pytest

from tests.conftest import PrivateStack
from tests.support.api import HttpResponse, until
from tests.support.chaos.proxy import Proxy
from tests.support.chaos.tracebacks import POSTGRES_TRACEBACKS
from tests.support.fake_upstream import FakeUpstream, reply, wait_for
from tests.support.stack import SHORT_LEASES, Stack

_INSERT = b"INSERT INTO responses"


async def _until_an_end_is_noticed(own_stack: Stack) -> None:
    """In the first ten seconds of PostgreSQL nothing follows from a missing session."""
    ten_seconds = "SELECT pg_postmaster_start_time() < clock_timestamp() - interval '10 s'"

    async def may_conclude() -> bool:
        return bool(await own_stack.value(ten_seconds))

    await until(may_conclude, 15)


@pytest.mark.long
async def test_a_joined_response_outlives_the_web_process_of_the_first_request(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(webs=2, settings=SHORT_LEASES) as own_stack:
        released = asyncio.Event()
        model = fake.script([wait_for(released), *reply("kept")], reply("a second time"))
        headers, body = {"idempotency-key": "k"}, {"model": model, "input": "x"}
        first_web = own_stack.webs[0]
        requests = []
        for web in (0, 1):
            post = own_stack.api(web).call("POST", "/responses", body, headers=headers)
            requests.append(asyncio.create_task(post))
            await until(lambda: fake.requests_for(model))
        joined = "SELECT count(*) FROM responses r JOIN workers w ON w.id = r.web WHERE w.pid = %s"

        async def is_joined() -> bool:
            return bool(await own_stack.value(joined, own_stack.webs[1].pid))

        await until(is_joined)
        own_stack.kill(first_web)
        is_dead = "SELECT dead FROM workers WHERE pid = %s"

        async def is_reaped() -> bool:
            return bool(await own_stack.value(is_dead, first_web.pid))

        await until(is_reaped, 20)
        # The owner's heartbeat looks for responses of dead web processes; let it look twice.
        renewals = "SELECT expires_at FROM workers WHERE kind = 'worker' AND NOT dead"
        for _ in range(2):
            seen = await own_stack.value(renewals)

            async def is_renewed(seen: object = seen) -> bool:
                return bool(await own_stack.value(renewals) != seen)

            await until(is_renewed)
        released.set()
        await asyncio.wait({requests[0]})
        assert requests[0].exception() is not None
        assert (await requests[1]).body["output_text"] == "kept"
        assert len(fake.requests_for(model)) == 1


@pytest.mark.parametrize(
    "background",
    [True, pytest.param(False, marks=pytest.mark.long)],
    ids=["background", "foreground"],
)
async def test_the_sdks_retry_continues_the_response_of_a_killed_web_process(
    private_stack: PrivateStack, fake: FakeUpstream, *, background: bool
) -> None:
    """The official client, and a load balancer before two web processes."""
    async with private_stack(
        webs=2,
        settings=SHORT_LEASES,
        proxied=True,
        allowed_tracebacks=POSTGRES_TRACEBACKS,
    ) as own_stack:
        first_web, second_web = own_stack.webs
        assert first_web.port is not None
        assert second_web.port is not None
        balancer = Proxy("127.0.0.1", first_web.port)
        client = own_stack.openai().with_options(
            base_url=f"http://127.0.0.1:{balancer.port}/v1", max_retries=2
        )
        model = fake.script(reply("once"), reply("twice"))
        await _until_an_end_is_noticed(own_stack)
        held = first_web.proxies.postgres.hold_answer(_INSERT)
        call = asyncio.create_task(
            client.responses.create(model=model, input="x", background=background)
        )
        await held.answered.wait()
        balancer.redirect(second_web.port)
        own_stack.kill(first_web)
        response = await call
        ended = await own_stack.api().wait_for_end(response.id)
        assert ended["output_text"] == "once"
        assert await own_stack.value("SELECT count(*) FROM responses WHERE model = %s", model) == 1
        await balancer.close()


async def test_each_retry_of_the_sdk_takes_over_another_unanswered_response(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """The clients disconnect while PostgreSQL stores their responses."""
    async with private_stack(
        webs=2, proxied=True, allowed_tracebacks=POSTGRES_TRACEBACKS
    ) as own_stack:
        model = fake.script(*(reply(f"{number}") for number in range(4)))
        body = {"model": model, "input": "x", "background": True}

        async def post(web: int, count: int) -> str:
            headers = {"x-stainless-retry-count": f"{count}"}
            answer = await own_stack.api(web).call("POST", "/responses", body, headers=headers)
            assert answer.status == 200, answer.raw
            return str(answer.body["id"])

        held = [own_stack.webs[0].proxies.postgres.hold_answer(_INSERT) for _ in range(3)]
        calls = []
        for answer in held:
            # One after the other: those that come together are stored by one statement.
            calls.append(asyncio.create_task(post(0, 0)))
            await answer.answered.wait()
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        for answer in held:
            answer.release()
        unanswered = "SELECT count(*) FROM responses WHERE model = %s AND waiter IS NULL"

        async def are_unanswered() -> bool:
            return bool(await own_stack.value(unanswered, model) == 3)

        await until(are_unanswered)
        retried = await asyncio.gather(*(post(1, 1) for _ in range(4)))
        assert len(set(retried)) == 4
        assert await own_stack.value("SELECT count(*) FROM responses WHERE model = %s", model) == 4


async def test_a_retry_takes_over_an_unanswered_response_that_a_worker_has_locked(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """A worker locks the row for a moment when it claims or ends the response."""
    async with private_stack(proxied=True, allowed_tracebacks=POSTGRES_TRACEBACKS) as own_stack:
        model = fake.script(reply("once"), reply("twice"))
        body = {"model": model, "input": "x", "background": True}
        held = own_stack.webs[0].proxies.postgres.hold_answer(_INSERT)

        def post(count: int) -> asyncio.Task[HttpResponse]:
            headers = {"x-stainless-retry-count": f"{count}"}
            call = own_stack.api().call("POST", "/responses", body, headers=headers)
            return asyncio.create_task(call)

        first = post(0)
        await held.answered.wait()
        first.cancel()
        await asyncio.wait({first})
        held.release()
        unanswered = "SELECT id FROM responses WHERE model = %s AND waiter IS NULL"

        async def is_unanswered() -> bool:
            return await own_stack.value(unanswered, model) is not None

        await until(is_unanswered)
        response_id = await own_stack.value(unanswered, model)
        async with await psycopg.AsyncConnection.connect(own_stack.dsn) as worker:
            lock = "SELECT FROM responses WHERE id = %s FOR NO KEY UPDATE"
            await worker.execute(lock, (response_id,))
            retry = post(1)
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

            async def waits_or_has_ended() -> bool:
                return retry.done() or bool(await own_stack.value(waiting))

            await until(waits_or_has_ended)
        assert (await retry).status == 200
        assert await own_stack.value("SELECT count(*) FROM responses WHERE model = %s", model) == 1


async def test_a_killed_web_process_makes_one_of_each_with_the_sdks_retry(
    private_stack: PrivateStack,
) -> None:
    """It dies when the transactions of some creates are committed, and those of others are not."""
    async with private_stack(
        webs=2, settings=SHORT_LEASES, proxied=True, allowed_tracebacks=POSTGRES_TRACEBACKS
    ) as own_stack:
        first_web, second_web = own_stack.webs
        assert first_web.port is not None
        assert second_web.port is not None
        balancer = Proxy("127.0.0.1", first_web.port)
        client = own_stack.openai().with_options(
            base_url=f"http://127.0.0.1:{balancer.port}/v1", max_retries=2
        )
        await _until_an_end_is_noticed(own_stack)
        calls: list[asyncio.Task[Any]] = []
        for pattern in (b"COMMIT", b"SET made"):
            for create in (
                client.conversations.create(metadata={"at": pattern.decode()}),
                client.files.create(file=(pattern.decode(), b"x"), purpose="user_data"),
                client.uploads.create(
                    bytes=1,
                    filename=f"upload {pattern.decode()}",
                    mime_type="text/plain",
                    purpose="user_data",
                ),
            ):
                held = first_web.proxies.postgres.hold_answer(pattern)
                calls.append(asyncio.create_task(create))
                await held.answered.wait()
        balancer.redirect(second_web.port)
        own_stack.kill(first_web)
        made = await asyncio.gather(*calls)
        assert len({one.id for one in made}) == len(made)
        assert await own_stack.value("SELECT count(*) FROM conversations") == 2
        files = "SELECT count(*) FROM files WHERE {} AND delete_requested_at IS NULL"
        assert await own_stack.value(files.format("completed_at IS NOT NULL")) == 2
        assert await own_stack.value(files.format("starts_with(filename, 'upload')")) == 2
        await balancer.close()


async def test_a_create_whose_claim_lost_its_answer_keeps_no_key(
    private_stack: PrivateStack,
) -> None:
    """PostgreSQL has stored who has the key, and the web process has not heard it."""
    async with private_stack(proxied=True, allowed_tracebacks=POSTGRES_TRACEBACKS) as own_stack:
        postgres = own_stack.webs[0].proxies.postgres

        def post(**headers: str) -> asyncio.Task[HttpResponse]:
            body = {"metadata": {"headers": ",".join(headers)}}
            call = own_stack.api().call("POST", "/conversations", body, headers=headers)
            return asyncio.create_task(call)

        def lose(statement: bytes) -> None:
            """The answers to it and to its repetition."""
            for _ in range(2):
                postgres.hold_answer(statement).lose()

        lose(b"INSERT INTO idempotency_keys")
        keyed = {"idempotency-key": "k"}
        assert (await post(**keyed)).status == 503
        first, second = await post(**keyed), await post(**keyed)
        assert first.status == second.status == 200
        assert first.body["id"] == second.body["id"]
        # An SDK sends no key: its retry takes the create that got no answer.
        made = postgres.hold_answer(b"UPDATE idempotency_keys SET made")
        unanswered = post(**{"x-stainless-retry-count": "0"})
        await made.answered.wait()
        unanswered.cancel()
        await asyncio.wait({unanswered})
        made.release()
        lost = "SELECT made FROM idempotency_keys WHERE key LIKE 'sdk:%%' AND lost AND made <> %s"
        conversation = await until(lambda: own_stack.value(lost, ""))
        for count in (1, 2):
            lose(b"WITH taken")
            assert (await post(**{"x-stainless-retry-count": str(count)})).status == 503
        retried = await post(**{"x-stainless-retry-count": "3"})
        assert (retried.status, retried.body["id"]) == (200, conversation)
