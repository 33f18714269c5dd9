"""The answer cache is in Redis, which is disposable (I8): without it there are only misses."""

import os
import secrets
import signal

import pytest

from models.db.queries import end
from tests.conftest import PrivateStack
from tests.support.api import JSON, Api, HttpResponse, until
from tests.support.chaos.fragments import fragment
from tests.support.chaos.tracebacks import REDIS_TRACEBACKS
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


@pytest.mark.long
async def test_redis_holds_no_plain_text_of_the_cache_and_may_lose_it(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    settings = {"BACKBURNER_SECRET_KEYS": secrets.token_urlsafe(32)}
    async with private_stack(settings=settings, allowed_tracebacks=REDIS_TRACEBACKS) as running:
        model = fake.script(reply("an answer"))
        await _post(running.api(), model)
        redis = running.redis()
        [key] = await redis.keys("cache:*")
        value = await redis.get(key)
        assert isinstance(key, bytes)
        assert isinstance(value, bytes)
        assert 0 < await redis.ttl(key) <= 77
        assert not any(plain in key + value for plain in (b"question", b"answer", model.encode()))

        await _with_sealed_reasoning(running.api(), fake)
        await _without_a_worker(running, model)

        await redis.set(key, b'{"output": []}')  # not sealed with our key, so not used
        assert (await _post(running.api(), model)).headers["x-cache"] == "miss"
        await redis.flushall()
        assert (await _post(running.api(), model)).headers["x-cache"] == "miss"
        assert (await _post(running.api(), model)).headers["x-cache"] == "hit"
        await redis.aclose()

        assert running.valkey is not None
        os.kill(running.valkey.pid, signal.SIGSTOP)
        hung = [await _post(running.api(), model, background=True) for _ in range(2)]
        os.kill(running.valkey.pid, signal.SIGCONT)
        assert [answer.headers["x-cache"] for answer in hung] == ["miss", "miss"]

        running.valkey.kill()
        killed = await _post(running.api(), model)
        assert (killed.headers["x-cache"], killed.body["output_text"]) == ("miss", "an answer")
        running.valkey.start()

        async def cached() -> JSON | None:
            answer = await _post(running.api(), model)
            return answer.body if answer.headers["x-cache"] == "hit" else None

        await until(cached, 30, every=0.2)


async def _with_sealed_reasoning(api: Api, fake: FakeUpstream) -> None:
    """A cached answer respects `include` as a new one does."""
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


async def _without_a_worker(running: Stack, model: str) -> None:
    """A cached answer needs no worker and no upstream."""
    await running.stop(running.workers[0])
    cached = await _post(running.api(), model, background=True)
    assert (cached.headers["x-cache"], cached.body["output_text"], cached.body["status"]) == (
        "hit",
        "an answer",
        "completed",
    )
    assert (await _post(running.api(), model)).body["output_text"] == "an answer"
    await running.start_worker()


async def test_the_answer_of_a_response_that_was_deleted_at_its_end_does_not_stay_in_the_cache(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """The worker stores the answer after the delete: it learns late that the ending is stored."""
    async with private_stack(proxied=True) as stack:
        api, worker = stack.api(), stack.workers[0].proxies
        worker.redis.count(CACHE_KEY)
        ending = worker.postgres.hold_answer(COMPLETE)
        model = fake.script(reply("deleted"), reply("new"))
        response_id = (await _post(api, model, background=True)).body["id"]
        await ending.answered.wait()
        assert (await api.get(response_id))["status"] == "completed"
        assert (await api.call("DELETE", f"/responses/{response_id}")).status == 200
        assert worker.redis.counts[CACHE_KEY] == 0
        ending.release()
        await until(lambda: worker.redis.counts[CACHE_KEY] == 2)  # it is stored, and deleted
        answer = await _post(api, model)
        assert (answer.headers["x-cache"], answer.body["output_text"]) == ("miss", "new")


COMPLETE = fragment(end.END_TOGETHER, "SET status = owned.status")
CACHE_KEY = b"cache:"
