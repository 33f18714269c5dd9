"""Parameters and history in, one body for Anthropic's Messages API out."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

from models.config.upstream import UpstreamSettings
from models.errors import UpstreamFailed
from tests.support.messages_script import faults_of
from tests.unit.translation.test_chat_request import (
    CUSTOM,
    FUNCTION,
    IMAGE,
    SCHEMA,
    assistant_texts,
    call,
    output,
    user,
)
from tests.unit.translation.test_reasoning_kept import thought
from worker.translation.messages.request import messages_request
from worker.translation.returned_content import ReturnedCalls
from worker.translation.tool_catalog import build_tool_catalog
from worker.upstream.client import dialect_of
from worker.upstream.request_body import encode_body

Json = dict[str, Any]
THOUGHT = {"type": "thinking", "thinking": "I look.", "signature": "sig"}
REDACTED = {"type": "redacted_thinking", "data": "xyz"}


def body(
    parameters: Json | None = None, history: list[Json] | None = None, **settings: Any
) -> Json:
    parameters, history = parameters or {}, history or []
    made = messages_request(
        model="m",
        parameters=parameters,
        history=history,
        tool_catalog=build_tool_catalog(parameters, history),
        dialect=dialect_of(UpstreamSettings(**{"api": "messages", **settings})),
        returned_calls=ReturnedCalls("it"),
    )
    assert faults_of(made) == []
    return made


def signed(*details: Json) -> Json:
    return thought(sealed={"text": "", "details": list(details)})


def said(text: str) -> Json:
    return {"type": "text", "text": text}


def used(call_id: str, **arguments: Any) -> Json:
    return {"type": "tool_use", "id": call_id, "name": "look", "input": arguments}


def result(call_id: str, content: Any = "seen") -> Json:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content}


def test_the_smallest_request() -> None:
    assert body({"instructions": "Be brief."}, [user("hi")]) == {
        "model": "m",
        "max_tokens": 32_000,
        "system": [said("Be brief.")],
        "messages": [{"role": "user", "content": [said("hi")]}],
        "stream": True,
    }


def test_parallel_calls_have_their_results_in_one_message_before_any_text() -> None:
    history = [
        user("go"),
        signed(THOUGHT, REDACTED),
        assistant_texts("Let me see."),
        call("toolu_1", '{"at": 1}'),
        call("toolu_2"),
        output("toolu_2", ""),
        output("toolu_1"),
        user("and now?"),
    ]
    assert body({"tools": [FUNCTION]}, history)["messages"] == [
        {"role": "user", "content": [said("go")]},
        {
            "role": "assistant",
            "content": [
                THOUGHT,
                REDACTED,
                said("Let me see."),
                used("toolu_1", at=1),
                used("toolu_2"),
            ],
        },
        {
            "role": "user",
            "content": [result("toolu_1"), result("toolu_2", "(empty)"), said("and now?")],
        },
    ]


def test_thinking_stays_between_what_it_was_between() -> None:
    second = {**THOUGHT, "signature": "second"}
    history = [
        user("go"),
        signed(THOUGHT),
        assistant_texts("One."),
        signed(second),
        assistant_texts("Two."),
        signed(REDACTED),
        call("c"),
        output("c"),
    ]
    blocks = body({"tools": [FUNCTION]}, history)["messages"][1]["content"]
    assert blocks == [THOUGHT, said("One."), second, said("Two."), REDACTED, used("c")]


def test_thinking_of_other_upstreams_and_of_other_apis_is_left_out() -> None:
    foreign = thought("Plain.", sealed={"text": "Plain.", "details": [{"type": "reasoning.text"}]})
    history = [user("go"), foreign, thought("Raw."), call("c"), output("c")]
    parameters = {"tools": [FUNCTION], "reasoning": {"effort": "high"}}
    sent = body(parameters, history, effort_field="budget")
    assert sent["messages"][1]["content"] == [used("c")]
    assert "thinking" not in sent, "the API wants thinking before the call"
    assert body(parameters, history)["thinking"] == {"type": "adaptive"}


def test_roles_alternate_and_users_are_at_both_ends() -> None:
    history = [
        assistant_texts("Hello. "),
        user("a"),
        user("b"),
        user("Only French.", role="developer"),
        assistant_texts("Oui. "),
    ]
    sent = body({}, history)
    assert [message["role"] for message in sent["messages"]] == [
        *("user", "assistant", "user", "assistant", "user")
    ]
    assert sent["messages"][2]["content"] == [
        said("a"),
        said("b"),
        said("<system-reminder>\nOnly French.\n</system-reminder>"),
    ]
    assert "system" not in sent
    joined = body({}, history, single_system_message=True)
    assert joined["system"] == [said("Only French.")]
    assert [message["role"] for message in body({"instructions": "Go."})["messages"]] == ["user"]


def test_tools_and_the_choice_of_one() -> None:
    plain: Json = FUNCTION["parameters"]  # type: ignore[assignment] # of a dict of objects
    schema = {**plain, "anyOf": [{"required": ["at"]}]}
    tools = [{**FUNCTION, "parameters": schema, "strict": True}, CUSTOM]
    sent = body({"tools": tools, "parallel_tool_calls": False}, [user("hi")])
    assert sent["tools"][0] == {
        "name": "look",
        "description": "looks",
        "input_schema": plain,
        "strict": True,
    }
    assert sent["tools"][1]["input_schema"]["required"] == ["input"]
    assert sent["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    choices: list[tuple[Any, Json | None]] = [
        ("auto", None),
        ("required", {"type": "any"}),
        ("none", {"type": "none"}),
        ({"type": "function", "name": "look"}, {"type": "tool", "name": "look"}),
    ]
    for choice, expected in choices:
        asked = {"tools": tools, "tool_choice": choice, "reasoning": {"effort": "high"}}
        sent = body(asked, [user("hi")])
        assert sent.get("tool_choice") == expected
        assert ("thinking" in sent) == (expected is None or expected["type"] == "none")
    assert "strict" not in body({"tools": tools}, [user("hi")], strict_tools="none")["tools"][0]


ARGUMENTS: dict[str, Json] = {
    '{"at": 1e999}': {"at": "1e999"},
    '{"at": 123456789012345678901234567890}': {"at": 123456789012345678901234567890},
    '{"at": NaN}': {"invalid_arguments": '{"at": NaN}'},
    "half {": {"invalid_arguments": "half {"},
}


@pytest.mark.parametrize(
    "arguments", [*ARGUMENTS, *('{"a":' * n + "1" + "}" * n for n in (501, 990))]
)
def test_arguments_of_any_kind_can_be_sent(arguments: str) -> None:
    sent = json.loads(bytes(encode_body(body({}, [user("go"), call("c", arguments), output("c")]))))
    expected = ARGUMENTS.get(arguments, {"invalid_arguments": arguments})
    assert sent["messages"][1]["content"] == [used("c", **expected)]


def test_calls_of_a_request_without_tools_bring_their_functions() -> None:
    sent = body({}, [user("go"), call("c"), output("c")])
    assert [tool["name"] for tool in sent["tools"]] == ["look"]
    assert sent["tool_choice"] == {"type": "none"}


THINKING: list[tuple[Json, Json, Any, Any]] = [
    ({}, {}, None, None),
    ({"effort": "minimal"}, {}, {"type": "adaptive"}, {"effort": "low"}),
    (
        {"effort": "xhigh", "summary": "auto"},
        {},
        {"type": "adaptive", "display": "summarized"},
        {"effort": "xhigh"},
    ),
    ({"effort": "none"}, {}, {"type": "disabled"}, None),
    (
        {"effort": "medium"},
        {"effort_field": "budget"},
        {"type": "enabled", "budget_tokens": 16_000},
        None,
    ),
    ({"effort": "high"}, {"effort_field": "budget", "max_tokens": 900}, None, None),
    ({"effort": "high"}, {"effort_field": "thinking"}, {"type": "enabled"}, None),
    ({"effort": "high"}, {"effort_field": "none"}, None, None),
]


@pytest.mark.parametrize(("reasoning", "settings", "thinking", "config"), THINKING)
def test_effort_is_sent_as_the_setting_says(
    reasoning: Json, settings: Json, thinking: Any, config: Any
) -> None:
    sent = body(
        {"reasoning": reasoning, "temperature": 1.5, "top_p": 0.5}, [user("hi")], **settings
    )
    assert (sent.get("thinking"), sent.get("output_config")) == (thinking, config)
    is_on = thinking is not None and thinking["type"] != "disabled"
    assert sent.get("temperature") == (None if is_on else 1.0)
    assert "top_p" not in sent


def test_strict_schemas_have_a_field_and_other_formats_are_instructions() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}
    strict = body(
        {"text": {"format": {**SCHEMA, "schema": schema}}}, [user("hi")], preset="anthropic"
    )
    assert strict["output_config"]["format"] == {
        "type": "json_schema",
        "schema": {"type": "object", "properties": {"n": {"type": "integer"}}},
    }
    assert "system" not in strict
    for wanted in ({**SCHEMA, "strict": False}, {"type": "json_object"}):
        told = body({"text": {"format": wanted}}, [user("hi")])
        assert "output_config" not in told
        assert "JSON" in told["system"][0]["text"]
    assert (
        "JSON"
        in body({"text": {"format": SCHEMA}}, [user("hi")], structured_output="prompt")["system"][
            0
        ]["text"]
    )


def test_marks_for_the_cache() -> None:
    history = [user("a"), assistant_texts("b"), user("c")]
    mark = {"cache_control": {"type": "ephemeral"}}
    sent = body({"instructions": "I", "prompt_cache_key": "k"}, history)
    assert sent["system"] == [{**said("I"), **mark}]
    assert [message["content"] for message in sent["messages"]] == [
        [{**said("a"), **mark}],
        [said("b")],
        [{**said("c"), **mark}],
    ]
    assert "cache_control" not in json.dumps(body({"instructions": "I"}, history))
    long = {"prompt_cache_retention": "24h", "tools": [FUNCTION]}
    sent = body(long, [user("a")], cache_prompts=True)
    assert sent["tools"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


class Stored:
    """A file as a worker has it."""

    def __init__(self, media_type: str, content: bytes) -> None:
        self.media_type, self.content = media_type, content

    def __len__(self) -> int:
        return len(self.content)

    def data_url_pieces(self) -> Iterator[bytes]:
        yield f"data:{self.media_type};base64,".encode()
        yield base64.b64encode(self.content)


def test_images_and_files() -> None:
    pdf = base64.b64encode(b"%PDF").decode()
    parts: list[Json] = [
        IMAGE,
        {"type": "input_image", "image_url": "https://x.example/a.png", "detail": "auto"},
        {"type": "input_image", "image_url": Stored("image/png", b"pixels"), "detail": "auto"},
        {
            "type": "input_file",
            "filename": "a.pdf",
            "file_data": f"data:application/pdf;base64,{pdf}",
        },
        {"type": "input_file", "filename": "a.txt", "file_data": Stored("text/plain", b'"hi"\n')},
    ]
    sent = json.loads(bytes(encode_body(body({}, [user("look", *parts)]))))
    sources = [block.get("source") for block in sent["messages"][0]["content"]]
    assert sources == [
        None,
        {"type": "base64", "media_type": "image/png", "data": "AA=="},
        {"type": "url", "url": "https://x.example/a.png"},
        {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"pixels").decode()},
        {"type": "base64", "media_type": "application/pdf", "data": pdf},
        {"type": "text", "media_type": "text/plain", "data": '"hi"\n'},
    ]
    answered = body({}, [user("go"), call("c"), output("c", [IMAGE])])
    assert answered["messages"][2]["content"][0]["content"][0]["type"] == "image"


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {"data": "AA==", "format": "mp3"}},
        {
            "type": "input_file",
            "filename": "a.zip",
            "file_data": "data:application/zip;base64,AA==",
        },
    ],
)
def test_what_the_api_has_no_block_for_is_refused(part: Json) -> None:
    with pytest.raises(UpstreamFailed, match="takes no"):
        body({}, [user("look", part)])


def test_fields_of_settings() -> None:
    parameters = {"temperature": 0.5, "top_k": 3, "stop_sequences": ["x"], "max_output_tokens": 9}
    sent = body(parameters, [user("hi")], preset="anthropic", omit=["temperature"])
    assert (sent["top_k"], sent["stop_sequences"], sent["max_tokens"]) == (3, ["x"], 9)
    assert "temperature" not in sent
    with pytest.raises(ValueError, match="does not go with"):
        UpstreamSettings(api="messages", effort_field="reasoning_effort")
    with pytest.raises(ValueError, match="does not go with"):
        UpstreamSettings(effort_field="budget")
