"""`POST /v1/responses/input_tokens`: who counts, and what is counted."""

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


async def counted(api: Api, **body: Any) -> tuple[int, str]:
    """Tokens, and who counted them."""
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
    counted = answer.parse()
    assert counted.object == "response.input_tokens"
    assert 4 <= counted.input_tokens <= 16


async def test_everything_that_the_model_is_told_counts(api: Api) -> None:
    bare, _ = await counted(api, model="m", input="Hi.")
    message = {"role": "user", "content": [{"type": "input_text", "text": "Hi."}, IMAGE]}
    more: dict[str, JSON] = {
        "words": {"input": "Hi. " * 400},
        "instructions": {"instructions": "Be brief. " * 100},
        "tools": {"tools": TOOLS},
        "a form": {
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
    for what, body in more.items():
        tokens, _ = await counted(api, **{"model": "m", "input": "Hi.", **body})
        assert tokens > bare + 80, what
    seen, _ = await counted(api, model="m", input=[message])
    assert bare + 700 < seen < bare + 900, "an image costs what it costs, however many bytes it has"


async def test_the_history_counts_and_nothing_of_it_is_changed(
    api: Api, fake: FakeUpstream
) -> None:
    model = fake.script(reply("word " * 400))
    first = await api.create(model, input="word " * 400)
    alone, _ = await counted(api, model=model, input="And now?")
    chained, _ = await counted(api, model=model, input="And now?", previous_response_id=first["id"])
    assert chained > alone + 800
    named = (
        await api.call(
            "POST", "/conversations", {"items": [{"role": "user", "content": "word " * 400}]}
        )
    ).body["id"]
    talked, _ = await counted(api, model=model, input="And now?", conversation=named)
    assert talked > alone + 400
    page = (await api.call("GET", f"/conversations/{named}/items")).body
    assert len(page["data"]) == 1
    assert len(fake.requests_for(model)) == 1, "the model is not asked"


async def test_a_call_and_its_output_count_together(api: Api, fake: FakeUpstream) -> None:
    looks: Script = [call(0, "call_a", "look", "{}"), finish("tool_calls"), usage(), done()]
    first = await api.create(fake.script(looks), tools=TOOLS)
    output = [{"type": "function_call_output", "call_id": "call_a", "output": "word " * 400}]
    tokens, _ = await counted(api, model="m", input=output, previous_response_id=first["id"])
    assert tokens > 400


async def test_all_parameters_are_optional(api: Api) -> None:
    assert (await counted(api))[0] < 20
    assert (
        await counted(
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
async def test_requests_that_make_no_sense_are_refused(
    api: Api, body: JSON, param: str, code: str
) -> None:
    answer = await api.call(
        "POST", "/responses/input_tokens", {"model": "m", "input": "Hi.", **body}
    )
    assert 400 <= answer.status < 405
    assert answer.error["param"] in (param, None)
    if answer.status == 400:
        assert answer.error["code"] == code


async def test_a_retry_of_a_count_is_never_taken_for_a_retry_of_a_create(
    api: Api, fake: FakeUpstream
) -> None:
    body = {"model": fake.script(reply("Hi.")), "input": "Hello.", "store": False}
    await api.call("POST", "/responses", body, headers={"x-stainless-retry-count": "0"})
    asked = {"model": body["model"], "input": "Hello."}
    answer = await api.call(
        "POST", "/responses/input_tokens", asked, headers={"x-stainless-retry-count": "1"}
    )
    assert answer.status == 200, answer.raw


# --- others count ---

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
async def counting(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment with an upstream for each way to count; a model's name begins with its upstream's."""
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
    configured = folder / "backburner.toml"
    configured.write_text("\n".join(lines))
    settings = {"BACKBURNER_CONFIG": str(configured), "BACKBURNER_UPSTREAM__BASE_URL": ""}
    async with stack(folder, database_server, suite_settings, fake, settings=settings) as one:
        yield one


def _upstream(name: str, fake: FakeUpstream, *more: str) -> str:
    return "\n".join([f"[upstreams.{name}]", f'base_url = "{fake.base_url}"', *more])


def _answer(body: JSON) -> Script:
    return [status(200, body)]


async def test_vllm_is_asked_with_the_messages_it_would_be_sent(
    counting: Stack, fake: FakeUpstream
) -> None:
    fake.count_answers["/tokenize"] = _answer(
        {"count": 77, "max_model_len": 8192, "tokens": [1] * 77}
    )
    body = {"model": "vllm-m", "input": "Hi.", "instructions": "Be brief.", "tools": TOOLS}
    assert await counted(counting.api(), **body) == (77, "upstream")
    asked = [request for request in fake.requests if request.path == "/tokenize"][-1].body
    assert [message["role"] for message in asked["messages"]] == ["system", "user"]
    assert asked["tools"][0]["function"]["name"] == "look"
    assert asked["model"] == "vllm-m"


async def test_llama_cpp_counts_what_its_template_makes_of_it(
    counting: Stack, fake: FakeUpstream
) -> None:
    fake.count_answers["/apply-template"] = _answer({"prompt": "<|user|>Hi."})
    fake.count_answers["/tokenize"] = _answer({"tokens": list(range(5))})
    assert await counted(counting.api(), model="llama-m", input="Hi.") == (5, "upstream")
    assert [request for request in fake.requests if request.path == "/tokenize"][-1].body[
        "content"
    ] == "<|user|>Hi."


async def test_a_native_upstream_is_asked_for_its_own_count(
    counting: Stack, fake: FakeUpstream
) -> None:
    fake.count_answers["/v1/responses/input_tokens"] = _answer(
        {"object": "response.input_tokens", "input_tokens": 12}
    )
    assert await counted(counting.api(), model="native-m", input="Hi.") == (12, "upstream")
    asked = [request for request in fake.requests if request.path.endswith("/input_tokens")][
        -1
    ].body
    assert asked["model"] == "native-m"
    assert "stream" not in asked


async def test_where_the_upstream_does_not_count_there_is_still_an_answer(
    counting: Stack, fake: FakeUpstream
) -> None:
    wrong: list[Script] = [
        [status(500)],
        [status(200, b"no json")],
        _answer({"count": "many"}),
        _answer({"count": -1}),
        _answer({}),
    ]
    for script in wrong:
        fake.count_answers["/tokenize"] = script
        assert (await counted(counting.api(), model="vllm-m", input="Hi."))[1] == "estimate"
    del fake.count_answers["/tokenize"]
    assert (await counted(counting.api(), model="vllm-m", input="Hi."))[1] == "estimate"


async def test_a_tokenizer_that_is_present_counts_its_own_tokens(counting: Stack) -> None:
    one, who = await counted(counting.api(), model="local-m", input="word")
    ten, _ = await counted(counting.api(), model="local-m", input="word " * 10)
    assert (ten - one, who) == (9, "tokenizer")


async def test_a_tokenizer_that_cannot_be_read_leaves_an_estimate(counting: Stack) -> None:
    assert (await counted(counting.api(), model="broken-m", input="Hi."))[1] == "estimate"


async def test_without_a_model_only_who_serves_all_can_count(counting: Stack) -> None:
    answer = await counting.api().call("POST", "/responses/input_tokens", {"input": "Hi."})
    assert (answer.status, answer.error["param"], answer.error["code"]) == (
        400,
        "model",
        "missing_required_parameter",
    )
