"""`POST /v1/responses/{id}/retry`: a response that has ended runs again as a new one."""

import asyncio

import openai

from tests.integration.responses.test_chains import roles_and_texts
from tests.support.api import JSON, UNKNOWN_RESPONSE_ID, Api, HttpResponse, until
from tests.support.fake_upstream import FakeUpstream, fail, finish, hang, reply, text, usage
from tests.support.mcp_servers import McpServers
from tests.support.stack import Stack
from tests.support.strict_types import check_response


async def retry(
    api: Api, response_id: str, body: JSON | None = None, **headers: str
) -> HttpResponse:
    return await api.call("POST", f"/responses/{response_id}/retry", body, headers=headers)


async def run_again(api: Api, response_id: str, **body: object) -> JSON:
    """The new response, after its end."""
    answer = await retry(api, response_id, body or None)
    assert answer.status == 200, answer.raw
    check_response(answer.body)
    assert answer.body["retry_of"] == response_id
    assert (await api.get(response_id))["retried_by"] == answer.body["id"]
    return await api.wait_for_end(answer.body["id"])


async def test_a_failed_response_runs_again_with_the_same_request(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script([text("half"), fail()], reply("whole"))
    failed = await api.wait_for_end(
        await api.create_background(
            model,
            input=[{"role": "user", "content": "Question?"}],
            instructions="Be short.",
            metadata={"a": "b"},
            max_output_tokens=100,
            text={"format": {"type": "text"}, "verbosity": "low"},
        )
    )
    assert failed["status"] == "failed"
    again = await run_again(api, failed["id"])
    assert (again["status"], again["output_text"]) == ("completed", "whole")
    changed = {"id", "status", "created_at", "completed_at", "output", "output_text", "usage"}
    changed |= {"error", "retry_of", "retried_by"}
    kept = failed.keys() - changed
    assert {name: failed[name] for name in kept} == {name: again[name] for name in kept}
    first, second = fake.requests_for(model)[:2]
    assert first.messages == second.messages
    assert (await run_again(api, again["id"]))["output_text"] == "whole", "also a completed one"


async def test_it_may_run_with_another_model_and_in_the_background(
    api: Api, fake: FakeUpstream
) -> None:
    root = await api.create(fake.script(reply("root")), input="start")
    cut = [text("a long"), finish("length"), usage()]
    incomplete = await api.create(
        fake.script(cut), input="on", previous_response_id=root["id"], max_output_tokens=16
    )
    assert incomplete["status"] == "incomplete"
    other = fake.script(reply("by another"))
    again = await run_again(api, incomplete["id"], model=other, background=True)
    assert (again["model"], again["background"]) == (other, True)
    assert roles_and_texts(fake.requests_for(other)[0].messages) == [
        ("user", "start"),
        ("assistant", "root"),
        ("user", "on"),
    ]


async def test_the_official_client_can_ask_for_it(shared_stack: Stack, fake: FakeUpstream) -> None:
    client = shared_stack.openai()
    job = await client.responses.create(model=fake.script([fail()]), input="Go.", background=True)
    await shared_stack.api().wait_for_end(job.id)
    model = fake.script(reply("again"))
    again = await client.post(
        f"/responses/{job.id}/retry", body={"model": model}, cast_to=openai.types.responses.Response
    )
    assert (again.status, again.model) == ("queued", model)
    ended = await shared_stack.api().wait_for_end(again.id)
    assert ended["output_text"] == "again"


async def test_a_chain_is_run_again_from_its_failed_response_on(
    api: Api, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    model = fake.script([text("x"), hang()], reply("first"))
    first = await api.create_background(model)
    waiting = {"wait_for_previous": True, "previous_response_id": first}
    second = await api.create_background(fake.script(reply("second")), input="2", **waiting)
    await until(lambda: fake.requests_for(model))
    await api.cancel(first)
    await api.wait_for_end(second)
    refused = await retry(api, second)
    assert refused.error["code"] == "previous_response_failed"
    again = await retry(api, first)
    released.set()
    ended = await run_again(api, second, previous_response_id=again.body["id"])
    assert ended["output_text"] == "second"


async def test_a_repeated_retry_makes_one_response(api: Api, fake: FakeUpstream) -> None:
    model = fake.script([fail()], reply("once"))
    failed = await api.wait_for_end(await api.create_background(model, input="Same."))
    key = {"idempotency-key": f"retry-{model}"}
    made = [await retry(api, failed["id"], {}, **key) for _ in range(2)]
    assert made[0].body["id"] == made[1].body["id"]
    await api.wait_for_end(made[0].body["id"])
    assert len(fake.requests_for(model)) == 2
    create: JSON = {"model": model, "input": "Same.", "background": True}
    reused = await api.call("POST", "/responses", create, headers=key)
    assert reused.error["code"] == "idempotency_key_reused"


async def test_a_failed_response_of_a_conversation_runs_again_in_it(
    api: Api, fake: FakeUpstream
) -> None:
    conversation = (await api.call("POST", "/conversations", {})).body["id"]
    model = fake.script([fail()], reply("answer"))
    failed = await api.wait_for_end(
        await api.create_background(model, input="Question?", conversation=conversation)
    )
    await run_again(api, failed["id"])
    items = await api.call("GET", f"/conversations/{conversation}/items", params={"order": "asc"})
    assert [item["role"] for item in items.body["data"]] == ["user", "assistant"]


async def test_what_cannot_run_again_is_refused(
    api: Api, shared_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([text("x"), hang()])
    running = await api.create_background(model)
    await until(lambda: fake.requests_for(model))

    async def refused(response_id: str, body: JSON | None, status: int, code: str | None) -> None:
        answer = await retry(api, response_id, body)
        assert (answer.status, answer.error["code"]) == (status, code), answer.raw

    await refused(running, None, 400, "response_not_ended")
    await api.cancel(running)
    await refused(running, {"input": "Other."}, 400, "unknown_parameter")
    await refused(running, {"tools": [{"type": "function", "name": "f"}]}, 400, "invalid_value")
    await refused(running, {"tools": {}}, 400, "invalid_type")
    await refused(running, {"background": "yes"}, 400, "invalid_type")
    await refused(UNKNOWN_RESPONSE_ID, None, 404, None)
    assert "retried_by" not in await api.get(running)


async def test_credentials_of_mcp_servers_are_sent_again(
    tool_stack: Stack, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    api = tool_stack.api()
    server = {
        "type": "mcp",
        "server_label": "tools",
        "server_url": mcp_servers.url("plain"),
        "require_approval": "never",
    }
    model = fake.script([fail()], reply("with tools"))
    failed = await api.wait_for_end(
        await api.create_background(model, tools=[server, {"type": "function", "name": "f"}])
    )
    assert failed["status"] == "failed"
    refused = await retry(api, failed["id"])
    assert (refused.status, refused.error["param"]) == (400, "tools")
    assert refused.error["code"] == "mcp_credentials_required"
    assert "'tools'" in refused.error["message"]
    again = await run_again(api, failed["id"], tools=[server])
    assert again["output_text"] == "with tools"
    assert [tool["type"] for tool in again["tools"]] == ["mcp", "function"]
    assert again["tools"][0]["require_approval"] == "never"
