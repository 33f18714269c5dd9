"""A worker's memory has a budget: it waits, hands over or fails one response, and does not die."""

import asyncio
from collections.abc import AsyncIterator

import psutil
import pytest

from tests.support.api import JSON, Api, until
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
from tests.support.stack import Databases, Service, Stack, SuiteSettings, stack
from tests.support.upstream_faults import memory_growth

MB = 1_000_000
HEADROOM = 100 * MB
"""What the budget leaves above an idle worker."""
CONTAINER_SHARE = 0.8
"""The budget's share of its container (ADR 0039). The rest is for what is used between two looks at
the memory."""
WAITED_IN_VAIN = """
    SELECT EXISTS (
        SELECT 1 FROM responses r LEFT JOIN attempts a ON a.response_id = r.id
        WHERE r.model = %s AND (a.outcome = 'handed_over' OR (
            r.attempt = 0 AND r.enqueued_at < clock_timestamp() - interval '5 seconds')))"""
"""Released because there was no memory for its history, or not claimed in 5 s, with free slots."""


@pytest.fixture(scope="module")
async def small(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """One worker with little memory."""
    async with stack(
        tmp_path_factory.mktemp("worker-memory"), database_server, suite_settings, fake
    ) as running:
        idle = _memory_of(running.workers[0])
        await running.stop(running.workers[0])
        running.settings["BACKBURNER_WORKER__MEMORY"] = str(idle + HEADROOM)
        await running.start_worker()
        yield running


def _memory_of(process: Service) -> int:
    resident: int = psutil.Process(process.pid).memory_info().rss
    return resident


def _image(size: int) -> JSON:
    part = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * size}
    return {"role": "user", "content": [part]}


async def _with_history(api: Api, fake: FakeUpstream, size: int) -> str:
    """A response whose continuations have a history of so many bytes."""
    response_id = await api.create_background(fake.script(reply("seen")), input=[_image(size)])
    await api.wait_for_end(response_id)
    return response_id


@pytest.mark.long
async def test_long_histories_wait_until_there_is_memory_for_them(
    small: Stack, fake: FakeUpstream
) -> None:
    api, worker = small.api(), small.workers[0]
    budget = int(small.settings["BACKBURNER_WORKER__MEMORY"])
    first = await _with_history(api, fake, 8 * MB)
    gate = asyncio.Event()
    model = fake.script([text("held"), wait_for(gate), finish(), usage(), done()])

    async def has_no_memory() -> bool:
        """A response waited in vain, or the memory is full."""
        is_full = "memory_pressure_began" in worker.log.read_text()
        return is_full or bool(await small.value(WAITED_IN_VAIN, model))

    async def attack() -> list[str]:
        ids = [await api.create_background(model, previous_response_id=first) for _ in range(16)]
        await until(has_no_memory, 30)
        assert len(fake.requests_for(model)) < 16
        gate.set()
        return [(await api.wait_for_end(response_id))["status"] for response_id in ids]

    before = _memory_of(worker)
    ends, growth = await memory_growth([worker], attack())
    assert ends == ["completed"] * 16
    assert before + growth < budget / CONTAINER_SHARE
    await until(lambda: worker.log.read_text().count("memory_pressure_") % 2 == 0)


@pytest.mark.long  # PostgreSQL takes long for so large a request while others work
async def test_a_response_that_does_not_fit_alone_fails(small: Stack, fake: FakeUpstream) -> None:
    api, worker = small.api(), small.workers[0]
    model = fake.script([text("held"), hang()])
    body = {"model": model, "input": [_image(54 * MB)], "background": True}

    async def created() -> str:
        answer = await api.call("POST", "/responses", body)
        # On a busy machine PostgreSQL may take too long for so much.
        return "" if answer.status == 503 else str(answer.body["id"])

    too_large = await until(created, 60)

    ended = await api.wait_for_end(too_large)
    assert ended["status"] == "failed"
    assert "memory" in ended["error"]["message"]
    assert worker.running()
    assert (await api.create(fake.script(reply("next"))))["output_text"] == "next"
