"""Requests in batches may do what requests of their project may do: its limits, its tiers, its
quota of batches, and its usage."""

import asyncio
import json
import secrets
import time
from typing import Any

from models.ids import PROJECT, admin_id
from models.keys import KeyGrant
from models.projects.scopes import Scope
from tests.support import keys
from tests.support.api import Api
from tests.support.batches import line, results, start, until_status, upload
from tests.support.fake_upstream import FakeUpstream, hang, reply, status
from tests.support.projects import limited_project
from tests.support.stack import Stack

CHAT = "/v1/chat/completions"
ANSWER = {"id": "x", "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}}]}


async def _project(stack: Stack, policy: dict[str, Any]) -> str:
    """The key of a new project with this policy."""
    name = f"batches-{secrets.token_hex(4)}"
    key = await asyncio.to_thread(keys.create, stack.dsn, name)
    change = "UPDATE projects SET policy = %s::jsonb WHERE name = %s RETURNING id"
    await stack.value(change, json.dumps(policy), name)
    return key


async def test_a_line_above_the_limits_of_its_project_fails_as_such_a_request_does(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    client = shared_stack.openai(key=await _project(shared_stack, {"limits": {"text": "2KiB"}}))
    large = shared_stack.openai(key=await _project(shared_stack, {"limits": {"body": "3KiB"}}))
    model = fake.script(reply("yes"))
    long_text = {"model": model, "input": "x" * 3000}
    chat = {"model": model, "messages": [{"role": "user", "content": "x" * 3000}]}
    lines = [line("small", model), line("long", body=long_text)]
    batches = [
        (client, await start(client, lines)),
        (large, await start(large, lines)),
        (client, await start(client, [line("long", url=CHAT, body=chat)], endpoint=CHAT)),
    ]
    for owner, begun in batches:
        batch = await until_status(owner, begun, "completed")
        errors = await results(owner, batch.error_file_id)
        assert list(errors) == ["long"]
        response = errors["long"]["response"]
        assert response["status_code"] == 413
        assert response["body"]["error"]["code"] == "request_too_large"
        if batch.endpoint != CHAT:
            assert list(await results(owner, batch.output_file_id)) == ["small"]


async def test_the_highest_tier_of_a_project_lowers_that_of_forwarded_requests(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    """Of those in batches, and of those that a web process forwards."""
    key = await _project(shared_stack, {"highest_tier": "default"})
    client, api = shared_stack.openai(key=key), shared_stack.api(key=key)
    model, batched = fake.script([status(200, ANSWER)]), fake.script([status(200, ANSWER)])
    tiers = ("priority", "scale", "flex", "auto", None)

    def body(model: str, tier: str | None) -> dict[str, Any]:
        named = {} if tier is None else {"service_tier": tier}
        return {"model": model, "messages": [{"role": "user", "content": "x"}], **named}

    lines = [line(str(tier), url=CHAT, body=body(batched, tier)) for tier in tiers]
    batch = await start(client, lines, endpoint=CHAT)
    for tier in tiers:
        assert (await api.call("POST", "/chat/completions", body(model, tier))).status == 200
    await until_status(client, batch, "completed")
    allowed = ["default", "default", "flex", "auto", None]
    sent = [request.body.get("service_tier") for request in fake.requests_for(model)]
    assert sent == allowed
    sent = [request.body.get("service_tier") for request in fake.requests_for(batched)]
    assert sorted(map(str, sent)) == sorted(map(str, allowed))


async def test_a_project_has_no_more_open_batches_than_its_quota(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack, batches=2)
    client, api = shared_stack.openai(key=project.key), project.api()
    slow = fake.script([hang()])
    begun = [await start(client, [line("a", slow)]) for _ in range(2)]
    body = {"endpoint": "/v1/responses", "completion_window": "24h"}
    body |= {"input_file_id": await upload(client, [line("a")])}
    refused = await api.call("POST", "/batches", body)
    assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
    assert "2 batches that have not ended" in refused.error["message"]
    assert refused.headers["x-should-retry"] == "false"
    listed = [batch.id async for batch in client.batches.list()]
    assert listed == [batch.id for batch in reversed(begun)]

    await client.batches.cancel(begun[0].id)
    await until_status(client, begun[0], "cancelled")
    at_once = await asyncio.gather(*(api.call("POST", "/batches", body) for _ in range(3)))
    assert sorted(answer.status for answer in at_once) == [200, 429, 429]


async def test_batches_whose_input_is_refused_count_for_an_hour(shared_stack: Stack) -> None:
    """Each was validated, and left a hundred errors, without any bound."""
    project = await limited_project(shared_stack, batches=2)
    client, api = shared_stack.openai(key=project.key), project.api()
    for _ in range(2):
        await until_status(client, await start(client, [b"no json"]), "failed")
    body = {"endpoint": "/v1/responses", "completion_window": "24h"}
    body |= {"input_file_id": await upload(client, [line("a")])}
    refused = await api.call("POST", "/batches", body)
    assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
    assert refused.headers["retry-after"]
    await shared_stack.value(
        "UPDATE batches SET ended_at = ended_at - interval '61 minutes' "
        "WHERE project_id = %s RETURNING 1",
        project.id,
    )
    assert (await api.call("POST", "/batches", body)).status == 200


async def test_a_page_of_batches_is_bounded_in_bytes(shared_stack: Stack) -> None:
    """A page of 95 batches with many errors had 602 MB."""
    project = await limited_project(shared_stack)
    client = shared_stack.openai(key=project.key)
    file = await upload(client, [b"no json"])
    made = [
        await client.batches.create(
            input_file_id=file, completion_window="24h", endpoint="/v1/responses"
        )
        for _ in range(5)
    ]
    for each in made:
        await until_status(client, each, "failed")
    await shared_stack.value(
        "UPDATE batches SET errors = json_build_array(json_build_object("
        "'code', 'c', 'param', NULL, 'line', 1, 'message', repeat('x', 400000))) "
        "WHERE project_id = %s RETURNING 1",
        project.id,
    )
    page = await client.batches.list(limit=5)
    assert (len(page.data), page.has_more) == (3, True)
    assert [one.id async for one in page] == [one.id for one in reversed(made)]
    assert not (await client.batches.list(limit=5, after=made[2].id)).has_more


async def test_a_page_of_usage_is_bounded(shared_stack: Stack) -> None:
    project = await limited_project(shared_stack)
    began = int(time.time()) // 60 * 60 - 600
    await shared_stack.value(
        "INSERT INTO usage_entries (project_id, model, upstream, kind, requests, input_tokens, "
        "cached_tokens, output_tokens, reasoning_tokens, ended_at) "
        "SELECT %s, 'm' || n, 'u', 'completions', 1, 1, 0, 1, 0, to_timestamp(%s + n / 6000 * 60) "
        "FROM generate_series(0, 11999) n RETURNING 1",
        project.id,
        began,
    )
    grant = KeyGrant(frozenset((Scope.ADMIN,)))
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, "default", grant=grant)
    admin = shared_stack.api(key=key)
    path = (
        f"/organization/usage/completions?start_time={began}&bucket_width=1m"
        f"&project_ids={admin_id(PROJECT, project.id)}"
    )
    first = (await admin.call("GET", f"{path}&group_by=model")).body
    assert [len(bucket["results"]) for bucket in first["data"]] == [6000]
    assert first["has_more"]
    rest = (await admin.call("GET", f"{path}&group_by=model&page={first['next_page']}")).body
    assert sum(len(bucket["results"]) for bucket in rest["data"]) == 6000
    assert not rest["has_more"]


async def test_usage_says_what_batches_have_used(shared_stack: Stack, fake: FakeUpstream) -> None:
    project = await limited_project(shared_stack)
    client, model = shared_stack.openai(key=project.key), fake.script(reply("yes"))
    await client.responses.create(model=model, input="x")
    batch = await start(client, [line("a", model), line("b", model)])
    await until_status(client, batch, "completed")
    grant = KeyGrant(frozenset((Scope.ADMIN,)))
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, "default", grant=grant)
    admin, named = shared_stack.api(key=key), admin_id(PROJECT, project.id)

    in_window = "SELECT count(*) FROM responses r, batches b WHERE r.project_id = b.project_id"
    in_window += " AND r.lane = 3 AND abs(extract(epoch FROM r.window_ends_at - b.expires_at)) < 5"
    in_window += " AND abs(extract(epoch FROM r.urgent_at - b.expires_at) + 12 * 3600) < 5"
    assert await shared_stack.value(f"{in_window} AND b.project_id = %s", project.id) == 2

    assert await _requests(admin, named, "batch=true") == {None: 2}
    assert await _requests(admin, named, "batch=false") == {None: 1}
    assert await _requests(admin, named, "group_by=batch") == {True: 2, False: 1}
    assert await _requests(admin, named, "group_by=completion_window", "completion_window") == {
        "batch": 2,
        None: 1,
    }
    assert await _requests(admin, named, "") == {None: 3}


async def _requests(
    admin: Api, project: str, query: str, label: str = "batch"
) -> dict[bool | str | None, int]:
    """What the project has used, by the label."""
    path = f"/organization/usage/completions?start_time={int(time.time()) - 7200}&bucket_width=1h"
    answer = await admin.call("GET", f"{path}&project_ids={project}&{query}")
    assert answer.status == 200, answer.body
    found: dict[bool | str | None, int] = {}
    for bucket in answer.body["data"]:
        for result in bucket["results"]:
            found[result[label]] = found.get(result[label], 0) + result["num_model_requests"]
    return found
