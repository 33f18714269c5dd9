"""What a client entrusts us with stays sealed: a canary is planted, and everything that could hold it is searched (design §3, §9)."""

import base64
import json
import secrets
from collections.abc import Iterable
from functools import partial
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from tests.conftest import PrivateStack
from tests.support.api import JSON, until
from tests.support.fake_upstream import FakeUpstream, done, finish, hang, reply, text, usage
from tests.support.mcp_servers import McpServers
from tests.support.stack import SHORT_LEASES, Stack
from tests.support.tool_turns import TOOL_SETTINGS, counting_server, item_statuses, tool_turn

TOKEN = f"canary-{secrets.token_hex(12)}"
HEADER = f"canary-{secrets.token_hex(12)}"
PLACES = 3
"""Offsets of a text within base64's groups of three bytes."""


def spellings(canary: str) -> Iterable[bytes]:
    """How a canary could look: plain, hex as `bytea` is dumped, base64 at each offset, and percent-encoded."""
    raw = canary.encode()
    yield from (raw, raw.hex().encode(), quote(canary).encode(), canary[::-1].encode())
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for skip in range(PLACES):
            whole = raw[skip : len(raw) - (len(raw) - skip) % PLACES]
            yield encode(whole)


NEEDLES = [needle for canary in (TOKEN, HEADER) for needle in spellings(canary)]


def assert_clean(where: str, haystack: bytes) -> None:
    for needle in NEEDLES:
        at = haystack.find(needle)
        assert at < 0, f"a canary in {where}: {haystack[max(0, at - 100) : at + 60]!r}"


async def dump(one: Stack) -> bytes:
    """Every row of every table, as text; `bytea` as hex and decoded."""
    found = []
    async with await psycopg.AsyncConnection.connect(one.dsn, autocommit=True) as connection:
        tables = await (
            await connection.execute(
                "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
            )
        ).fetchall()
        for (table,) in tables:
            async with connection.cursor().copy(
                sql.SQL("COPY {} TO STDOUT").format(sql.Identifier(table))
            ) as rows:
                found += [bytes(row) async for row in rows]
            async with connection.cursor().copy(
                sql.SQL("COPY {} TO STDOUT (FORMAT binary)").format(sql.Identifier(table))
            ) as rows:
                found += [bytes(row) async for row in rows]
    assert len(found) > 20
    return b"\n".join(found)


async def keyspace(one: Stack) -> bytes:
    """Everything that Redis holds."""
    redis = one.redis()
    try:
        return b"\n".join(
            [key + b" " + bytes(await redis.dump(key) or b"") async for key in redis.scan_iter()]
        )
    finally:
        await redis.aclose()


async def overheard(one: Stack, command: Any) -> tuple[Any, bytes]:
    """What `command` gives, and everything that was sent to Redis meanwhile: Celery's messages and the live events among it."""
    heard: list[bytes] = []
    redis = one.redis()
    async with redis.monitor() as monitor:
        result = await command()
        await redis.set("the-end", "x")
        async for line in monitor.listen():
            heard.append(json.dumps(line, default=str).encode())
            if "the-end" in line["command"]:
                break
    await redis.aclose()
    return result, b"\n".join(heard)


def logs(one: Stack) -> bytes:
    return b"\n".join(process.log.read_bytes() for process in one.started)


async def search(one: Stack, when: str) -> None:
    """Looks everywhere."""
    assert_clean(f"Postgres {when}", await dump(one))
    assert_clean(f"Redis {when}", await keyspace(one))
    assert_clean(f"the logs {when}", logs(one))


def entrusting(database_server: McpServers, url: str | None = None) -> JSON:
    """A tool with a token and with a header; its address holds the token as well, as some servers' do."""
    address = url or database_server.url_with_token("counting", TOKEN)
    return {
        **counting_server(database_server),
        "server_url": f"{address}?key={TOKEN}",
        "authorization": TOKEN,
        "headers": {"X-Canary": HEADER},
    }


async def test_a_canary_is_found_nowhere(private_stack: PrivateStack, fake: FakeUpstream) -> None:
    settings = {**SHORT_LEASES, **TOOL_SETTINGS, "BACKBURNER_LOG_LEVEL": "debug"}
    async with McpServers() as mcp, private_stack(webs=2, settings=settings) as one:
        api, tool = one.api(), entrusting(mcp)
        opened = mcp.tool_calls.hold("canary")
        model = fake.script(tool_turn(("count_read_only", "canary")), reply("done"))

        async def begin() -> str:
            return await api.create_background(model, tools=[tool], store=True)

        response_id, heard = await overheard(one, begin)
        assert_clean("what was sent to Redis", heard)
        await until(lambda: mcp.tool_calls.calls_with("canary"), 20)
        assert mcp.requests[-1].headers["x-canary"] == HEADER, "it did get where it belongs"
        await search(one, "during the run")
        assert await one.value("SELECT count(*) FROM job_secrets") == 1

        one.kill(one.workers[0])
        await one.start_worker()
        await until(lambda: len(mcp.tool_calls.calls_with("canary")) == 2, 40)
        opened.set()
        ended = await api.wait_for_end(response_id)
        assert item_statuses(ended)[1:] == ["mcp_call completed", "message completed"]
        assert_clean("the response", json.dumps(ended).encode())
        assert_clean("the events", b"".join(await api.replay(response_id)))
        assert await one.value("SELECT count(*) FROM job_secrets") == 0
        await search(one, "after the end")
        assert_clean(
            "what the model saw",
            json.dumps([request.body for request in fake.requests_for(model)]).encode(),
        )

        for spoilt in bad_requests(tool):
            answer = await api.call(
                "POST", "/responses", {"model": model, "input": "Hello.", "tools": [spoilt]}
            )
            assert answer.status == 400, spoilt
            assert_clean("an error", answer.raw)
        refused = await api.call(
            "POST",
            "/responses",
            {"model": model, "input": "Hello.", "tools": [{**tool, "authorization": "wrong"}]},
        )
        assert refused.status == 401, refused.raw
        assert_clean("a refusal of the server", refused.raw)
        await search(one, "after errors")


def bad_requests(tool: JSON) -> list[JSON]:
    """Requests with a mistake beside the canaries."""
    return [
        {**tool, "authorization": [TOKEN]},
        {**tool, "authorization": f"{TOKEN}\n"},
        {**tool, "headers": {"X-Canary": {"value": HEADER}}},
        {**tool, "headers": {"X-Canary": f"{HEADER}\r\nX: y"}},
        {**tool, "headers": {"Host": HEADER}},
        {**tool, "headers": [HEADER]},
        {**tool, "headers": {"Authorization": TOKEN}},
        {**tool, "server_url": f"ftp://127.0.0.1/{TOKEN}"},
        {**tool, "server_url": f"http://{TOKEN}@127.0.0.1/"},
        {**tool, "server_url": f"http://10.0.0.1/{TOKEN}"},
        {**tool, "server_label": "not a label"},
        {**tool, "require_approval": "sometimes"},
    ]


async def test_secrets_are_gone_after_every_kind_of_ending(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        McpServers() as mcp,
        private_stack(settings={**SHORT_LEASES, **TOOL_SETTINGS}) as one,
    ):
        api, tool = one.api(), entrusting(mcp)
        rows = "SELECT count(*) FROM job_secrets"
        endings = {
            "completed": await api.wait_for_end(
                await api.create_background(fake.script(reply("done")), tools=[tool])
            ),
            "incomplete": await api.wait_for_end(
                await api.create_background(
                    fake.script([text("half"), finish("length"), usage(), done()]), tools=[tool]
                )
            ),
            "failed": await api.wait_for_end(
                await api.create_background("no-such-model", tools=[tool])
            ),
        }
        assert {name: response["status"] for name, response in endings.items()} == {
            name: name for name in endings
        }
        assert await one.value(rows) == 0
        for verb in ("cancel", "delete"):
            running = fake.script([text("half"), hang()])
            response_id = await api.create_background(running, tools=[tool])
            await until(partial(fake.requests_for, running), 20)
            assert await one.value(rows) == 1
            await (
                api.cancel(response_id)
                if verb == "cancel"
                else api.call("DELETE", f"/responses/{response_id}")
            )
            await until(lambda: one.value("SELECT NOT EXISTS (SELECT FROM job_secrets)"))
        await one.stop(one.workers[0])
        for verb in ("cancel", "delete"):
            queued = await api.create_background(fake.script(reply("never")), tools=[tool])
            assert await one.value(rows) == 1
            await (
                api.cancel(queued)
                if verb == "cancel"
                else api.call("DELETE", f"/responses/{queued}")
            )
            await until(lambda: one.value("SELECT NOT EXISTS (SELECT FROM job_secrets)"))
        await one.start_worker()


async def test_without_a_key_a_request_with_an_mcp_server_is_refused(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        McpServers() as mcp,
        private_stack(settings={"BACKBURNER_EGRESS__ALLOW": "127.0.0.0/8"}) as one,
    ):
        body = {"model": fake.script(reply("never")), "input": "Hello.", "tools": [entrusting(mcp)]}
        answer = await one.api().call("POST", "/responses", body)
        assert answer.status == 400
        assert (answer.error["param"], answer.error["code"]) == (
            "tools[0]",
            "unsupported_parameter",
        )
        assert await one.value("SELECT count(*) FROM responses") == 0
        assert_clean("the refusal", answer.raw)


async def test_a_key_that_was_taken_away_ends_the_response_with_a_reason(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        McpServers() as mcp,
        private_stack(settings={**SHORT_LEASES, **TOOL_SETTINGS}) as one,
    ):
        await one.stop(one.workers[0])
        model = fake.script(reply("done"))
        kept, lost = [
            await one.api().create_background(model, tools=[entrusting(mcp)]) for _ in range(2)
        ]
        old, new = TOOL_SETTINGS["BACKBURNER_SECRET_KEYS"], secrets.token_urlsafe(32)
        await one.api().cancel(lost)
        one.settings = {**one.settings, "BACKBURNER_SECRET_KEYS": f"{new},{old}"}
        rotated = await one.start_worker()
        assert (await one.api().wait_for_end(kept))["status"] == "completed", (
            "a key that comes second still opens"
        )
        await one.stop(rotated)
        lost = await one.api().create_background(model, tools=[entrusting(mcp)])
        one.settings = {**one.settings, "BACKBURNER_SECRET_KEYS": new}
        await one.start_worker()
        ended = await one.api().wait_for_end(lost)
        assert (ended["status"], ended["output"]) == ("failed", [])
        assert "sealing keys have changed" in ended["error"]["message"]
        reason = await one.value(
            "SELECT reason FROM responses WHERE id = %s::uuid", lost.removeprefix("resp_")
        )
        assert reason == "secrets_unreadable"
        assert await one.value("SELECT count(*) FROM job_secrets") == 0


async def test_requests_that_differ_only_in_their_secrets_are_not_the_same(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        McpServers() as mcp,
        private_stack(settings={**SHORT_LEASES, **TOOL_SETTINGS}) as one,
    ):
        tool = entrusting(mcp, mcp.url("counting"))
        body = {
            "model": fake.script(reply("done")),
            "input": "Hello.",
            "background": True,
            "tools": [tool],
        }
        other = {**body, "tools": [{**tool, "authorization": "another"}]}
        key = {"idempotency-key": "sealed"}
        first, again, changed = [
            await one.api().call("POST", "/responses", sent, headers=key)
            for sent in (body, body, other)
        ]
        assert first.body["id"] == again.body["id"]
        assert (changed.status, changed.error["code"]) == (400, "idempotency_key_reused")
        await one.api().wait_for_end(first.body["id"])
        kept = await one.value("SELECT body_hash FROM idempotency_keys")
        assert len(kept) == 32
