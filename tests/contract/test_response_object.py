"""The Response object: echoed parameters, defaults, and the fields of each status."""

import asyncio
from typing import Any

import pytest

from tests.support.api import Api
from tests.support.fake_upstream import FakeUpstream, finish, reply, status, text, wait_for
from tests.support.strict_types import check_response

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}

ECHOED: dict[str, Any] = {
    "instructions": "Be kind.",
    "max_output_tokens": 64,
    "max_tool_calls": 3,
    "metadata": {"ticket": "42"},
    "parallel_tool_calls": False,
    "prompt_cache_key": "cache",
    "safety_identifier": "someone",
    "temperature": 0.5,
    "top_p": 0.75,
    "tool_choice": "none",
    "truncation": "disabled",
    "user": "somebody",
    "presence_penalty": 0.5,
    "frequency_penalty": 0.25,
}

DEFAULTS: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "prompt_cache_key": None,
    "safety_identifier": None,
    "temperature": 1,
    "top_p": 1,
    "tool_choice": "auto",
    "tools": [],
    "top_logprobs": 0,
    "truncation": "disabled",
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "service_tier": "default",
    "store": True,
    "background": False,
    "reasoning": {"effort": None, "summary": None},
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
}


@pytest.mark.parametrize("name", list(ECHOED))
async def test_parameters_of_the_client_are_echoed(api: Api, fake: FakeUpstream, name: str) -> None:
    response = await api.create(fake.script(reply("x")), **{name: ECHOED[name]})
    assert response[name] == ECHOED[name]
    check_response(response)


async def test_omitted_parameters_have_their_defaults(api: Api, fake: FakeUpstream) -> None:
    response = await api.create(fake.script(reply("x")))
    assert {name: response[name] for name in DEFAULTS} == DEFAULTS


async def test_null_counts_as_omitted(api: Api, fake: FakeUpstream) -> None:
    nothing = dict.fromkeys(
        [*DEFAULTS, "include", "stream", "stream_options", "conversation", "prompt"]
    )
    response = await api.create(fake.script(reply("x")), **nothing)
    assert {name: response[name] for name in DEFAULTS} == DEFAULTS


async def test_function_tools_are_echoed_with_all_their_keys(api: Api, fake: FakeUpstream) -> None:
    response = await api.create(fake.script(reply("x")), tools=[TOOL])
    assert set(response["tools"][0]) >= {"type", "name", "description", "parameters", "strict"}
    assert response["tools"][0]["parameters"] == TOOL["parameters"]
    assert response["tools"][0]["description"] is None


async def test_reasoning_and_text_settings_are_echoed_whole(api: Api, fake: FakeUpstream) -> None:
    wanted = {"type": "json_schema", "name": "thing", "schema": {"type": "object"}, "strict": False}
    model = fake.script(reply("{}"))
    response = await api.create(
        model, reasoning={"effort": "high"}, text={"format": wanted, "verbosity": "low"}
    )
    assert response["reasoning"]["effort"] == "high"
    assert response["text"]["verbosity"] == "low"
    assert {key: response["text"]["format"][key] for key in wanted} == wanted
    check_response(response)


async def test_unset_fields_of_a_text_format_are_echoed_as_null(
    api: Api, fake: FakeUpstream
) -> None:
    wanted = {"type": "json_schema", "name": "thing", "schema": {"type": "object"}}
    response = await api.create(fake.script(reply("{}")), text={"format": wanted})
    assert response["text"]["format"] == {**wanted, "description": None, "strict": None}
    check_response(response)


@pytest.mark.parametrize("effort", ["none", "minimal", "low", "medium", "high", "xhigh", "max"])
async def test_every_reasoning_effort_is_passed_on(
    api: Api, fake: FakeUpstream, effort: str
) -> None:
    model = fake.script(reply("x"))
    assert (await api.create(model, reasoning={"effort": effort}))["reasoning"]["effort"] == effort
    assert fake.requests_for(model)[0].body["reasoning_effort"] == effort


async def test_documented_parameters_without_effect_are_accepted(
    api: Api, fake: FakeUpstream
) -> None:
    quiet = {
        "client_metadata": {"app": "codex"},
        "prompt_cache_retention": "24h",
        "service_tier": "auto",
    }
    response = await api.create(fake.script(reply("x")), **quiet)
    assert response["status"] == "completed"
    assert "client_metadata" not in response


async def test_each_status_has_its_fields(api: Api, fake: FakeUpstream) -> None:
    opened = asyncio.Event()
    model = fake.script([text("x"), wait_for(opened), finish()])
    queued = await api.create(model, background=True)
    check_response(queued)
    assert (queued["status"], queued["output"], queued["usage"]) == ("queued", [], None)
    async with api.follow(queued["id"]) as stream:
        await stream.until("response.output_text.delta")
        running = await api.get(queued["id"])
        check_response(running)
        assert running["status"] == "in_progress"
        assert running["completed_at"] is None
        opened.set()
        await stream.to_end()
    completed = await api.get(queued["id"])
    check_response(completed)
    assert completed["completed_at"] >= completed["created_at"]
    assert completed["usage"] is None, "what the upstream does not count is null, never an estimate"

    failed = await api.wait_for_end(await api.create_background(fake.script([status(418)])))
    check_response(failed)
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "invalid_prompt"


async def test_ids_have_their_prefix_and_only_url_safe_characters(
    api: Api, fake: FakeUpstream
) -> None:
    response = await api.create(fake.script(reply("x")))
    assert response["id"].startswith("resp_")
    assert response["output"][0]["id"].startswith("msg_")
    assert (response["id"] + response["output"][0]["id"]).replace("_", "").isalnum()


async def test_a_stream_has_the_headers_that_proxies_need(api: Api, fake: FakeUpstream) -> None:
    async with api.post_stream(fake.script(reply("x"))) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert "no-cache" in stream.headers["cache-control"]
        assert stream.headers["x-accel-buffering"] == "no"
        await stream.to_end()
        assert stream.is_done


async def test_the_input_is_listed_as_it_was_normalised(api: Api, fake: FakeUpstream) -> None:
    response = await api.create(fake.script(reply("x")), input="Just words.")
    page = (await api.call("GET", f"/responses/{response['id']}/input_items")).body
    [item] = page["data"]
    assert item["id"].startswith("msg_")
    assert (item["type"], item["role"], item["status"]) == ("message", "user", "completed")
    assert item["content"] == [{"type": "input_text", "text": "Just words."}]
    assert (page["object"], page["has_more"], page["first_id"], page["last_id"]) == (
        "list",
        False,
        item["id"],
        item["id"],
    )
