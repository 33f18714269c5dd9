"""The rows that a turn stores, reads and writes do not grow with the length of its history."""

import json
from typing import Any

import psycopg
import pytest

from tests.conftest import PrivateStack
from tests.support.api import Api, until
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Stack

LONG_TURNS = 20
TEXT = "word " * 200


async def query_row(stack: Stack, query: str, **values: Any) -> dict[str, Any]:
    """Runs a query; returns its one row."""
    async with await psycopg.AsyncConnection.connect(
        stack.dsn, autocommit=True, row_factory=psycopg.rows.dict_row
    ) as connection:
        row = await (await connection.execute(query.encode(), values)).fetchone()
    assert row is not None
    return row


ITEM_SIZES = """
    SELECT count(*) AS rows, count(DISTINCT item_id) AS ids,
           sum(octet_length(payload::text)) AS bytes,
           sum(octet_length(payload -> 'content' -> 0 ->> 'text')) AS text_bytes
    FROM items WHERE response_id IS NOT NULL
"""
COUNTED = (
    *("responses", "items", "conversations", "tool_calls", "job_secrets"),
    *("idempotency_keys", "event_log"),
)
ROW_COUNTS = f"""
    SELECT sum(n_tup_ins) FILTER (WHERE relname = 'responses')::int AS created,
           sum(coalesce(idx_tup_fetch, 0) + seq_tup_read)::int AS read,
           sum(n_tup_ins + n_tup_upd + n_tup_del)::int AS written
    FROM pg_stat_user_tables WHERE relname IN {COUNTED}
"""
NEVER_ANALYZE = ";".join(f"ALTER TABLE {name} SET (autovacuum_enabled = off)" for name in COUNTED)
"""The tables are small here: once they were analyzed, PostgreSQL may read all of them."""
END_SESSIONS = """
    SELECT count(pg_terminate_backend(pid)) AS ended FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
"""PostgreSQL reports the rows of a session when the session ends."""


async def row_counts(stack: Stack, created: int) -> dict[str, int]:
    """Returns the counts once they include `created` responses."""

    async def complete_counts() -> dict[str, int] | None:
        await query_row(stack, END_SESSIONS)
        counts = await query_row(stack, ROW_COUNTS)
        return counts if counts["created"] == created else None

    counts = await until(complete_counts, 30, every=0.3)
    assert counts is not None
    return counts


async def rows_of_create(
    stack: Stack, api: Api, created: int, body: dict[str, Any]
) -> tuple[int, int]:
    """Rows read and written by one create after `created` others; no worker runs it."""
    before = await row_counts(stack, created)
    answer = await until(lambda: create_succeeds(api, body), 20, every=0.2)
    assert answer
    after = await row_counts(stack, created + 1)
    return after["read"] - before["read"], after["written"] - before["written"]


async def create_succeeds(api: Api, body: dict[str, Any]) -> bool:
    """False after a 503: its database session was ended; the same key makes a retry safe."""
    answer = await api.call(
        "POST",
        "/responses",
        {"input": "And?", "background": True, **body},
        headers={"idempotency-key": json.dumps(body)},
    )
    assert answer.status in (200, 503), answer.raw
    return answer.status == 200


async def create_histories(api: Api, model: str) -> tuple[list[str | None], dict[int, str]]:
    """A chain of LONG_TURNS responses, from index 1; conversations of 2 and LONG_TURNS turns."""
    chain: list[str | None] = [None]
    conversations = {
        length: (await api.call("POST", "/conversations", {})).body["id"]
        for length in (2, LONG_TURNS)
    }
    for turn in range(LONG_TURNS):
        response = await api.create(model, input=TEXT, previous_response_id=chain[-1])
        chain.append(response["id"])
        for length, conversation in conversations.items():
            if turn < length:
                await api.create(model, input=TEXT, conversation=conversation)
    return chain, conversations


@pytest.mark.long
async def test_turn_twenty_stores_and_reads_as_many_rows_as_turn_two(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    model = fake.script(reply(TEXT))
    async with private_stack() as stack:
        async with await psycopg.AsyncConnection.connect(stack.dsn, autocommit=True) as connection:
            await connection.execute(NEVER_ANALYZE.encode())
        api = stack.api()
        chain, conversations = await create_histories(api, model)
        turns = 2 * LONG_TURNS + 2
        sizes = await query_row(stack, ITEM_SIZES)
        assert (sizes["rows"], sizes["ids"]) == (2 * turns, 2 * turns), "each item once"
        assert sizes["text_bytes"] == 2 * turns * len(TEXT)
        assert sizes["bytes"] < sizes["text_bytes"] * 1.3, "nothing else grows"
        messages = fake.requests_for(model)[-1].messages
        assert sum(len(message["content"]) for message in messages) == (2 * LONG_TURNS - 1) * len(
            TEXT
        ), "the model did not get the whole history"
        for worker in list(stack.workers):
            await stack.stop(worker)
        continuations: list[tuple[str, int, dict[str, Any]]] = [
            ("chain", 2, {"previous_response_id": chain[2]}),
            ("chain", LONG_TURNS, {"previous_response_id": chain[LONG_TURNS]}),
            ("conversation", 2, {"conversation": conversations[2]}),
            ("conversation", LONG_TURNS, {"conversation": conversations[LONG_TURNS]}),
        ]
        costs = {
            (kind, depth): await rows_of_create(
                stack, api, turns + number, {"model": model, **continuation}
            )
            for number, (kind, depth, continuation) in enumerate(continuations)
        }
        for kind in ("chain", "conversation"):
            assert costs[kind, LONG_TURNS] == costs[kind, 2], costs
        assert all(read < 30 and written < 10 for read, written in costs.values()), costs
