"""Reasoning end to end: shown, summarised, sealed, and sent back to the upstreams that need it."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.conftest import PrivateStack
from tests.support import keys
from tests.support.api import JSON, Api, until
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    Step,
    UpstreamRequest,
    call,
    delta,
    done,
    finish,
    hang,
    reasoning,
    reply,
    reset,
    status,
    text,
    usage,
)
from tests.support.mcp_servers import McpServers
from tests.support.process_logs import line_of
from tests.support.stack import SHORT_LEASES, Databases, Stack, SuiteSettings, stack
from tests.support.strict_types import check_event, check_response
from tests.support.tool_turns import (
    TOOL_SETTINGS,
    counting_server,
    item_statuses,
    tool_turn,
)

INCLUDE_SEALED: JSON = {"include": ["reasoning.encrypted_content"]}
WEATHER: JSON = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}

_OPENROUTER = 'reasoning_back = "reasoning_details"\neffort_field = "reasoning"'
QUIRKS = {
    "deepseek": 'reasoning_back = "reasoning_content"\neffort_field = "thinking"',
    "vllm": 'reasoning_back = "reasoning"\neffort_field = "enable_thinking"',
    "minimax": 'reasoning_back = "think_tags"\nthink_tags = true\neffort_field = "none"',
    "litellm": 'reasoning_back = "thinking_blocks"',
    "plain": "",
}
"""Name of an upstream kind -> its quirks."""
SUMMARISED = {
    "summaries": "reasoning_summary = true\nreasoning_summary_time = 20",
    "hasty": "reasoning_summary = true\nreasoning_summary_time = 0.2",
    "narrow": "reasoning_summary = true\nconcurrency = 1",
}
"""Name of an upstream that makes summaries -> its settings."""
REASONING_STEPS: dict[str, list[Step]] = {
    "deepseek": [delta({"reasoning_content": "I "}), delta({"reasoning_content": "look."})],
    "vllm": [reasoning("I ", "look.")],
    "minimax": [text("<thi", "nk>I look.</think>", "\n\n")],
    "litellm": [
        delta(
            {
                "reasoning_content": "I ",
                "thinking_blocks": [{"type": "thinking", "thinking": "I ", "signature": None}],
            }
        ),
        delta(
            {
                "reasoning_content": "look.",
                "thinking_blocks": [{"type": "thinking", "thinking": "look.", "signature": ""}],
            }
        ),
        delta(
            {
                "reasoning_content": "",
                "thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "sig"}],
            }
        ),
    ],
    "plain": [reasoning("I look.")],
}
"""Name -> the chunks in which it sends reasoning."""
SENT_BACK: dict[str, JSON] = {
    "deepseek": {"content": None, "reasoning_content": "I look."},
    "vllm": {"content": None, "reasoning": "I look."},
    "minimax": {"content": "<think>\nI look.\n</think>\n\n"},
    "litellm": {
        "content": None,
        "thinking_blocks": [{"type": "thinking", "thinking": "I look.", "signature": "sig"}],
    },
    "plain": {"content": None},
}
"""Name -> the assistant message that it expects back."""
EFFORT: dict[str, JSON] = {
    "deepseek": {"thinking": {"type": "enabled"}},
    "vllm": {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}},
    "minimax": {},
    "litellm": {"reasoning_effort": "low"},
    "plain": {"reasoning_effort": "low"},
}


@pytest.fixture(scope="module")
async def reasoning_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment with a secret key and upstreams of several kinds; the default is OpenRouter."""
    folder = tmp_path_factory.mktemp("reasoning")
    upstreams = "".join(
        f'[upstreams.{kind}]\nbase_url = "{fake.base_url}"\n{quirks}\n'
        for kind, quirks in {**QUIRKS, **SUMMARISED, "openrouter": _OPENROUTER}.items()
    )
    routes = "".join(f'"{kind}-*" = "{kind}"\n' for kind in (*QUIRKS, *SUMMARISED))
    (folder / "backburner.toml").write_text(f'{upstreams}[routes]\n{routes}"*" = "openrouter"\n')
    settings = {
        **SHORT_LEASES,
        **TOOL_SETTINGS,
        "BACKBURNER_CONFIG": str(folder / "backburner.toml"),
        "BACKBURNER_MCP__REQUIRE_APPROVAL": "never",
    }
    async with stack(folder, database_server, suite_settings, fake, settings=settings) as own_stack:
        yield own_stack


@pytest.fixture
def reasoning_api(reasoning_stack: Stack) -> Api:
    return reasoning_stack.api()


def signed_reasoning(thought: str, signature: str) -> Step:
    """Reasoning of Anthropic as OpenRouter streams it: pieces of text, then the signature."""

    async def step(exchange: Any) -> None:
        for piece in (thought[:3], thought[3:]):
            detail = {
                "type": "reasoning.text",
                "text": piece,
                "format": "anthropic-claude-v1",
                "index": 0,
            }
            await exchange.delta({"reasoning": piece, "reasoning_details": [detail]})
        await exchange.delta(
            {"reasoning_details": [{"type": "reasoning.text", "signature": signature, "index": 0}]}
        )

    return step


def reasoning_detail(thought: str, signature: str) -> JSON:
    return {
        "type": "reasoning.text",
        "text": thought,
        "format": "anthropic-claude-v1",
        "index": 0,
        "signature": signature,
    }


def weather_call(*before: Step) -> list[Step]:
    return [
        *before,
        call(0, "call_a", "get_weather", '{"city": "Bonn"}'),
        finish("tool_calls"),
        usage(),
        done(),
    ]


def call_output(call_id: str = "call_a") -> JSON:
    return {"type": "function_call_output", "call_id": call_id, "output": "rain"}


def assistant_messages(fake: FakeUpstream, model: str, request: int) -> list[JSON]:
    return [
        message
        for message in fake.requests_for(model)[request].messages
        if message["role"] == "assistant"
    ]


async def test_a_chain_sends_reasoning_back_in_a_tool_loop_and_drops_it_after_a_user_message(
    reasoning_api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(
        weather_call(signed_reasoning("I look.", "s1")),
        [signed_reasoning("Rain it is.", "s2"), *reply("It rains.")],
        reply("Bye."),
    )
    first = await reasoning_api.create(model, tools=[WEATHER])
    check_response(first)
    second = await reasoning_api.create(
        model, input=[call_output()], tools=[WEATHER], previous_response_id=first["id"]
    )
    [resent_message] = assistant_messages(fake, model, 1)
    assert resent_message["reasoning_details"] == [reasoning_detail("I look.", "s1")]
    assert "reasoning" not in resent_message
    await reasoning_api.create(model, input="Thanks.", previous_response_id=second["id"])
    assert not [
        message for message in assistant_messages(fake, model, 2) if "reasoning_details" in message
    ]


async def test_a_client_that_keeps_the_history_can_send_the_reasoning_back_sealed(
    reasoning_api: Api, fake: FakeUpstream
) -> None:
    """As codex does: nothing is stored, and item ids and texts are dropped."""
    model = fake.script(weather_call(signed_reasoning("I look.", "s1")), reply("It rains."))
    first = await reasoning_api.create(model, store=False, tools=[WEATHER], **INCLUDE_SEALED)
    check_response(first)
    thought, call_item = first["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "I look."}]
    sealed = thought["encrypted_content"]
    assert "I look" not in sealed
    copy = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": sealed}
    question = {"role": "user", "content": "Hello."}
    resent_call = {name: call_item[name] for name in ("type", "call_id", "name", "arguments")}
    await reasoning_api.create(
        model,
        store=False,
        input=[question, copy, resent_call, call_output()],
        tools=[WEATHER],
        **INCLUDE_SEALED,
    )
    assert assistant_messages(fake, model, 1)[0]["reasoning_details"] == [
        reasoning_detail("I look.", "s1")
    ]


@pytest.mark.parametrize("history_kept_by", ["chain", "conversation", "client"])
@pytest.mark.parametrize("upstream_kind", list(QUIRKS))
async def test_each_upstream_gets_effort_and_its_reasoning_in_its_own_fields(
    reasoning_api: Api, fake: FakeUpstream, upstream_kind: str, history_kept_by: str
) -> None:
    model = fake.script(
        weather_call(*REASONING_STEPS[upstream_kind]),
        reply("It rains."),
        name=f"{upstream_kind}-{history_kept_by}",
    )
    fields: JSON = {"tools": [WEATHER], "reasoning": {"effort": "low"}}
    if history_kept_by == "conversation":
        fields["conversation"] = (await reasoning_api.call("POST", "/conversations", {})).body["id"]
    first = await reasoning_api.create(
        model,
        store=history_kept_by != "client",
        **fields,
        **(INCLUDE_SEALED if history_kept_by == "client" else {}),
    )
    thought, call_item = first["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "I look."}]
    next_input = [call_output()]
    if history_kept_by == "chain":
        fields["previous_response_id"] = first["id"]
    if history_kept_by == "client":
        copy = {
            "type": "reasoning",
            "encrypted_content": thought["encrypted_content"],
            "summary": [],
        }
        next_input = [{"role": "user", "content": "Hello."}, copy, call_item, call_output()]
    await reasoning_api.create(model, input=next_input, **fields)
    for request in fake.requests_for(model):
        effort_fields = (
            "reasoning_effort",
            "reasoning",
            "thinking",
            "chat_template_kwargs",
            "think",
        )
        assert {
            name: request.body[name] for name in effort_fields if name in request.body
        } == EFFORT[upstream_kind]
    [resent_message] = assistant_messages(fake, model, 1)
    assert {
        name: value for name, value in resent_message.items() if name not in ("role", "tool_calls")
    } == SENT_BACK[upstream_kind]


async def test_reasoning_not_sealed_for_this_project_is_ignored_without_an_error(
    reasoning_stack: Stack, reasoning_api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(weather_call(signed_reasoning("I look.", "s1")))
    sealed = (await reasoning_api.create(model, tools=[WEATHER], **INCLUDE_SEALED))["output"][0][
        "encrypted_content"
    ]
    other_project_api = reasoning_stack.api(key=keys.create(reasoning_stack.dsn, "other-project"))
    resent_call = {
        "type": "function_call",
        "call_id": "call_a",
        "name": "get_weather",
        "arguments": "{}",
    }
    for api, sealed_content in (
        (other_project_api, sealed),
        (reasoning_api, "gAAAAABforeign"),
        (reasoning_api, sealed[:-4] + "AAAA"),
        (reasoning_api, ""),
        (reasoning_api, "\0"),
    ):
        model = fake.script(reply("x"))
        items = [
            {"type": "reasoning", "encrypted_content": sealed_content},
            resent_call,
            call_output(),
        ]
        assert (await api.create(model, input=items))["status"] == "completed"
        assert not {"reasoning", "reasoning_details"} & set(assistant_messages(fake, model, 0)[0])


async def test_reasoning_is_sent_back_between_the_turns_of_one_response(
    reasoning_api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    first, second = (tool_turn(("count_read_only", f"note-{number}")) for number in (1, 2))
    model = fake.script(
        [signed_reasoning("I note it.", "s1"), *first],
        [signed_reasoning("And again.", "s2"), *second],
        reply("Noted."),
    )
    response = await reasoning_api.create(model, tools=[counting_server(mcp_servers)])
    assert response["output_text"] == "Noted."
    resent = [message["reasoning_details"] for message in assistant_messages(fake, model, 2)]
    assert resent == [
        [reasoning_detail("I note it.", "s1")],
        [reasoning_detail("And again.", "s2")],
    ]


@pytest.mark.long
async def test_after_a_crash_another_worker_sends_the_earlier_reasoning_back(
    private_stack: PrivateStack, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    settings = {
        **SHORT_LEASES,
        **TOOL_SETTINGS,
        "BACKBURNER_UPSTREAM__REASONING_BACK": "reasoning_details",
    }
    tool_call_steps = tool_turn(("count_read_only", "note-3"))
    model = fake.script(
        [signed_reasoning("I note it.", "s1"), *tool_call_steps],
        [text("It is"), hang()],
        reply("Noted."),
    )
    async with private_stack(settings=settings) as stack:
        api = stack.api()
        response_id = await api.create_background(
            model, tools=[counting_server(mcp_servers)], **INCLUDE_SEALED
        )
        await until(
            lambda: len(fake.requests_for(model)) == 2 and fake.requests_for(model)[1].sent_text
        )
        stack.kill(stack.workers[0])
        await stack.start_worker()
        response = await api.wait_for_end(response_id)
    assert (response["status"], response["output_text"]) == ("completed", "Noted.")
    assert response["output"][1]["type"] == "reasoning"
    assert response["output"][1]["encrypted_content"]
    [resent_message] = assistant_messages(fake, model, 2)
    assert resent_message["reasoning_details"] == [reasoning_detail("I note it.", "s1")]


async def test_sealed_reasoning_is_shown_when_included_at_create_or_at_get(
    reasoning_api: Api, fake: FakeUpstream
) -> None:
    model = fake.script([signed_reasoning("hm", "s1"), *reply("Hi.")])
    created = await reasoning_api.create(model)
    assert "encrypted_content" not in created["output"][0]
    assert await reasoning_api.get(created["id"]) == created
    with_sealed = (
        await reasoning_api.call(
            "GET",
            f"/responses/{created['id']}",
            params=[("include[]", "reasoning.encrypted_content")],
        )
    ).body
    sealed = with_sealed["output"][0].pop("encrypted_content")
    assert with_sealed == created
    assert sealed
    async with reasoning_api.post_stream(model, background=True, **INCLUDE_SEALED) as stream:
        events = await stream.to_end()
    done = next(event["item"] for event in events if event["type"] == "response.output_item.done")
    assert done["encrypted_content"]
    assert await reasoning_api.get(stream.response_id) == stream.final
    assert stream.final["output"][0] == done


async def test_a_summary_of_the_upstream_becomes_summary_parts(
    reasoning_api: Api, fake: FakeUpstream
) -> None:
    def piece(summary: str, index: int) -> Step:
        return delta(
            {
                "reasoning": summary,
                "reasoning_details": [
                    {"type": "reasoning.summary", "summary": summary, "index": index}
                ],
            }
        )

    model = fake.script(
        [piece("**Look", 0), piece("ing**", 0), piece("**Done**", 1), *reply("Hi.")]
    )
    async with reasoning_api.post_stream(
        model, reasoning={"effort": "low", "summary": "auto"}
    ) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    thought = stream.final["output"][0]
    assert thought["summary"] == [
        {"type": "summary_text", "text": "**Looking**"},
        {"type": "summary_text", "text": "**Done**"},
    ]
    assert thought["content"] == []
    assert fake.requests_for(model)[0].body["reasoning"] == {"effort": "low"}
    assert await reasoning_api.get(stream.response_id) == stream.final


async def test_raw_reasoning_is_not_shown_as_a_summary(
    reasoning_api: Api, fake: FakeUpstream
) -> None:
    model = fake.script([reasoning("h", "m"), *reply("Hi.")])
    response = await reasoning_api.create(model, reasoning={"summary": "auto"})
    assert response["output"][0]["summary"] == []
    assert response["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]


async def test_the_official_client_can_send_its_output_back_unchanged(
    reasoning_stack: Stack, fake: FakeUpstream
) -> None:
    client = reasoning_stack.openai()
    tools: list[Any] = [WEATHER]
    model = fake.script(
        weather_call(signed_reasoning("I look.", "s1"), text("Wait.")), reply("It rains.")
    )
    conversation: list[Any] = [{"role": "user", "content": "Weather?"}]
    first = await client.responses.create(
        model=model, input=conversation, store=False, tools=tools, **INCLUDE_SEALED
    )
    conversation += [*first.output, call_output()]
    second = await client.responses.create(
        model=model, input=conversation, store=False, tools=tools, **INCLUDE_SEALED
    )
    assert second.output_text == "It rains."
    [resent_message] = assistant_messages(fake, model, 1)
    assert (resent_message["content"], resent_message["reasoning_details"]) == (
        "Wait.",
        [reasoning_detail("I look.", "s1")],
    )


async def test_without_a_secret_key_nothing_is_sealed_and_the_request_is_accepted(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    model = fake.script([reasoning("hm"), *reply("Hi.")])
    response = await client.responses.create(
        model=model, input="Hi.", include=["reasoning.encrypted_content"]
    )
    assert response.output[0].to_dict() == {
        "id": response.output[0].id,
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }


async def test_the_phase_of_a_message_is_kept_and_not_sent_to_a_chat_upstream(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("Hi."), reply("Ho."))
    commentary = {
        "type": "message",
        "role": "assistant",
        "phase": "commentary",
        "content": [{"type": "output_text", "text": "Looking."}],
    }
    first = await api.create(
        model,
        input=[{"role": "user", "content": "Go."}, commentary, {"role": "user", "content": "And?"}],
    )
    listed = (
        await api.call("GET", f"/responses/{first['id']}/input_items", params={"order": "asc"})
    ).body["data"]
    assert [item.get("phase") for item in listed] == [None, "commentary", None]
    await api.create(model, input="More.", previous_response_id=first["id"])
    for request in fake.requests_for(model):
        assert {"role": "assistant", "content": "Looking."} in request.messages


async def test_tools_of_mcp_servers_need_no_approval_where_the_setting_says_so(
    reasoning_api: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    tool = counting_server(mcp_servers)
    del tool["require_approval"]
    model = fake.script(tool_turn(("count_unsafe", "no-policy")), reply("Counted."))
    response = await reasoning_api.create(model, tools=[tool])
    assert item_statuses(response)[1:] == ["mcp_call completed", "message completed"]
    assert response["tools"][0]["require_approval"] == "never"


# Summaries that a second call makes.

_SUMMARISED: JSON = {"reasoning": {"effort": "high", "summary": "concise"}}


def is_summary(request: UpstreamRequest) -> bool:
    return "summarize" in str(request.messages[0]["content"])


def script_summaries(fake: FakeUpstream, model: str, turn: Script, summary: Script) -> None:
    fake.decide(model, lambda request: summary if is_summary(request) else turn)


def summary_calls(fake: FakeUpstream, model: str) -> list[UpstreamRequest]:
    return [request for request in fake.requests_for(model) if is_summary(request)]


@pytest.mark.parametrize("kind", ["summaries", "narrow"])
async def test_a_second_call_makes_the_summary_where_the_upstream_sends_raw_thoughts(
    reasoning_api: Api, reasoning_stack: Stack, fake: FakeUpstream, kind: str
) -> None:
    model = f"{kind}-made"
    turn = [reasoning("I ", "look."), text("It ", "rains."), finish(), usage(20, 9), done()]
    script_summaries(fake, model, turn, [text("Looked ", "out."), finish(), usage(5, 3), done()])
    async with reasoning_api.post_stream(
        model, max_output_tokens=2000, temperature=0.5, **_SUMMARISED
    ) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    thought, message = stream.final["output"]
    assert thought["summary"] == [{"type": "summary_text", "text": "Looked out."}]
    assert thought["content"] == [{"type": "reasoning_text", "text": "I look."}]
    assert (thought["status"], message["content"][0]["text"]) == ("completed", "It rains.")
    of_thought = [event["type"] for event in events if event.get("output_index") == 0]
    assert of_thought[-5:] == [
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.output_item.done",
    ]
    used = stream.final["usage"]
    assert (used["input_tokens"], used["output_tokens"], used["total_tokens"]) == (25, 12, 37)
    assert used["output_tokens_details"] == {"reasoning_tokens": 3}
    stored = "SELECT ARRAY[input_tokens, reasoning_tokens] FROM usage_entries WHERE model = %s"
    assert await reasoning_stack.value(stored, model) == [25, 3]
    [call_of_summary] = summary_calls(fake, model)
    body = call_of_summary.body
    assert (body["max_completion_tokens"], body["temperature"]) == (2000, 0.5)
    assert body["reasoning_effort"] == "low"
    assert "I look." in call_of_summary.texts[0]
    assert await reasoning_api.get(stream.response_id) == stream.final
    unstreamed = await reasoning_api.create(model, **_SUMMARISED)
    assert [item.get("summary") for item in unstreamed["output"]] == [thought["summary"], None]
    without = await reasoning_api.create(model, reasoning={"effort": "high"})
    assert without["output"][0]["summary"] == []
    assert len(summary_calls(fake, model)) == 2


@pytest.mark.parametrize(
    ("kind", "summary", "reason"),
    [
        ("summaries", [status(500)], "upstream_500"),
        ("summaries", [text("Half"), reset()], "upstream_reset"),
        ("summaries", [text("Half"), finish("length"), done()], "max_output_tokens"),
        ("hasty", [text("Half"), hang()], "reasoning_summary_time"),
    ],
    ids=["refused", "broken off", "cut", "too slow"],
)
async def test_a_summary_that_fails_is_left_out_and_logged(
    reasoning_api: Api,
    reasoning_stack: Stack,
    fake: FakeUpstream,
    kind: str,
    summary: Script,
    reason: str,
) -> None:
    model = f"{kind}-{reason}"
    script_summaries(fake, model, [reasoning("hm"), *reply("Hi.")], summary)
    async with reasoning_api.post_stream(model, **_SUMMARISED) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    assert not [event for event in events if "summary" in event["type"]]
    assert stream.final["status"] == "completed"
    thought, message = stream.final["output"]
    assert (thought["summary"], thought["status"]) == ([], "completed")
    assert message["content"][0]["text"] == "Hi."
    line = await line_of(
        reasoning_stack.workers[0], "reasoning_not_summarised", response=stream.response_id
    )
    assert reason in str(line)


async def test_reasoning_that_was_cut_gets_no_summary(
    reasoning_api: Api, fake: FakeUpstream
) -> None:
    model = "summaries-cut"
    script_summaries(
        fake, model, [reasoning("I think"), finish("length"), usage(), done()], reply("Thought.")
    )
    response = await reasoning_api.create(model, **_SUMMARISED)
    assert (response["status"], len(response["output"])) == ("incomplete", 1)
    assert (response["output"][0]["status"], response["output"][0]["summary"]) == ("incomplete", [])
    assert summary_calls(fake, model) == []


async def test_a_cancel_ends_the_call_for_a_summary(reasoning_api: Api, fake: FakeUpstream) -> None:
    model = "summaries-cancelled"
    script_summaries(fake, model, [reasoning("hm"), *reply("Hi.")], [text("Half"), hang()])
    response_id = await reasoning_api.create_background(model, **_SUMMARISED)
    await until(lambda: summary_calls(fake, model) and summary_calls(fake, model)[0].sent_text)
    assert (await reasoning_api.cancel(response_id)).status == 200
    response = await reasoning_api.wait_for_end(response_id)
    assert response["status"] == "cancelled"
    assert [item["type"] for item in response["output"]] == ["reasoning", "message"]
    assert (response["output"][0]["status"], response["output"][0]["summary"]) == ("completed", [])
    await until(lambda: summary_calls(fake, model)[0].closed_by_client)


async def test_a_worker_that_is_killed_during_the_call_for_a_summary_loses_and_repeats_nothing(
    reasoning_api: Api, reasoning_stack: Stack, fake: FakeUpstream
) -> None:
    model = "summaries-killed"
    turn = [reasoning("hm"), *reply("Hi.")]
    summaries = iter([[text("Half"), hang()], reply("Hummed.")])
    fake.decide(model, lambda request: next(summaries) if is_summary(request) else turn)
    response_id = await reasoning_api.create_background(model, **_SUMMARISED)
    await until(lambda: summary_calls(fake, model) and summary_calls(fake, model)[0].sent_text)
    reasoning_stack.kill(reasoning_stack.workers[0])
    await reasoning_stack.start_worker()
    response = await reasoning_api.wait_for_end(response_id)
    assert response["status"] == "completed"
    thought, message = response["output"]
    assert thought["summary"] == [{"type": "summary_text", "text": "Hummed."}]
    assert message["content"][0]["text"] == "Hi."
    # Two calls of the attempt that ended it: reply() counts 11 and 7 each.
    assert (response["usage"]["input_tokens"], response["usage"]["output_tokens"]) == (22, 14)
    async with reasoning_api.follow(response_id) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    added = [event for event in events if event["type"].endswith("summary_part.added")]
    assert len(added) == 1
