"""Secrets of clients stay sealed: canaries are sent, and every place that could hold them searched.

Searched are the database, Redis, the logs, responses, events and errors.
"""

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
from tests.support.api import JSON, Api, until
from tests.support.fake_upstream import FakeUpstream, done, finish, hang, reply, text, usage
from tests.support.mcp_servers import McpServers
from tests.support.stack import SHORT_LEASES, Stack
from tests.support.tool_turns import TOOL_SETTINGS, counting_server, item_statuses, tool_turn

TOKEN = f"canary-{secrets.token_hex(12)}"
HEADER_SECRET = f"canary-{secrets.token_hex(12)}"
BASE64_GROUP = 3
"""base64 encodes three bytes at a time."""


def encodings(canary: str) -> Iterable[bytes]:
    """The forms a canary can have: plain, reversed, hex (`bytea`), base64, percent-encoded."""
    raw = canary.encode()
    yield from (raw, raw.hex().encode(), quote(canary).encode(), canary[::-1].encode())
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for offset in range(BASE64_GROUP):
            group = raw[offset : len(raw) - (len(raw) - offset) % BASE64_GROUP]
            yield encode(group)


CANARY_SPELLINGS = [needle for canary in (TOKEN, HEADER_SECRET) for needle in encodings(canary)]


def assert_clean(place: str, haystack: bytes) -> None:
    for needle in CANARY_SPELLINGS:
        position = haystack.find(needle)
        assert position < 0, (
            f"a canary in {place}: {haystack[max(0, position - 100) : position + 60]!r}"
        )


async def dump(running: Stack) -> bytes:
    """Every row of every table, as text and as binary."""
    rows = []
    async with await psycopg.AsyncConnection.connect(running.dsn, autocommit=True) as connection:
        tables = await (
            await connection.execute(
                "SELECT relname FROM pg_class"
                " WHERE relkind = 'r' AND relnamespace = 'backburner'::regnamespace"
            )
        ).fetchall()
        for (table,) in tables:
            async with connection.cursor().copy(
                sql.SQL("COPY {} TO STDOUT").format(sql.Identifier(table))
            ) as data:
                rows += [bytes(part) async for part in data]
            async with connection.cursor().copy(
                sql.SQL("COPY {} TO STDOUT (FORMAT binary)").format(sql.Identifier(table))
            ) as data:
                rows += [bytes(part) async for part in data]
    assert len(rows) > 20
    return b"\n".join(rows)


async def keyspace(running: Stack) -> bytes:
    """Everything that Redis holds."""
    redis = running.redis()
    try:
        return b"\n".join(
            [key + b" " + bytes(await redis.dump(key) or b"") async for key in redis.scan_iter()]
        )
    finally:
        await redis.aclose()


async def with_redis_traffic(running: Stack, command: Any) -> tuple[Any, bytes]:
    """Runs `command`; returns its result and everything sent to Redis meanwhile."""
    lines: list[bytes] = []
    redis = running.redis()
    async with redis.monitor() as monitor:
        result = await command()
        await redis.set("the-end", "x")
        async for line in monitor.listen():
            lines.append(json.dumps(line, default=str).encode())
            if "the-end" in line["command"]:
                break
    await redis.aclose()
    return result, b"\n".join(lines)


def logs(running: Stack) -> bytes:
    return b"\n".join(process.log.read_bytes() for process in running.started)


async def assert_no_canary_anywhere(running: Stack, when: str) -> None:
    """Searches the database, Redis and the logs for the canaries."""
    assert_clean(f"Postgres {when}", await dump(running))
    assert_clean(f"Redis {when}", await keyspace(running))
    assert_clean(f"the logs {when}", logs(running))


def tool_with_secrets(servers: McpServers, url: str | None = None) -> JSON:
    """A tool with secrets in its token, a header and, as for some servers, its address."""
    address = url or servers.url_with_token("counting", TOKEN)
    return {
        **counting_server(servers),
        "server_url": f"{address}?key={TOKEN}",
        "authorization": TOKEN,
        "headers": {"X-Canary": HEADER_SECRET},
    }


async def send_secrets_where_none_belong(api: Api) -> None:
    """In a URL's query, in place of the API key, and in headers that no route reads."""
    headers = {"x-request-id": f"{TOKEN} {TOKEN}", "x-api-key": TOKEN, "cookie": TOKEN}
    for path in ("/responses/resp_1", "/models", "/no/such"):
        await api.call("GET", path, headers=headers, params={"key": TOKEN})
        await api.call("GET", path, headers={"authorization": f"Bearer {TOKEN}"})


async def test_a_secret_is_stored_and_logged_nowhere(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    settings = {**SHORT_LEASES, **TOOL_SETTINGS, "BACKBURNER_LOG_LEVEL": "debug"}
    async with McpServers() as mcp, private_stack(webs=2, settings=settings) as running:
        api, tool = running.api(), tool_with_secrets(mcp)
        released = mcp.tool_calls.hold("canary")
        model = fake.script(tool_turn(("count_read_only", "canary")), reply("done"))

        async def create() -> str:
            return await api.create_background(model, tools=[tool], store=True)

        response_id, traffic = await with_redis_traffic(running, create)
        assert_clean("what was sent to Redis", traffic)
        await until(lambda: mcp.tool_calls.calls_with("canary"), 20)
        assert mcp.requests[-1].headers["x-canary"] == HEADER_SECRET, (
            "the MCP server did not get it"
        )
        await assert_no_canary_anywhere(running, "during the run")
        assert await running.value("SELECT count(*) FROM job_secrets") == 1

        running.kill(running.workers[0])
        await running.start_worker()
        await until(lambda: len(mcp.tool_calls.calls_with("canary")) == 2, 40)
        released.set()
        ended = await api.wait_for_end(response_id)
        assert item_statuses(ended)[1:] == ["mcp_call completed", "message completed"]
        assert_clean("the response", json.dumps(ended).encode())
        assert_clean("the events", b"".join(await api.replay(response_id)))
        assert await running.value("SELECT count(*) FROM job_secrets") == 0
        await assert_no_canary_anywhere(running, "after the end")
        assert_clean(
            "what the model saw",
            json.dumps([request.body for request in fake.requests_for(model)]).encode(),
        )

        await send_secrets_where_none_belong(api)
        for bad_tool in bad_requests(tool):
            answer = await api.call(
                "POST", "/responses", {"model": model, "input": "Hello.", "tools": [bad_tool]}
            )
            assert answer.status == 400, bad_tool
            assert_clean("an error", answer.raw)
        refused = await api.call(
            "POST",
            "/responses",
            {"model": model, "input": "Hello.", "tools": [{**tool, "authorization": "wrong"}]},
        )
        assert refused.status == 401, refused.raw
        assert_clean("a refusal of the server", refused.raw)
        await assert_no_canary_anywhere(running, "after errors")


def bad_requests(tool: JSON) -> list[JSON]:
    """Requests with a mistake beside the canaries."""
    return [
        {**tool, "authorization": [TOKEN]},
        {**tool, "authorization": f"{TOKEN}\n"},
        {**tool, "headers": {"X-Canary": {"value": HEADER_SECRET}}},
        {**tool, "headers": {"X-Canary": f"{HEADER_SECRET}\r\nX: y"}},
        {**tool, "headers": {"Host": HEADER_SECRET}},
        {**tool, "headers": [HEADER_SECRET]},
        {**tool, "headers": {"Authorization": TOKEN}},
        {**tool, "server_url": f"ftp://127.0.0.1/{TOKEN}"},
        {**tool, "server_url": f"http://{TOKEN}@127.0.0.1/"},
        {**tool, "server_url": f"http://10.0.0.1/{TOKEN}"},
        {**tool, "server_label": "not a label"},
        {**tool, "require_approval": "sometimes"},
    ]


async def test_secrets_are_deleted_after_every_kind_of_ending(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        McpServers() as mcp,
        private_stack(settings={**SHORT_LEASES, **TOOL_SETTINGS}) as running,
    ):
        api, tool = running.api(), tool_with_secrets(mcp)
        count_secrets = "SELECT count(*) FROM job_secrets"
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
        assert await running.value(count_secrets) == 0
        for action in ("cancel", "delete"):
            model = fake.script([text("half"), hang()])
            response_id = await api.create_background(model, tools=[tool])
            await until(partial(fake.requests_for, model), 20)
            assert await running.value(count_secrets) == 1
            await (
                api.cancel(response_id)
                if action == "cancel"
                else api.call("DELETE", f"/responses/{response_id}")
            )
            await until(lambda: running.value("SELECT NOT EXISTS (SELECT FROM job_secrets)"))
        await running.stop(running.workers[0])
        for action in ("cancel", "delete"):
            queued = await api.create_background(fake.script(reply("never")), tools=[tool])
            assert await running.value(count_secrets) == 1
            await (
                api.cancel(queued)
                if action == "cancel"
                else api.call("DELETE", f"/responses/{queued}")
            )
            await until(lambda: running.value("SELECT NOT EXISTS (SELECT FROM job_secrets)"))
        await running.start_worker()


async def test_without_a_secret_key_a_request_with_an_mcp_server_is_refused(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        McpServers() as mcp,
        private_stack(settings={"BACKBURNER_EGRESS__ALLOW": "127.0.0.0/8"}) as running,
    ):
        body = {
            "model": fake.script(reply("never")),
            "input": "Hello.",
            "tools": [tool_with_secrets(mcp)],
        }
        answer = await running.api().call("POST", "/responses", body)
        assert answer.status == 400
        assert (answer.error["param"], answer.error["code"]) == (
            "tools[0]",
            "unsupported_parameter",
        )
        assert await running.value("SELECT count(*) FROM responses") == 0
        assert_clean("the refusal", answer.raw)


async def test_a_removed_secret_key_fails_the_response_with_a_reason(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        McpServers() as mcp,
        private_stack(settings={**SHORT_LEASES, **TOOL_SETTINGS}) as running,
    ):
        await running.stop(running.workers[0])
        model = fake.script(reply("done"))
        readable, unreadable = [
            await running.api().create_background(model, tools=[tool_with_secrets(mcp)])
            for _ in range(2)
        ]
        old_key, new_key = TOOL_SETTINGS["BACKBURNER_SECRET_KEYS"], secrets.token_urlsafe(32)
        await running.api().cancel(unreadable)
        running.settings = {**running.settings, "BACKBURNER_SECRET_KEYS": f"{new_key},{old_key}"}
        rotated = await running.start_worker()
        assert (await running.api().wait_for_end(readable))["status"] == "completed", (
            "the second key can still unseal"
        )
        await running.stop(rotated)
        unreadable = await running.api().create_background(model, tools=[tool_with_secrets(mcp)])
        running.settings = {**running.settings, "BACKBURNER_SECRET_KEYS": new_key}
        await running.start_worker()
        ended = await running.api().wait_for_end(unreadable)
        assert (ended["status"], ended["output"]) == ("failed", [])
        assert "sealing keys have changed" in ended["error"]["message"]
        reason = await running.value(
            "SELECT reason FROM responses WHERE id = %s::uuid", unreadable.removeprefix("resp_")
        )
        assert reason == "secrets_unreadable"
        assert await running.value("SELECT count(*) FROM job_secrets") == 0


async def test_requests_that_differ_only_in_their_secrets_are_different(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    async with (
        McpServers() as mcp,
        private_stack(settings={**SHORT_LEASES, **TOOL_SETTINGS}) as running,
    ):
        tool = tool_with_secrets(mcp, mcp.url("counting"))
        body = {
            "model": fake.script(reply("done")),
            "input": "Hello.",
            "background": True,
            "tools": [tool],
        }
        other = {**body, "tools": [{**tool, "authorization": "another"}]}
        key = {"idempotency-key": "sealed"}
        first, again, changed = [
            await running.api().call("POST", "/responses", request_body, headers=key)
            for request_body in (body, body, other)
        ]
        assert first.body["id"] == again.body["id"]
        assert (changed.status, changed.error["code"]) == (400, "idempotency_key_reused")
        await running.api().wait_for_end(first.body["id"])
        body_hash = await running.value("SELECT body_hash FROM idempotency_keys")
        assert len(body_hash) == 32
