"""Batches: what the official client sees of one, from its input file to its output files."""

import asyncio
from typing import Any

import openai
import pytest

from models.db.database import connect
from models.ids import parse_batch_id
from tests.support import keys
from tests.support.api import Api, until
from tests.support.batches import line, results, start, until_status, upload
from tests.support.fake_upstream import FakeUpstream, error_body, hang, reply, status
from tests.support.sql import run_sql
from tests.support.stack import Stack
from tests.support.worker_rows import settings_for


async def test_each_request_of_a_batch_has_one_result(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script(reply("yes"))
    names = [f"request-{number}" for number in range(130)]
    bad = {
        "no-model": {"input": "Hi"},
        "unknown": {"model": "no/such/model", "input": "Hi"},
        "streamed": {"model": model, "input": "Hi", "stream": True},
        "in-a-conversation": {"model": model, "input": "Hi", "conversation": "conv_1"},
        "continues-nothing": {"model": model, "input": "Hi", "previous_response_id": "resp_1"},
    }
    lines: list[Any] = [line(name, model) for name in names]
    lines += [b"", *(line(name, body=body) for name, body in bad.items())]
    lines.append(line("unstored", body={"model": model, "input": "Hi", "store": False}))
    batch = await start(client, lines, metadata={"for": "tests"})
    assert (batch.status, batch.metadata, batch.errors) == ("validating", {"for": "tests"}, None)
    batch = await until_status(client, batch, "completed")

    output = await results(client, batch.output_file_id)
    assert sorted(output) == sorted([*names, "unstored"])
    first = output["request-0"]
    assert first["response"]["status_code"] == 200
    assert first["error"] is None
    answer = first["response"]["body"]
    assert answer["output"][0]["content"][0]["text"] == "yes"
    assert (await client.responses.retrieve(answer["id"])).output_text == "yes"
    errors = await results(client, batch.error_file_id)
    refused = {
        name: (one["response"]["status_code"], one["response"]["body"]["error"]["param"])
        for name, one in errors.items()
    }
    assert refused["no-model"] == (400, "model")
    assert refused["streamed"] == (400, "stream")
    assert refused["in-a-conversation"] == (400, "conversation")
    assert refused["continues-nothing"][0] in (400, 404)
    assert sorted(errors) == sorted(bad)
    counts = batch.request_counts
    assert counts is not None
    assert (counts.total, counts.completed, counts.failed) == (136, 131, 5)
    assert batch.model == model
    assert batch.usage is not None
    assert batch.usage.output_tokens > 0
    assert len(fake.requests_for(model)) == 131


FORWARDED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "/v1/chat/completions": (
        {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0.25},
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}}]},
    ),
    "/v1/embeddings": (
        {"input": ["sun", "moon"]},
        {"data": [{"object": "embedding", "index": 0, "embedding": [0.1, -1e-7, 12345.678901]}]},
    ),
}


async def test_requests_for_other_endpoints_reach_the_upstream_and_come_back_unchanged(
    client: openai.AsyncOpenAI, fake: FakeUpstream, shared_stack: Stack
) -> None:
    await asyncio.gather(*(_forward(client, fake, shared_stack, each) for each in FORWARDED))


async def _forward(
    client: openai.AsyncOpenAI, fake: FakeUpstream, shared_stack: Stack, endpoint: str
) -> None:
    sent, part = FORWARDED[endpoint]
    counts = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    answer = {"id": "from-upstream", "text": "a\nb 😀", "usage": counts, **part}
    refusal = error_body("No such thing.", "invalid_request_error")
    good, refusing = fake.script([status(200, answer)]), fake.script([status(400, refusal)])
    bodies: dict[str, dict[str, Any]] = {
        "good": {"model": good, **sent},
        "refused": {"model": refusing, **sent},
        "streamed": {"model": good, **sent, "stream": True},
        "no model": sent,
        "unknown": {"model": "no/such/model", **sent},
    }
    lines = [line(name, url=endpoint, body=body) for name, body in bodies.items()]
    batch = await until_status(client, await start(client, lines, endpoint=endpoint), "completed")

    output = await results(client, batch.output_file_id)
    assert list(output) == ["good"]
    assert output["good"]["response"]["status_code"] == 200
    assert output["good"]["response"]["body"] == answer
    [request] = fake.requests_for(good)
    assert (request.path, request.body) == (endpoint, {"model": good, **sent})
    errors = await results(client, batch.error_file_id)
    shown = {
        name: (one["response"]["status_code"], one["response"]["body"]["error"]["param"])
        for name, one in errors.items()
    }
    assert shown.pop("unknown") in ((404, "model"), (400, "model"))
    assert shown == {
        "refused": (400, None),
        "streamed": (400, "stream"),
        "no model": (400, "model"),
    }
    assert "No such thing." in errors["refused"]["response"]["body"]["error"]["message"]
    assert batch.usage is not None
    assert (batch.usage.input_tokens, batch.usage.output_tokens) == (5, 2)
    # It is no response of the Responses API, so it cannot be read as one.
    made = output["good"]["id"].removeprefix("batch_req_")
    assert await shared_stack.value("SELECT count(*) FROM responses WHERE id = %s", made)
    assert (await shared_stack.api().call("GET", f"/responses/resp_{made}")).status == 404


async def test_a_cancelled_batch_closes_the_calls_of_other_endpoints(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    slow = fake.script([hang()])
    body = {"model": slow, "input": "sun"}
    lines = [line(f"slow-{number}", url="/v1/embeddings", body=body) for number in range(3)]
    batch = await start(client, lines, endpoint="/v1/embeddings")
    await until(lambda: len(fake.requests_for(slow)) == 3, within=30)
    await client.batches.cancel(batch.id)
    cancelled = await until_status(client, batch, "cancelled")
    await until(lambda: all(call.closed_by_client for call in fake.requests_for(slow)))
    errors = await results(client, cancelled.error_file_id)
    assert {one["error"]["code"] for one in errors.values()} == {"batch_cancelled"}
    assert len(errors) == 3


async def test_a_bad_input_file_fails_the_batch_with_its_line_numbers(
    client: openai.AsyncOpenAI,
) -> None:
    lines = [
        line("a"),
        b"{",
        line("a"),
        b"[]",
        line("b", method="GET"),
        line("c", url="/v1/embeddings"),
        line("d", body=1),
        {"method": "POST"},
        line(""),
    ]
    batch = await start(client, lines)
    empty = await start(client, [b" ", b""])
    batch = await until_status(client, batch, "failed")
    assert batch.errors is not None
    assert [(error.line, error.code, error.param) for error in batch.errors.data or ()] == [
        (2, "invalid_json_line", None),
        (3, "duplicate_custom_id", "custom_id"),
        (4, "invalid_json_line", None),
        (5, "invalid_method", "method"),
        (6, "url_mismatch", "url"),
        (7, "missing_required_parameter", "body"),
        (8, "missing_required_parameter", "custom_id"),
        (9, "invalid_custom_id", "custom_id"),
    ]
    assert batch.failed_at is not None
    assert batch.output_file_id is None
    assert batch.request_counts is not None
    assert batch.request_counts.total == 0

    empty = await until_status(client, empty, "failed")
    assert empty.errors is not None
    assert [error.code for error in empty.errors.data or ()] == ["empty_file"]


async def test_a_cancelled_batch_closes_its_upstream_calls_and_keeps_what_it_has(
    client: openai.AsyncOpenAI, fake: FakeUpstream, shared_stack: Stack
) -> None:
    fast, slow = fake.script(reply("yes")), fake.script([hang()])
    lines = [line("fast", fast), *(line(f"slow-{number}", slow) for number in range(3))]
    batch = await start(client, lines)

    async def has_one_answer() -> bool:
        query = "SELECT count(*) FROM responses WHERE model = %s AND status = 'completed'"
        return bool(await shared_stack.value(query, fast)) and len(fake.requests_for(slow)) == 3

    await until(has_one_answer, within=30)
    cancelling = await client.batches.cancel(batch.id)
    assert cancelling.status == "cancelling"
    cancelled = await until_status(client, batch, "cancelled")
    await until(lambda: all(call.closed_by_client for call in fake.requests_for(slow)))
    assert list(await results(client, cancelled.output_file_id)) == ["fast"]
    errors = await results(client, cancelled.error_file_id)
    assert {name: one["error"]["code"] for name, one in errors.items()} == dict.fromkeys(
        ("slow-0", "slow-1", "slow-2"), "batch_cancelled"
    )
    assert (await client.batches.cancel(batch.id)).status == "cancelled"


async def test_a_batch_that_does_not_end_in_time_expires_with_an_error_for_each_open_request(
    client: openai.AsyncOpenAI, fake: FakeUpstream, shared_stack: Stack
) -> None:
    slow = fake.script([hang()])
    batch = await start(client, [line("slow", slow)])
    await until(lambda: fake.requests_for(slow), within=30)
    async with await connect(settings_for(shared_stack.dsn), "test") as connection:
        identity = parse_batch_id(batch.id)
        await run_sql(
            connection, f"UPDATE batches SET expires_at = clock_timestamp() WHERE id = '{identity}'"
        )
    expired = await until_status(client, batch, "expired")
    errors = await results(client, expired.error_file_id)
    assert errors["slow"]["error"]["code"] == "batch_expired"
    assert expired.expired_at is not None
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a batch with status 'expired'"):
        await client.batches.cancel(batch.id)


REFUSED: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "no file": ({"input_file_id": None}, 400, "input_file_id"),
    "unknown file": ({"input_file_id": "file-" + 32 * "0"}, 404, "input_file_id"),
    "no id of a file": ({"input_file_id": "../x"}, 404, "input_file_id"),
    "another endpoint": ({"endpoint": "/v1/moderations"}, 400, "endpoint"),
    "no window": ({"completion_window": None}, 400, "completion_window"),
    "a bad window": ({"completion_window": "soon"}, 400, "completion_window"),
    "a long window": ({"completion_window": "30d"}, 400, "completion_window"),
    "bad metadata": ({"metadata": {"a": 1}}, 400, "metadata.a"),
    "a bad anchor": (
        {"output_expires_after": {"anchor": "now", "seconds": 3600}},
        400,
        "output_expires_after.anchor",
    ),
    "a short life": (
        {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
        400,
        "output_expires_after.seconds",
    ),
    "unknown": ({"other": 1}, 400, "other"),
}


async def test_a_request_for_a_batch_that_cannot_run_is_refused_with_its_reason(
    client: openai.AsyncOpenAI, api: Api, shared_stack: Stack
) -> None:
    file = await upload(client, [line("a")])
    good = {"input_file_id": file, "endpoint": "/v1/responses", "completion_window": "24h"}
    for name, (changes, code, param) in REFUSED.items():
        answer = await api.call("POST", "/batches", good | changes)
        assert (answer.status, answer.error["param"]) == (code, param), name
    other = await client.files.create(file=("a.txt", b"a"), purpose="user_data")
    answer = await api.call("POST", "/batches", good | {"input_file_id": other.id})
    assert (answer.status, answer.error["param"]) == (400, "input_file_id")

    stranger = shared_stack.openai(key=keys.create(shared_stack.dsn, "a stranger to batches"))
    with pytest.raises(openai.NotFoundError):
        await stranger.batches.create(
            input_file_id=file, endpoint="/v1/responses", completion_window="24h"
        )


async def test_batches_are_listed_newest_first_and_only_in_their_project(
    shared_stack: Stack,
) -> None:
    client = shared_stack.openai(key=keys.create(shared_stack.dsn, "lists batches"))
    made = [await start(client, [b"no request"]) for _ in range(3)]
    listed = [batch.id async for batch in client.batches.list(limit=2)]
    assert listed == [batch.id for batch in reversed(made)]
    stranger = shared_stack.openai(key=keys.create(shared_stack.dsn, "lists no batches"))
    assert [batch async for batch in stranger.batches.list()] == []
    for call in (stranger.batches.retrieve, stranger.batches.cancel):
        with pytest.raises(openai.NotFoundError):
            await call(made[0].id)
