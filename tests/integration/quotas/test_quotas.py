"""The quotas of a project: what is refused, how, and when it is admitted again.

Two web processes count together. Each test has a project of its own.
"""

import asyncio
import secrets
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import openai
import pytest
from websockets.exceptions import InvalidStatus

from models.redis.quota_counters import quota_keys
from tests.integration.operator.test_operations import backburner, command_facts
from tests.support.api import Api, HttpResponse, until
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
from tests.support.projects import LimitedProject, limited_project
from tests.support.stack import Stack
from tests.support.websocket_client import socket


def _held(gate: asyncio.Event) -> Script:
    return [text("held"), wait_for(gate), finish(), usage(), done()]


async def _create(api: Api, model: str, **body: Any) -> HttpResponse:
    return await api.call("POST", "/responses", {"model": model, "input": "Hi.", **body})


def _assert_refused(answer: HttpResponse, code: str = "rate_limit_exceeded") -> None:
    assert answer.status == 429, answer
    assert answer.error["code"] == code
    assert int(answer.headers["retry-after"]) >= 1


async def test_the_requests_of_a_minute_are_counted_over_all_web_processes(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack, requests_per_minute=3)
    model = fake.script(reply("ok"), reply("ok"), reply("ok"))
    for web, left in ((0, "2"), (1, "1"), (0, "0")):
        answer = await _create(project.api(web), model)
        assert answer.status == 200
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert answer.headers["x-ratelimit-remaining-requests"] == left
        assert "x-ratelimit-limit-tokens" not in answer.headers
    for web in (0, 1):
        refused = await _create(project.api(web), model)
        _assert_refused(refused)
        assert refused.error["type"] == "requests"
        assert 1 <= int(refused.headers["retry-after"]) <= 20
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert refused.headers["x-ratelimit-reset-requests"].endswith("s")
        assert "x-should-retry" not in refused.headers
    read = await project.api(1).call("GET", f"/responses/{answer.body['id']}")
    assert (read.status, read.headers["x-ratelimit-remaining-requests"]) == (200, "0")
    assert (await _create(shared_stack.api(), fake.script(reply("ok")))).status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/responses", {"input": "Hi."}),
        ("/responses", {"input": "Hi.", "stream": True}),
        ("/responses", {"input": "Hi.", "background": True}),
        ("/responses/compact", {"input": "Hi."}),
        ("/responses/input_tokens", {"input": "Hi."}),
        ("/chat/completions", {"messages": [{"role": "user", "content": "Hi."}]}),
        ("/conversations", {}),
    ],
)
async def test_every_entrance_counts_and_refuses(
    shared_stack: Stack, fake: FakeUpstream, path: str, body: dict[str, Any]
) -> None:
    project = await limited_project(shared_stack, requests_per_minute=1)
    api = project.api()
    assert (await api.call("POST", "/conversations", {})).status == 200
    before = await shared_stack.value("SELECT count(*) FROM responses")
    _assert_refused(await api.call("POST", path, {"model": fake.script(reply("x")), **body}))
    assert await shared_stack.value("SELECT count(*) FROM responses") == before


async def test_a_refused_create_over_a_websocket_is_an_error_frame_with_its_headers(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack, requests_per_minute=1)
    async with socket(project.api()) as connection:
        await connection.create_and_read(fake.script(reply("ok")))
        await connection.create(fake.script(reply("ok")))
        frame = await connection.next()
    assert (frame["status"], frame["error"]["code"]) == (429, "rate_limit_exceeded")
    assert frame["error"]["headers"]["x-ratelimit-remaining-requests"] == "0"
    assert int(frame["error"]["headers"]["retry-after"]) >= 1


async def _use_up(project: LimitedProject) -> None:
    """Lets the rate of requests be used up for now; the next one is possible after its interval."""
    redis = project.stack.redis()
    try:
        seconds, micros = await redis.time()
        used_until = seconds * 1000 + micros // 1000 + 62_000
        await redis.hset(f"quota:{{{project.id.hex}}}:numbers", "requests", str(used_until))
    finally:
        await redis.aclose()


async def test_the_official_client_waits_as_long_as_it_is_told(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack, requests_per_minute=60)
    await _use_up(project)
    client = shared_stack.openai(key=project.key).with_options(max_retries=2)
    raw = await client.responses.with_raw_response.create(
        model=fake.script(reply("ok")), input="Hi."
    )
    assert raw.retries_taken == 1
    assert raw.headers["x-ratelimit-limit-requests"] == "60"
    assert raw.parse().output_text == "ok"


async def test_the_official_client_does_not_repeat_a_request_that_no_wait_helps(
    shared_stack: Stack,
) -> None:
    project = await limited_project(shared_stack, conversations=1)
    client = shared_stack.openai(key=project.key).with_options(max_retries=2)
    conversation = await client.conversations.create()
    with pytest.raises(openai.RateLimitError) as refused:
        await client.conversations.create()
    assert refused.value.code == refused.value.type == "insufficient_quota"
    assert refused.value.request.headers["x-stainless-retry-count"] == "0"
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert conversation.id


async def test_a_project_that_has_used_its_tokens_is_refused_until_the_next_day(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack, tokens_per_day=5)
    client = shared_stack.openai(key=project.key).with_options(max_retries=2)
    model = fake.script(reply("ok"))
    await client.responses.create(model=model, input="Hi.")
    with pytest.raises(openai.RateLimitError) as refused:
        await client.responses.create(model=model, input="Hi.")
    assert refused.value.code == refused.value.type == "insufficient_quota"
    assert refused.value.request.headers["x-stainless-retry-count"] == "0"
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 86400
    assert len(fake.requests_for(model)) == 1
    await _forget(project)
    _assert_refused(await _create(project.api(1), model), "insufficient_quota")


async def test_tokens_are_reserved_by_an_estimate_and_corrected_at_the_end(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack, tokens_per_minute=10_000)
    gate = asyncio.Event()
    api = project.api()
    model = fake.script(_held(gate))
    answer = await _create(api, model, background=True, max_output_tokens=6000)
    assert 3900 <= int(answer.headers["x-ratelimit-remaining-tokens"]) <= 4000
    refused = await _create(api, model, max_output_tokens=6000)
    _assert_refused(refused)
    assert refused.error["type"] == "tokens"
    gate.set()
    await api.wait_for_end(answer.body["id"])
    other = project.api(1)
    admitted = await _create(other, fake.script(reply("ok")), max_output_tokens=6000)
    assert admitted.status == 200
    assert int(admitted.headers["x-ratelimit-remaining-tokens"]) >= 3900


async def test_a_request_that_never_fits_is_not_repeated(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack, tokens_per_minute=500)
    model = fake.script(reply("ok"))
    assert (await _create(project.api(), model)).status == 200, "the assumed output is cut"
    refused = await _create(project.api(1), model, max_output_tokens=501)
    _assert_refused(refused)
    assert refused.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("background", [True, False])
async def test_running_responses_are_limited_until_the_moment_of_their_end(
    shared_stack: Stack, fake: FakeUpstream, *, background: bool
) -> None:
    project = await limited_project(shared_stack, running=1)
    for _ in range(3):
        gate = asyncio.Event()
        model = fake.script(_held(gate), reply("next"))
        first = asyncio.create_task(_create(project.api(), model, background=background))
        await until(partial(fake.requests_for, model))
        _assert_refused(await _create(project.api(1), model))
        gate.set()
        answer = await first
        if background:
            await project.api().wait_for_end(answer.body["id"])
        assert (await _create(project.api(1), model)).body["output_text"] == "next"


@pytest.mark.parametrize("quota", ["running", "queued"])
async def test_an_end_that_no_worker_has_reported_yet_refuses_nothing(
    shared_stack: Stack, fake: FakeUpstream, quota: str
) -> None:
    project = await limited_project(shared_stack, **{quota: 1})
    model = fake.script(reply("first"), reply("next"))
    ended = await _create(project.api(), model)
    id_ = ended.body["id"].removeprefix("resp_")
    redis = shared_stack.redis()
    try:
        _, counted, waiting, _ = quota_keys(project.id)
        now = await redis.time()
        await redis.hset(counted, id_, f"0:0:{now[0] * 1000}")
        await redis.sadd(waiting, id_)
        assert (await _create(project.api(1), model)).body["output_text"] == "next"
        assert await redis.hexists(counted, id_), "its tokens are still to be settled"
    finally:
        await redis.aclose()


async def test_a_cancel_and_a_refused_request_leave_nothing_behind(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack, running=1, tokens_per_minute=2000)
    api = project.api()
    bad = await _create(api, fake.script(reply("x")), previous_response_id="resp_unknown")
    assert bad.status == 400
    model = fake.script(_held(asyncio.Event()))
    background = await _create(api, model, background=True, max_output_tokens=1500)
    assert background.status == 200
    assert (await api.cancel(background.body["id"])).status == 200
    answer = await _create(project.api(1), fake.script(reply("ok")), max_output_tokens=1500)
    assert answer.status == 200


async def test_waiting_responses_are_limited_until_a_worker_claims_one(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack, queued=1)
    gate = asyncio.Event()
    model = fake.script(_held(gate), _held(gate))
    api = project.api()
    assert (await _create(api, model, background=True)).status == 200
    await until(lambda: fake.requests_for(model))

    async def is_admitted() -> bool:
        return (await _create(project.api(1), model, background=True)).status == 200

    await until(is_admitted)
    gate.set()


async def test_open_streams_are_limited_over_all_web_processes(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack, open_streams=1)
    gate = asyncio.Event()
    model = fake.script(_held(gate), reply("ok"))
    api, other = project.api(), project.api(1)
    async with api.post_stream(model, input="Hi.", background=True) as stream:
        await stream.until("response.output_text.delta")
        for refusing in (api, other):
            _assert_refused(await _create(refusing, model, stream=True))
            followed = await refusing.call("GET", f"/responses/{stream.response_id}?stream=true")
            _assert_refused(followed)
        chat = {"model": model, "messages": [{"role": "user", "content": "Hi."}]}
        _assert_refused(await other.call("POST", "/chat/completions", chat))
        gate.set()
        await stream.to_end()

    async def is_admitted() -> bool:
        return (await other.call("POST", "/chat/completions", chat)).status == 200

    await until(is_admitted)

    async def is_streamed() -> bool:
        answer = await _create(api, fake.script(reply("ok")), stream=True)
        return answer.status == 200

    # The other process reports what it has closed at once, but nobody waits for that.
    await until(is_streamed)


async def test_a_project_with_too_many_streams_is_refused_and_others_are_not(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    limit = 12
    project = await limited_project(shared_stack, open_streams=limit, requests_per_minute=1000)
    gate = asyncio.Event()
    model = fake.script(_held(gate))
    async with AsyncExitStack() as streams:
        for number in range(limit):
            opened = project.api(number % 2).post_stream(model, input="Hi.", background=True)
            stream = await streams.enter_async_context(opened)
            await stream.until("response.output_text.delta")
        for web in (0, 1):
            refused = await _create(project.api(web), model, stream=True)
            _assert_refused(refused)
            assert refused.headers["x-ratelimit-limit-requests"] == "1000"
            assert 0 <= int(refused.headers["x-ratelimit-remaining-requests"]) <= 1000
            assert refused.headers["x-ratelimit-reset-requests"].endswith("s")
            assert "open streams" in refused.error["message"]
        assert (await _create(project.api(), fake.script(reply("ok")))).status == 200, "no stream"
        others = await _create(shared_stack.api(), fake.script(reply("ok")), stream=True)
        assert others.status == 200
        gate.set()


async def test_open_sockets_are_limited_over_all_web_processes(shared_stack: Stack) -> None:
    project = await limited_project(shared_stack, open_sockets=1)
    async with socket(project.api()):
        for web in (0, 1):
            with pytest.raises(InvalidStatus) as refused:
                async with socket(project.api(web)):
                    pass
            assert refused.value.response.status_code == 429

    async def is_admitted() -> bool:
        try:
            async with socket(project.api(1)):
                return True
        except InvalidStatus:
            return False

    await until(is_admitted)


async def test_stored_bytes_are_measured_and_what_is_added_counts_at_once(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack, stored_bytes=200_000)
    api = project.api()
    words = secrets.token_hex(40_000)
    assert (await _create(api, fake.script(reply("ok")), input=words)).status == 200
    refused = await _create(project.api(1), "any", input=words * 2)
    _assert_refused(refused, "insufficient_quota")
    assert refused.headers["x-should-retry"] == "false"
    await _forget(project)
    assert (await _create(api, fake.script(reply("ok")))).status == 200
    await until(partial(_measured, project))
    _assert_refused(await _create(api, "any", input=words * 2), "insufficient_quota")
    answer = await _create(api, fake.script(reply("ok")), input=words * 2, store=False)
    assert answer.status == 200


async def _forget(project: LimitedProject) -> None:
    """Redis loses what it has counted."""
    redis = project.stack.redis()
    try:
        assert await redis.delete(*await redis.keys(f"quota:{{{project.id.hex}}}:*"))
    finally:
        await redis.aclose()


async def _measured(project: LimitedProject) -> bool:
    """Whether what the project stores has been measured."""
    redis = project.stack.redis()
    try:
        return bool(await redis.hexists(f"quota:{{{project.id.hex}}}:numbers", "measured"))
    finally:
        await redis.aclose()


async def test_an_operator_sees_what_a_project_uses_of_its_quotas(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    # A share of a second that is no whole number of milliseconds: 60 000 / 7.
    limits = {"running": 5, "open_streams": 3, "requests_per_minute": 7, "stored_bytes": 10**6}
    project = await limited_project(shared_stack, **limits, tokens_per_day=10**6)
    gate = asyncio.Event()
    model = fake.script(_held(gate))
    await _create(project.api(), fake.script(reply("ok")))
    async with project.api().post_stream(model, background=True) as stream:
        await stream.until("response.output_text.delta")
        facts = await command_facts(shared_stack, "projects", "show", str(project.id))
        gate.set()
        await stream.to_end()
    uses = {quota["name"]: (quota["used"], quota["limit"]) for quota in facts["quotas"]}
    assert uses["running"] == (1, 5)
    assert uses["queued"] == (0, None)
    assert uses["open_streams"] == (1, 3)
    assert 0 < uses["requests_per_minute"][0] <= 7
    assert 0 < uses["stored_bytes"][0] < 10_000
    assert 0 < uses["tokens_per_day"][0] < 1000
    assert uses["files"] == (0, None)
    assert uses["cache_bytes"] == (0, 32 * 1024 * 1024)
    shown = await backburner(shared_stack, "projects", "show", str(project.id))
    assert "tokens_per_day" in shown.out
    assert "1,000,000" in shown.out


async def test_a_redis_that_has_lost_everything_admits_no_more_than_before(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack, running=1)
    gate = asyncio.Event()
    model = fake.script(_held(gate))
    answer = await _create(project.api(), model, background=True)
    await _forget(project)
    _assert_refused(await _create(project.api(1), model))
    gate.set()
    await project.api().wait_for_end(answer.body["id"])
    assert (await _create(project.api(1), fake.script(reply("ok")))).status == 200


async def test_a_project_without_quotas_costs_no_command_of_redis(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    async def scripts_run() -> int:
        redis = shared_stack.redis()
        try:
            statistics = await redis.info("commandstats")
            return sum(
                statistics.get(f"cmdstat_{name}", {}).get("calls", 0)
                for name in ("eval", "evalsha")
            )
        finally:
            await redis.aclose()

    before = await scripts_run()
    answer = await _create(shared_stack.api(), fake.script(reply("ok")))
    assert answer.status == 200
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
    assert await scripts_run() == before
