"""A long history costs its turns nothing: what is stored and what a create touches does not grow with it (design §12)."""

import json
from typing import Any

import psycopg

from tests.conftest import PrivateStack
from tests.support.api import Api, until
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Stack

DEEP = 100
WORDS = "word " * 200


async def ask(stack: Stack, question: str, **values: Any) -> dict[str, Any]:
    """One row."""
    async with await psycopg.AsyncConnection.connect(
        stack.dsn, autocommit=True, row_factory=psycopg.rows.dict_row
    ) as books:
        found = await (await books.execute(question.encode(), values)).fetchone()
    assert found is not None
    return found


STORED = """
    SELECT count(*) AS rows, count(DISTINCT item_id) AS ids, sum(octet_length(payload::text)) AS bytes,
           sum(octet_length(payload -> 'content' -> 0 ->> 'text')) AS said
    FROM items WHERE response_id IS NOT NULL
"""
TOUCHED = """
    SELECT sum(n_tup_ins) FILTER (WHERE relname = 'responses')::int AS created,
           sum(coalesce(idx_tup_fetch, 0) + seq_tup_read)::int AS read, sum(n_tup_ins + n_tup_upd + n_tup_del)::int AS written
    FROM pg_stat_user_tables WHERE relname IN ('responses', 'items', 'conversations', 'tool_calls', 'job_secrets', 'idempotency_keys', 'event_log')
"""
FLUSHED = "SELECT count(pg_terminate_backend(pid)) AS ended FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
"""A session tells what it has touched when it ends."""


async def touched(stack: Stack, created: int) -> dict[str, int]:
    """What has been read and written so far, once `created` responses are counted."""

    async def counted() -> dict[str, int] | None:
        await ask(stack, FLUSHED)
        found = await ask(stack, TOUCHED)
        return found if found["created"] == created else None

    found = await until(counted, 30, every=0.3)
    assert found is not None
    return found


async def cost(stack: Stack, api: Api, created: int, body: dict[str, Any]) -> tuple[int, int]:
    """Rows read and written by one create, after `created` others; it stays in the queue, for there is no worker."""
    before = await touched(stack, created)
    answer = await until(lambda: posted(api, body), 20, every=0.2)
    assert answer
    after = await touched(stack, created + 1)
    return after["read"] - before["read"], after["written"] - before["written"]


async def posted(api: Api, body: dict[str, Any]) -> bool:
    """The sessions have just been ended under it: it may have to be asked again."""
    answer = await api.call(
        "POST",
        "/responses",
        {"input": "And?", "background": True, **body},
        headers={"idempotency-key": json.dumps(body)},
    )
    assert answer.status in (200, 503), answer.raw
    return answer.status == 200


async def test_turn_a_hundred_stores_and_touches_what_turn_two_does(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    model = fake.script(reply(WORDS))
    async with private_stack() as stack:
        api = stack.api()
        chain: list[str | None] = [None]
        rooms = {
            length: (await api.call("POST", "/conversations", {})).body["id"]
            for length in (2, DEEP)
        }
        for turn in range(DEEP):
            response = await api.create(model, input=WORDS, previous_response_id=chain[-1])
            chain.append(response["id"])
            for length, room in rooms.items():
                if turn < length:
                    await api.create(model, input=WORDS, conversation=room)
        turns = 2 * DEEP + 2
        found = await ask(stack, STORED)
        assert (found["rows"], found["ids"]) == (2 * turns, 2 * turns), "each item once"
        assert found["said"] == 2 * turns * len(WORDS)
        assert found["bytes"] < found["said"] * 1.3, "nothing else that grows"
        assert sum(
            len(message["content"]) for message in fake.requests_for(model)[-1].messages
        ) == (2 * DEEP - 1) * len(WORDS), "all of it was told"
        for worker in list(stack.workers):
            await stack.stop(worker)
        costs = {
            (kind, depth): await cost(stack, api, turns + at, {"model": model, **before})
            for at, (kind, depth, before) in enumerate(
                [
                    ("chain", 2, {"previous_response_id": chain[2]}),
                    ("chain", DEEP, {"previous_response_id": chain[DEEP]}),
                    ("conversation", 2, {"conversation": rooms[2]}),
                    ("conversation", DEEP, {"conversation": rooms[DEEP]}),
                ]
            )
        }
        for kind in ("chain", "conversation"):
            assert costs[kind, DEEP] == costs[kind, 2], costs
        assert all(read < 30 and written < 10 for read, written in costs.values()), costs
