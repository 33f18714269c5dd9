"""`POST /v1/responses/input_tokens`: what is counted, and by which counter."""

import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from tests.support.api import JSON, Api
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    call,
    done,
    finish,
    reply,
    status,
    usage,
)
from tests.support.stack import Databases, Stack, SuiteSettings, stack

HEADER = "x-backburner-token-count"
TOOLS: list[JSON] = [
    {
        "type": "function",
        "name": "look",
        "description": "Looks. " * 50,
        "parameters": {"type": "object", "properties": {}},
    }
]
IMAGE: JSON = {"type": "input_image", "image_url": "data:image/png;base64," + "A" * 40_000}


async def count_tokens(api: Api, **body: Any) -> tuple[int, str]:
    """Returns the number of tokens and the name of the counter."""
    answer = await api.call("POST", "/responses/input_tokens", body)
    assert answer.status == 200, answer.raw
    assert answer.body == {
        "object": "response.input_tokens",
        "input_tokens": answer.body["input_tokens"],
    }
    return answer.body["input_tokens"], answer.headers[HEADER]


# --- estimates, and what is counted ---


async def test_the_official_client_gets_a_count_marked_as_an_estimate(
    client: openai.AsyncOpenAI,
) -> None:
    answer = await client.responses.input_tokens.with_raw_response.count(
        model="m", input="Tell me a joke."
    )
    assert answer.headers[HEADER] == "estimate"
    count = answer.parse()
    assert count.object == "response.input_tokens"
    assert 4 <= count.input_tokens <= 16


async def test_everything_sent_to_the_model_is_counted(api: Api) -> None:
    shortest, _ = await count_tokens(api, model="m", input="Hi.")
    message = {"role": "user", "content": [{"type": "input_text", "text": "Hi."}, IMAGE]}
    additions: dict[str, JSON] = {
        "a long input": {"input": "Hi. " * 400},
        "instructions": {"instructions": "Be brief. " * 100},
        "tools": {"tools": TOOLS},
        "a schema": {
            "text": {
                "format": {
                    "type": "json_schema",
                    "name": "n",
                    "schema": {"type": "object", "description": "x" * 400},
                }
            }
        },
        "an image": {"input": [message]},
    }
    for name, body in additions.items():
        tokens, _ = await count_tokens(api, **{"model": "m", "input": "Hi.", **body})
        assert tokens > shortest + 80, name
    with_image, _ = await count_tokens(api, model="m", input=[message])
    assert shortest + 700 < with_image < shortest + 900, (
        "an image has a fixed cost, whatever its size in bytes"
    )


async def test_the_history_is_counted_and_not_changed(api: Api, fake: FakeUpstream) -> None:
    model = fake.script(reply("word " * 400))
    first = await api.create(model, input="word " * 400)
    alone, _ = await count_tokens(api, model=model, input="And now?")
    chained, _ = await count_tokens(
        api, model=model, input="And now?", previous_response_id=first["id"]
    )
    assert chained > alone + 800
    conversation_id = (
        await api.call(
            "POST", "/conversations", {"items": [{"role": "user", "content": "word " * 400}]}
        )
    ).body["id"]
    in_conversation, _ = await count_tokens(
        api, model=model, input="And now?", conversation=conversation_id
    )
    assert in_conversation > alone + 400
    page = (await api.call("GET", f"/conversations/{conversation_id}/items")).body
    assert len(page["data"]) == 1
    assert len(fake.requests_for(model)) == 1, "a count calls no model"


async def test_a_call_and_its_output_are_counted(api: Api, fake: FakeUpstream) -> None:
    call_turn: Script = [call(0, "call_a", "look", "{}"), finish("tool_calls"), usage(), done()]
    first = await api.create(fake.script(call_turn), tools=TOOLS)
    output = [{"type": "function_call_output", "call_id": "call_a", "output": "word " * 400}]
    tokens, _ = await count_tokens(api, model="m", input=output, previous_response_id=first["id"])
    assert tokens > 400


async def test_all_parameters_are_optional(api: Api) -> None:
    assert (await count_tokens(api))[0] < 20
    assert (
        await count_tokens(
            api,
            input=None,
            model=None,
            personality="friendly",
            parallel_tool_calls=False,
            truncation="auto",
        )
    )[0] < 20


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        pytest.param({"stream": True}, "stream", "unknown_parameter", id="a stream"),
        pytest.param({"input": 7}, "input", "invalid_type", id="a number"),
        pytest.param(
            {"personality": "x" * 65},
            "personality",
            "string_above_max_length",
            id="a long personality",
        ),
        pytest.param(
            {"previous_response_id": "resp_x"},
            "previous_response_id",
            "previous_response_not_found",
            id="an unknown response",
        ),
        pytest.param(
            {"conversation": "conv_x"},
            "conversation",
            "conversation_not_found",
            id="an unknown conversation",
        ),
    ],
)
async def test_invalid_counts_are_refused(api: Api, body: JSON, param: str, code: str) -> None:
    answer = await api.call(
        "POST", "/responses/input_tokens", {"model": "m", "input": "Hi.", **body}
    )
    assert 400 <= answer.status < 405
    assert answer.error["param"] in (param, None)
    if answer.status == 400:
        assert answer.error["code"] == code


async def test_a_retry_of_a_count_is_not_taken_for_a_retry_of_a_create(
    api: Api, fake: FakeUpstream
) -> None:
    body = {"model": fake.script(reply("Hi.")), "input": "Hello.", "store": False}
    await api.call("POST", "/responses", body, headers={"x-stainless-retry-count": "0"})
    count_body = {"model": body["model"], "input": "Hello."}
    answer = await api.call(
        "POST", "/responses/input_tokens", count_body, headers={"x-stainless-retry-count": "1"}
    )
    assert answer.status == 200, answer.raw


# --- counts of upstreams and tokenizers ---

VOCABULARY: JSON = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "word": 1}, "unk_token": "[UNK]"},
}


@pytest.fixture(scope="module")
async def counting_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """One upstream for each way to count; a model's name begins with its upstream's."""
    folder = tmp_path_factory.mktemp("counting")
    vocabulary, broken = folder / "tokenizer.json", folder / "broken.json"
    vocabulary.write_text(json.dumps(VOCABULARY))
    broken.write_text("{")
    lines = [
        _upstream("vllm", fake, 'count = "vllm"'),
        _upstream("llama", fake, 'count = "llama.cpp"'),
        _upstream("native", fake, 'api = "responses"'),
        _upstream("local", fake, f'tokenizer = "{vocabulary}"'),
        _upstream("broken", fake, f'tokenizer = "{broken}"'),
        "[routes]",
        *(f'"{name}-*" = "{name}"' for name in ("vllm", "llama", "native", "local", "broken")),
    ]
    config_file = folder / "backburner.toml"
    config_file.write_text("\n".join(lines))
    settings = {"BACKBURNER_CONFIG": str(config_file), "BACKBURNER_UPSTREAM__BASE_URL": ""}
    async with stack(folder, database_server, suite_settings, fake, settings=settings) as own_stack:
        yield own_stack


def _upstream(name: str, fake: FakeUpstream, *more: str) -> str:
    return "\n".join([f"[upstreams.{name}]", f'base_url = "{fake.base_url}"', *more])


def _answer(body: JSON) -> Script:
    return [status(200, body)]


async def test_vllm_counts_the_messages_it_would_get(
    counting_stack: Stack, fake: FakeUpstream
) -> None:
    fake.count_answers["/tokenize"] = _answer(
        {"count": 77, "max_model_len": 8192, "tokens": [1] * 77}
    )
    body = {"model": "vllm-m", "input": "Hi.", "instructions": "Be brief.", "tools": TOOLS}
    assert await count_tokens(counting_stack.api(), **body) == (77, "upstream")
    sent = [request for request in fake.requests if request.path == "/tokenize"][-1].body
    assert [message["role"] for message in sent["messages"]] == ["system", "user"]
    assert sent["tools"][0]["function"]["name"] == "look"
    assert sent["model"] == "vllm-m"


async def test_llama_cpp_counts_the_text_that_its_template_makes(
    counting_stack: Stack, fake: FakeUpstream
) -> None:
    fake.count_answers["/apply-template"] = _answer({"prompt": "<|user|>Hi."})
    fake.count_answers["/tokenize"] = _answer({"tokens": list(range(5))})
    assert await count_tokens(counting_stack.api(), model="llama-m", input="Hi.") == (5, "upstream")
    assert [request for request in fake.requests if request.path == "/tokenize"][-1].body[
        "content"
    ] == "<|user|>Hi."


async def test_a_native_upstream_counts_itself(counting_stack: Stack, fake: FakeUpstream) -> None:
    fake.count_answers["/v1/responses/input_tokens"] = _answer(
        {"object": "response.input_tokens", "input_tokens": 12}
    )
    assert await count_tokens(counting_stack.api(), model="native-m", input="Hi.") == (
        12,
        "upstream",
    )
    sent = [request for request in fake.requests if request.path.endswith("/input_tokens")][-1].body
    assert sent["model"] == "native-m"
    assert "stream" not in sent


async def test_an_upstream_that_cannot_count_leaves_an_estimate(
    counting_stack: Stack, fake: FakeUpstream
) -> None:
    bad_answers: list[Script] = [
        [status(500)],
        [status(200, b"no json")],
        _answer({"count": "many"}),
        _answer({"count": -1}),
        _answer({}),
    ]
    for script in bad_answers:
        fake.count_answers["/tokenize"] = script
        assert (await count_tokens(counting_stack.api(), model="vllm-m", input="Hi."))[
            1
        ] == "estimate"
    del fake.count_answers["/tokenize"]
    assert (await count_tokens(counting_stack.api(), model="vllm-m", input="Hi."))[1] == "estimate"


async def test_a_local_tokenizer_counts(counting_stack: Stack) -> None:
    single, counter = await count_tokens(counting_stack.api(), model="local-m", input="word")
    ten, _ = await count_tokens(counting_stack.api(), model="local-m", input="word " * 10)
    assert (ten - single, counter) == (9, "tokenizer")


async def test_an_unreadable_tokenizer_leaves_an_estimate(counting_stack: Stack) -> None:
    assert (await count_tokens(counting_stack.api(), model="broken-m", input="Hi."))[
        1
    ] == "estimate"


async def test_without_a_model_and_a_default_route_a_count_is_refused(
    counting_stack: Stack,
) -> None:
    answer = await counting_stack.api().call("POST", "/responses/input_tokens", {"input": "Hi."})
    assert (answer.status, answer.error["param"], answer.error["code"]) == (
        400,
        "model",
        "missing_required_parameter",
    )
