"""Every process dies, again and again, while a long chain of responses waits for one another."""

import asyncio
from functools import partial

import pytest

from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.fake_upstream import FakeUpstream, Script, UpstreamRequest, reply
from tests.support.stack import SHORT_LEASES, Stack

LENGTH = 36
KILLS = (10, 24)
"""After so many answers all processes are killed."""


def _answer(request: UpstreamRequest) -> Script:
    """Repeats the number of the last question, after as many of the others as there are."""
    *before, last = request.messages
    texts = [message["content"] for message in before if message["role"] == "assistant"]
    number = len(texts)
    assert str(last["content"]) == f"question {number}", last
    assert texts == [f"answer {each}" for each in range(number)]
    return reply(f"answer {number}")


def _has_requests(fake: FakeUpstream, model: str, wanted: int) -> bool:
    return len(fake.requests_for(model)) >= wanted


async def _kill_all(running: Stack) -> None:
    webs, workers = list(running.webs), list(running.workers)
    for process in (*webs, *workers):
        running.kill(process)
    running.spawn_worker()
    await running.start_web()


@pytest.mark.long
async def test_many_in_a_row_run_in_order_although_every_process_is_killed(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    model = "a-long-chain"
    fake.decide(model, _answer)
    async with private_stack(webs=1, workers=1, settings=SHORT_LEASES) as running:
        made = [await running.api().create_background(model, input="question 0")]
        for number in range(1, LENGTH):
            made.append(
                await running.api().create_background(
                    model,
                    input=f"question {number}",
                    previous_response_id=made[-1],
                    wait_for_previous=True,
                )
            )
        for kill_at in KILLS:
            await until(partial(_has_requests, fake, model, kill_at), 60)
            await _kill_all(running)
        api = running.api()
        last = await api.wait_for_end(made[-1], 90)
        assert last["output_text"] == f"answer {LENGTH - 1}"
        shown = await asyncio.gather(*map(api.get, made))
    assert [each["status"] for each in shown] == ["completed"] * LENGTH
    assert [each["output_text"] for each in shown] == [f"answer {n}" for n in range(LENGTH)]
    repeated = len(fake.requests_for(model)) - LENGTH
    assert repeated <= len(KILLS), "only what ran at a kill is sent again"
