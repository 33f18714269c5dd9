"""Quotas while Redis is away, and after a worker or a web process was killed."""

import asyncio
import secrets
import time

import pytest

from tests.conftest import PrivateStack
from tests.support.api import Api, HttpResponse, until
from tests.support.chaos.tracebacks import REDIS_TRACEBACKS
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    done,
    finish,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.projects import limited_project
from tests.support.stack import SHORT_LEASES


def _held(gate: asyncio.Event) -> Script:
    return [text("held"), wait_for(gate), finish(), usage(), done()]


async def _create(
    api: Api, model: str, *, background: bool = True, text: str = "Hi."
) -> HttpResponse:
    body = {"model": model, "input": text, "background": background}
    return await api.call("POST", "/responses", body)


@pytest.mark.usefixtures("embedded_redis")
async def test_limits_stay_while_redis_is_away_and_what_a_killed_worker_ran_is_not_lost(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with private_stack(
        webs=2, settings=SHORT_LEASES, allowed_tracebacks=REDIS_TRACEBACKS
    ) as stack:
        assert stack.valkey is not None
        counted = await limited_project(stack, running=1)
        rated = await limited_project(stack, requests_per_minute=4)
        full = await limited_project(stack, stored_bytes=85_000)
        random_text = secrets.token_urlsafe(60_000)  # 80 000 bytes that cannot be compressed
        stored = await _create(full.api(), fake.script(reply("ok")), text=random_text)
        assert stored.status == 200
        gate = asyncio.Event()
        model = fake.script(_held(gate), _held(gate), reply("again"))
        held = await _create(counted.api(), model)
        assert held.status == 200
        assert (await _create(rated.api(), fake.script(reply("ok")))).status == 200

        stack.valkey.kill()
        assert (await _create(counted.api(1), model)).status == 429, "Postgres says what runs"

        # This process has never learned from Redis what the project stores.
        admitted: list[int] = []

        async def is_full() -> bool:
            answer = await _create(full.api(1), fake.script(reply("ok")))
            admitted.append(answer.status)
            return answer.status == 429 and answer.error["code"] == "insufficient_quota"

        await until(is_full)
        assert len(admitted) < 60, "Postgres says what is stored"
        began_at = time.monotonic()
        answers = [
            await _create(rated.api(web), fake.script(reply("ok"))) for web in (0, 1, 0, 1, 0, 1)
        ]
        statuses = [answer.status for answer in answers]
        assert set(statuses) == {200, 429}
        # Each of two processes has half of four a minute, and one has seen the request before.
        # Each of both gets two more in a minute.
        refilled = (time.monotonic() - began_at) / 15
        assert 3 <= statuses.count(200) <= 4 + refilled

        stack.valkey.start()
        stack.kill(stack.workers[0])
        await stack.start_worker()

        async def runs_again() -> bool:
            return len(fake.requests_for(model)) == 2

        await until(runs_again, 30)
        assert (await _create(counted.api(1), model)).status == 429, "it still runs"
        gate.set()
        await counted.api().wait_for_end(held.body["id"])

        async def is_admitted() -> bool:
            return (await _create(counted.api(), model)).status == 200

        await until(is_admitted, 20)
