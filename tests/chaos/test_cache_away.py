"""Remembered answers rest in Redis, which is disposable (I8): flushed, killed or hung, it makes misses and nothing else."""

import os
import secrets
import signal

import pytest

from tests.chaos.test_redis_away import GONE
from tests.conftest import PrivateStack
from tests.support.api import JSON, Api, HttpResponse, until
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import FakeUpstream, reasoning, reply
from tests.support.stack import Stack

pytestmark = pytest.mark.usefixtures("embedded_redis")


async def _post(api: Api, model: str, **body: object) -> HttpResponse:
    answer = await api.call(
        "POST", "/responses", {"model": model, "input": "a question", "cache": {"ttl": 77}, **body}
    )
    assert answer.status == 200, answer.raw
    return answer


async def test_redis_learns_neither_question_nor_answer_and_may_lose_both(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    key_of_ours = {"BACKBURNER_SECRET_KEYS": secrets.token_urlsafe(32)}
    async with private_stack(settings=key_of_ours, allowed_tracebacks=GONE) as one:
        model = fake.script(reply("an answer"))
        await _post(one.api(), model)
        redis = one.redis()
        [key] = await redis.keys("cache:*")
        value = await redis.get(key)
        assert isinstance(key, bytes)
        assert isinstance(value, bytes)
        assert 0 < await redis.ttl(key) <= 77
        assert not any(word in key + value for word in (b"question", b"answer", model.encode()))

        await _with_sealed_reasoning(one.api(), fake)
        await _without_a_worker(one, model)

        await redis.set(key, b'{"output": []}')  # not sealed by us: not believed
        assert (await _post(one.api(), model)).headers["x-cache"] == "miss"
        await redis.flushall()
        assert (await _post(one.api(), model)).headers["x-cache"] == "miss"
        assert (await _post(one.api(), model)).headers["x-cache"] == "hit"
        await redis.aclose()

        assert one.valkey is not None
        os.kill(one.valkey.pid, signal.SIGSTOP)
        hung = [await _post(one.api(), model, background=True) for _ in range(2)]
        os.kill(one.valkey.pid, signal.SIGCONT)
        assert [answer.headers["x-cache"] for answer in hung] == ["miss", "miss"]

        one.valkey.kill()
        killed = await _post(one.api(), model)
        assert (killed.headers["x-cache"], killed.body["output_text"]) == ("miss", "an answer")
        one.valkey.start()

        async def hit() -> JSON | None:
            answer = await _post(one.api(), model)
            return answer.body if answer.headers["x-cache"] == "hit" else None

        await until(hit, 30, every=0.2)


async def _with_sealed_reasoning(api: Api, fake: FakeUpstream) -> None:
    """What is shown on demand is so in a remembered answer too."""
    model = fake.script([reasoning("secretly"), *reply("said")])
    for include in ([], ["reasoning.encrypted_content"]):
        first, second = [
            (await _post(api, model, include=include)).body["output"][0] for _ in range(2)
        ]
        assert {**first, "id": ""} == {**second, "id": ""}
        assert ("encrypted_content" in second) == bool(include)
        async with api.post_stream(
            model, input="a question", cache=True, include=include
        ) as stream:
            events = await stream.to_end()
        assert_stream_obeys_contract(events)
        assert {**stream.final["output"][0], "id": ""} == {**first, "id": ""}
    assert len(fake.requests_for(model)) == 2


async def _without_a_worker(one: Stack, model: str) -> None:
    """A remembered answer needs no worker and no upstream."""
    await one.stop(one.workers[0])
    hit = await _post(one.api(), model, background=True)
    assert (hit.headers["x-cache"], hit.body["output_text"], hit.body["status"]) == (
        "hit",
        "an answer",
        "completed",
    )
    assert (await _post(one.api(), model)).body["output_text"] == "an answer"
    await one.start_worker()
