"""Reasoning through the whole product: shown, summarised, sealed, and sent back to an upstream that wants it (contract §6.1, §7)."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from models import keys
from tests.conftest import PrivateStack
from tests.support.api import JSON, Api, until
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Step,
    call,
    delta,
    done,
    finish,
    hang,
    reasoning,
    reply,
    text,
    usage,
)
from tests.support.mcp_servers import McpServers
from tests.support.stack import SHORT_LEASES, Databases, Stack, SuiteSettings, stack
from tests.support.strict_types import check_event, check_response
from tests.support.tool_turns import TOOL_SETTINGS, counting_server, tool_turn

ASKED: JSON = {"include": ["reasoning.encrypted_content"]}
WEATHER: JSON = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}

_OPENROUTER = 'reasoning_back = "reasoning_details"\neffort_field = "reasoning"'
MAKES = {
    "deepseek": 'reasoning_back = "reasoning_content"\neffort_field = "thinking"',
    "vllm": 'reasoning_back = "reasoning"\neffort_field = "enable_thinking"',
    "minimax": 'reasoning_back = "think_tags"\nthink_tags = true\neffort_field = "none"',
    "litellm": 'reasoning_back = "thinking_blocks"',
    "plain": "",
}
"""Name of an upstream -> its quirks."""
THINKS: dict[str, list[Step]] = {
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
"""Name -> how it tells a thought."""
BACK: dict[str, JSON] = {
    "deepseek": {"content": None, "reasoning_content": "I look."},
    "vllm": {"content": None, "reasoning": "I look."},
    "minimax": {"content": "<think>\nI look.\n</think>\n\n"},
    "litellm": {
        "content": None,
        "thinking_blocks": [{"type": "thinking", "thinking": "I look.", "signature": "sig"}],
    },
    "plain": {"content": None},
}
"""Name -> how it wants to have it back."""
EFFORT: dict[str, JSON] = {
    "deepseek": {"thinking": {"type": "enabled"}},
    "vllm": {"chat_template_kwargs": {"enable_thinking": True, "thinking": True}},
    "minimax": {},
    "litellm": {"reasoning_effort": "low"},
    "plain": {"reasoning_effort": "low"},
}


@pytest.fixture(scope="module")
async def thinking(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment with a key to seal with, and upstreams of several makes; what no other has is OpenRouter's."""
    folder = tmp_path_factory.mktemp("thinking")
    upstreams = "".join(
        f'[upstreams.{name}]\nbase_url = "{fake.base_url}"\n{quirks}\n'
        for name, quirks in {**MAKES, "openrouter": _OPENROUTER}.items()
    )
    routes = "".join(f'"{name}-*" = "{name}"\n' for name in MAKES)
    (folder / "backburner.toml").write_text(f'{upstreams}[routes]\n{routes}"*" = "openrouter"\n')
    settings = {**TOOL_SETTINGS, "BACKBURNER_CONFIG": str(folder / "backburner.toml")}
    async with stack(folder, database_server, suite_settings, fake, settings=settings) as one:
        yield one


@pytest.fixture
def thinker(thinking: Stack) -> Api:
    return thinking.api()


def signed(thought: str, signature: str) -> Step:
    """A thought as OpenRouter tells Anthropic's: pieces of text, then the signature."""

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


def whole(thought: str, signature: str) -> JSON:
    return {
        "type": "reasoning.text",
        "text": thought,
        "format": "anthropic-claude-v1",
        "index": 0,
        "signature": signature,
    }


def asks_for_weather(*before: Step) -> list[Step]:
    return [
        *before,
        call(0, "call_a", "get_weather", '{"city": "Bonn"}'),
        finish("tool_calls"),
        usage(),
        done(),
    ]


def answered(call_id: str = "call_a") -> JSON:
    return {"type": "function_call_output", "call_id": call_id, "output": "rain"}


def assistants(fake: FakeUpstream, model: str, request: int) -> list[JSON]:
    return [
        message
        for message in fake.requests_for(model)[request].messages
        if message["role"] == "assistant"
    ]


async def test_a_chain_gives_back_the_thoughts_of_its_loop_and_forgets_them_when_the_user_speaks(
    thinker: Api, fake: FakeUpstream
) -> None:
    model = fake.script(
        asks_for_weather(signed("I look.", "s1")),
        [signed("Rain it is.", "s2"), *reply("It rains.")],
        reply("Bye."),
    )
    first = await thinker.create(model, tools=[WEATHER])
    check_response(first)
    second = await thinker.create(
        model, input=[answered()], tools=[WEATHER], previous_response_id=first["id"]
    )
    [asked] = assistants(fake, model, 1)
    assert asked["reasoning_details"] == [whole("I look.", "s1")]
    assert "reasoning" not in asked
    await thinker.create(model, input="Thanks.", previous_response_id=second["id"])
    assert not [message for message in assistants(fake, model, 2) if "reasoning_details" in message]


async def test_a_client_that_keeps_the_history_itself_gives_the_thoughts_back_sealed(
    thinker: Api, fake: FakeUpstream
) -> None:
    """As codex does: nothing is stored, ids and texts are thrown away."""
    model = fake.script(asks_for_weather(signed("I look.", "s1")), reply("It rains."))
    first = await thinker.create(model, store=False, tools=[WEATHER], **ASKED)
    check_response(first)
    thought, called = first["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "I look."}]
    sealed = thought["encrypted_content"]
    assert "I look" not in sealed
    copy = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": sealed}
    question = {"role": "user", "content": "Hello."}
    made = {name: called[name] for name in ("type", "call_id", "name", "arguments")}
    await thinker.create(
        model, store=False, input=[question, copy, made, answered()], tools=[WEATHER], **ASKED
    )
    assert assistants(fake, model, 1)[0]["reasoning_details"] == [whole("I look.", "s1")]


@pytest.mark.parametrize("keeps", ["chain", "conversation", "client"])
@pytest.mark.parametrize("make", list(MAKES))
async def test_each_upstream_hears_of_effort_and_of_its_thoughts_in_its_own_words(
    thinker: Api, fake: FakeUpstream, make: str, keeps: str
) -> None:
    model = fake.script(asks_for_weather(*THINKS[make]), reply("It rains."), name=f"{make}-{keeps}")
    asked: JSON = {"tools": [WEATHER], "reasoning": {"effort": "low"}}
    if keeps == "conversation":
        asked["conversation"] = (await thinker.call("POST", "/conversations", {})).body["id"]
    first = await thinker.create(
        model, store=keeps != "client", **asked, **(ASKED if keeps == "client" else {})
    )
    thought, called = first["output"]
    assert thought["content"] == [{"type": "reasoning_text", "text": "I look."}]
    back = [answered()]
    if keeps == "chain":
        asked["previous_response_id"] = first["id"]
    if keeps == "client":
        copy = {
            "type": "reasoning",
            "encrypted_content": thought["encrypted_content"],
            "summary": [],
        }
        back = [{"role": "user", "content": "Hello."}, copy, called, answered()]
    await thinker.create(model, input=back, **asked)
    for request in fake.requests_for(model):
        words = ("reasoning_effort", "reasoning", "thinking", "chat_template_kwargs", "think")
        assert {name: request.body[name] for name in words if name in request.body} == EFFORT[make]
    [told] = assistants(fake, model, 1)
    assert {
        name: value for name, value in told.items() if name not in ("role", "tool_calls")
    } == BACK[make]


async def test_what_we_did_not_seal_for_this_project_says_nothing_and_harms_nothing(
    thinking: Stack, thinker: Api, fake: FakeUpstream
) -> None:
    model = fake.script(asks_for_weather(signed("I look.", "s1")))
    sealed = (await thinker.create(model, tools=[WEATHER], **ASKED))["output"][0][
        "encrypted_content"
    ]
    stranger = thinking.api(key=keys.create(thinking.dsn, "strangers"))
    made = {"type": "function_call", "call_id": "call_a", "name": "get_weather", "arguments": "{}"}
    for api, blob in (
        (stranger, sealed),
        (thinker, "gAAAAABforeign"),
        (thinker, sealed[:-4] + "AAAA"),
        (thinker, ""),
        (thinker, "\0"),
    ):
        model = fake.script(reply("x"))
        items = [{"type": "reasoning", "encrypted_content": blob}, made, answered()]
        assert (await api.create(model, input=items))["status"] == "completed"
        assert not {"reasoning", "reasoning_details"} & set(assistants(fake, model, 0)[0])


async def test_thoughts_go_back_between_turns_of_one_response(
    thinker: Api, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    first, second = (tool_turn(("count_read_only", f"thought-{nr}")) for nr in (1, 2))
    model = fake.script(
        [signed("I note it.", "s1"), *first], [signed("And again.", "s2"), *second], reply("Noted.")
    )
    response = await thinker.create(model, tools=[counting_server(mcp_servers)])
    assert response["output_text"] == "Noted."
    told = [message["reasoning_details"] for message in assistants(fake, model, 2)]
    assert told == [[whole("I note it.", "s1")], [whole("And again.", "s2")]]


async def test_another_worker_knows_what_was_thought_before(
    private_stack: PrivateStack, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    settings = {
        **SHORT_LEASES,
        **TOOL_SETTINGS,
        "BACKBURNER_UPSTREAM__REASONING_BACK": "reasoning_details",
    }
    called = tool_turn(("count_read_only", "thought-3"))
    model = fake.script(
        [signed("I note it.", "s1"), *called], [text("It is"), hang()], reply("Noted.")
    )
    async with private_stack(settings=settings) as one:
        api = one.api()
        named = await api.create_background(model, tools=[counting_server(mcp_servers)], **ASKED)
        await until(
            lambda: len(fake.requests_for(model)) == 2 and fake.requests_for(model)[1].sent_text
        )
        one.kill(one.workers[0])
        await one.start_worker()
        response = await api.wait_for_end(named)
    assert (response["status"], response["output_text"]) == ("completed", "Noted.")
    assert response["output"][1]["type"] == "reasoning"
    assert response["output"][1]["encrypted_content"]
    [told] = assistants(fake, model, 2)
    assert told["reasoning_details"] == [whole("I note it.", "s1")]


async def test_sealed_thoughts_are_shown_to_who_asks_at_the_start_or_later(
    thinker: Api, fake: FakeUpstream
) -> None:
    model = fake.script([signed("hm", "s1"), *reply("Hi.")])
    created = await thinker.create(model)
    assert "encrypted_content" not in created["output"][0]
    assert await thinker.get(created["id"]) == created
    asked = (
        await thinker.call(
            "GET",
            f"/responses/{created['id']}",
            params=[("include[]", "reasoning.encrypted_content")],
        )
    ).body
    sealed = asked["output"][0].pop("encrypted_content")
    assert asked == created
    assert sealed
    async with thinker.post_stream(model, background=True, **ASKED) as stream:
        events = await stream.to_end()
    done = next(event["item"] for event in events if event["type"] == "response.output_item.done")
    assert done["encrypted_content"]
    assert await thinker.get(stream.response_id) == stream.final
    assert stream.final["output"][0] == done


async def test_a_summary_of_the_upstream_becomes_summary_parts(
    thinker: Api, fake: FakeUpstream
) -> None:
    def piece(said: str, index: int) -> Step:
        return delta(
            {
                "reasoning": said,
                "reasoning_details": [
                    {"type": "reasoning.summary", "summary": said, "index": index}
                ],
            }
        )

    model = fake.script(
        [piece("**Look", 0), piece("ing**", 0), piece("**Done**", 1), *reply("Hi.")]
    )
    async with thinker.post_stream(model, reasoning={"effort": "low", "summary": "auto"}) as stream:
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
    assert await thinker.get(stream.response_id) == stream.final


async def test_raw_thoughts_are_no_summary(thinker: Api, fake: FakeUpstream) -> None:
    model = fake.script([reasoning("h", "m"), *reply("Hi.")])
    response = await thinker.create(model, reasoning={"summary": "auto"})
    assert response["output"][0]["summary"] == []
    assert response["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]


async def test_the_official_client_passes_its_output_back_as_it_is(
    thinking: Stack, fake: FakeUpstream
) -> None:
    client = thinking.openai()
    tools: list[Any] = [WEATHER]
    model = fake.script(
        asks_for_weather(signed("I look.", "s1"), text("Wait.")), reply("It rains.")
    )
    conversation: list[Any] = [{"role": "user", "content": "Weather?"}]
    first = await client.responses.create(
        model=model, input=conversation, store=False, tools=tools, **ASKED
    )
    conversation += [*first.output, answered()]
    second = await client.responses.create(
        model=model, input=conversation, store=False, tools=tools, **ASKED
    )
    assert second.output_text == "It rains."
    [asked] = assistants(fake, model, 1)
    assert (asked["content"], asked["reasoning_details"]) == ("Wait.", [whole("I look.", "s1")])


async def test_without_a_key_nothing_is_sealed_and_nobody_is_refused(
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


async def test_the_phase_of_a_message_is_kept_and_no_chat_upstream_hears_of_it(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("Hi."), reply("Ho."))
    said = {
        "type": "message",
        "role": "assistant",
        "phase": "commentary",
        "content": [{"type": "output_text", "text": "Looking."}],
    }
    first = await api.create(
        model, input=[{"role": "user", "content": "Go."}, said, {"role": "user", "content": "And?"}]
    )
    listed = (
        await api.call("GET", f"/responses/{first['id']}/input_items", params={"order": "asc"})
    ).body["data"]
    assert [item.get("phase") for item in listed] == [None, "commentary", None]
    await api.create(model, input="More.", previous_response_id=first["id"])
    for request in fake.requests_for(model):
        assert {"role": "assistant", "content": "Looking."} in request.messages
