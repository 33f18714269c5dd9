"""Vendors' JSON in, strict chunks out; unreadable payloads fail."""

import json
import random
from typing import Any

import pytest

from models.errors import UpstreamFailed
from models.wire.token_counts import TokenCounts
from tests.support.api import JSON
from tests.support.chat_turns import delta, finish
from worker.translation.upstream_events import CallDelta, ChatChunk
from worker.upstream.chat_chunks import parse_chunk


def parse(body: Any) -> ChatChunk:
    return parse_chunk(json.dumps(body).encode())


NOTHING = [
    pytest.param({"choices": []}, id="empty choices (Azure's first chunk)"),
    pytest.param({"choices": None}, id="null choices"),
    pytest.param({}, id="no choices"),
    pytest.param({"choices": [{}]}, id="an empty choice"),
    pytest.param({"choices": [{"delta": None}]}, id="a null delta"),
    pytest.param(delta(content=None, error=None), id="a null error in the delta"),
    pytest.param(delta(content="", error=""), id="an empty error in the delta"),
    pytest.param(
        delta(role="assistant", content=None, refusal=None, tool_calls=None, function_call=None),
        id="nulls everywhere",
    ),
    pytest.param(
        delta(content="", tool_calls=[], annotations=[], reasoning_details=[]),
        id="empty everywhere",
    ),
    pytest.param(
        delta(content={"unheard": 7}, tool_calls=7, logprobs=7), id="values of unheard-of types"
    ),
    pytest.param(
        {"choices": "none", "usage": "none", "x_groq": 1, "model": None},
        id="unheard-of types around it",
    ),
    pytest.param(
        {"choices": [{"index": 1, "delta": {"content": "second"}}]},
        id="another choice than the first",
    ),
    pytest.param(
        {"choices": [{"delta": {"content": None}, "logprobs": {"content": None}}], "error": None},
        id="null log probabilities and error",
    ),
]


@pytest.mark.parametrize("body", NOTHING)
def test_chunks_without_content_are_empty(body: JSON) -> None:
    assert parse(body) == ChatChunk()


def test_only_the_first_choice_counts() -> None:
    body = {
        "choices": [
            {"index": 1, "delta": {"content": "b"}},
            {"index": 0, "delta": {"content": "a"}},
        ]
    }
    assert parse(body).content == "a"


def test_all_fields_of_a_chunk_are_read() -> None:
    piece = {
        "index": 0,
        "id": "call_a",
        "type": "function",
        "function": {"name": "f", "arguments": "{}"},
    }
    body = {
        **finish("tool_calls", content="Hi", refusal="no", reasoning="hm", tool_calls=[piece]),
        "model": "m",
        "service_tier": "flex",
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    }
    expected = ChatChunk(
        content="Hi",
        refusal="no",
        reasoning="hm",
        calls=(CallDelta(0, "call_a", "f", "{}"),),
        finish_reason="stop",
        usage=TokenCounts(1, 2, 3),
        model="m",
        service_tier="flex",
        finish_word="tool_calls",
    )
    assert parse(body) == expected
    # the same the long way round: one unheard-of type sends the whole chunk there
    assert parse({**body, "model": ["m"]}) == expected


def test_a_body_that_is_no_stream_is_one_chunk() -> None:
    calls = [
        {"id": "", "function": {"name": "f", "arguments": "{}"}},
        {"id": None, "function": {"name": "f", "arguments": {"a": 1}}},
    ]
    message = {"role": "assistant", "content": "Hi", "reasoning_content": "hm", "tool_calls": calls}
    body = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "length"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
    }
    assert parse(body) == ChatChunk(
        content="Hi",
        reasoning="hm",
        calls=(CallDelta(0, "", "f", "{}"), CallDelta(1, "", "f", '{"a":1}')),
        finish_reason="length",
        usage=TokenCounts(1, 2, 3),
        finish_word="length",
    )


def test_a_delta_wins_over_a_message_beside_it() -> None:
    assert (
        parse({"choices": [{"delta": {"content": "b"}, "message": {"content": "ab"}}]}).content
        == "b"
    )


UNSTORABLE = [
    pytest.param(b'"a\\u0000b"', "a\ufffdb", id="U+0000"),
    pytest.param(b'"a\\\\u0000b"', "a\\u0000b", id="the words of U+0000 are not U+0000"),
    pytest.param(b'"a\\ud800b"', "a\ufffdb", id="a lone high surrogate"),
    pytest.param(b'"a\\udfff"', "a\ufffd", id="a lone low surrogate"),
    pytest.param(b'"a\\ud83e\\udd14b"', "a🤔b", id="a pair is a character"),
    pytest.param(b'"a\xffb"', "a\ufffdb", id="a byte that is no UTF-8"),
    pytest.param(b'"a\xed\xa0\x80b"', "a\ufffdb", id="a surrogate in UTF-8"),
    pytest.param(b'"a\x00b"', "a\ufffdb", id="a raw NUL"),
    pytest.param(b'"a\tb"', "a\tb", id="a raw control character"),
    pytest.param(b"12", "12", id="a number"),
    pytest.param(b"true", "", id="a truth value"),
]


@pytest.mark.parametrize(("text", "content"), UNSTORABLE)
def test_text_that_cannot_be_stored_is_replaced(text: bytes, content: str) -> None:
    assert parse_chunk(b'{"choices":[{"delta":{"content":' + text + b"}}]}").content == content


def test_unstorable_keys_and_depths_are_cleaned_too() -> None:
    data = (
        b'{"choices":[{"delta":{"tool_calls":[{"index":0,'
        b'"function":{"name":"f\\u0000","arguments":{"\\ud800":["\\u0000"]}}}]}}]}'
    )
    assert parse_chunk(data).calls == (CallDelta(0, "", "f\ufffd", '{"\ufffd":["\ufffd"]}'),)


UNREADABLE = [
    pytest.param(b"", id="nothing"),
    pytest.param(b'{"choices":[', id="cut off"),
    pytest.param(b'"text', id="half of a string"),
    pytest.param(b"[]", id="an empty list"),
    pytest.param(b"null", id="null"),
    pytest.param(b"[" * 200_000, id="deep and cut off"),
    pytest.param(b'{"x":' * 200_000 + b"1" + b"}" * 200_000, id="deep and whole"),
    pytest.param(b'{"a":' + b"9" * 5000 + b',"choices":3}', id="a number without end"),
]


@pytest.mark.parametrize("data", UNREADABLE)
def test_unreadable_payloads_fail_the_turn(data: bytes) -> None:
    with pytest.raises(UpstreamFailed) as caught:
        parse_chunk(data)
    assert (caught.value.reason, caught.value.code, caught.value.status) == (
        "upstream_garbage",
        "server_error",
        502,
    )


ERRORS = [
    pytest.param(
        {"error": {"message": "boom", "code": 500}}, "server_error", 502, id="OpenRouter, 500"
    ),
    pytest.param({"error": {"message": "boom", "code": 429}}, "rate_limit_exceeded", 429, id="429"),
    pytest.param(
        {"error": {"message": "boom", "code": "429"}},
        "rate_limit_exceeded",
        429,
        id="429 as a string",
    ),
    pytest.param(
        {"error": {"message": "boom", "type": "rate_limit_error"}},
        "rate_limit_exceeded",
        429,
        id="a type without a status",
    ),
    pytest.param(
        {"error": {"message": "boom", "code": 400, "type": "BadRequestError"}},
        "invalid_prompt",
        400,
        id="vLLM, 400",
    ),
    pytest.param(
        {"error": {"message": "boom", "code": "invalid_image_url"}},
        "invalid_image_url",
        400,
        id="a code the SDK knows",
    ),
    pytest.param(
        {"error": {"message": "boom", "code": "some_vendor_word"}},
        "server_error",
        502,
        id="a code it does not know",
    ),
    pytest.param({"error": "boom"}, "server_error", 502, id="a string"),
    pytest.param(
        {"error": {"detail": "boom"}}, "server_error", 502, id="detail instead of message"
    ),
    pytest.param(
        {"object": "error", "message": "boom", "code": 400},
        "invalid_prompt",
        400,
        id="vLLM's old shape",
    ),
    pytest.param(
        {
            "choices": [
                {
                    "delta": {"content": ""},
                    "finish_reason": "error",
                    "error": {"code": 502, "message": "boom"},
                }
            ]
        },
        "server_error",
        502,
        id="inside the choice",
    ),
    pytest.param(
        {"choices": [{"delta": {"content": "", "error": {"code": 429, "message": "boom"}}}]},
        "rate_limit_exceeded",
        429,
        id="inside the delta",
    ),
    pytest.param(
        {
            "choices": [
                {
                    "delta": {},
                    "finish_reason": {"type": "abort", "message": "boom", "status_code": 400},
                }
            ]
        },
        "invalid_prompt",
        400,
        id="SGLang, as the end",
    ),
    pytest.param(
        [{"error": {"code": 429, "message": "boom", "status": "RESOURCE_EXHAUSTED"}}],
        "rate_limit_exceeded",
        429,
        id="Gemini's list",
    ),
    pytest.param(
        {"choices": [], "error": {"message": "boom\0", "code": 503}},
        "server_error",
        502,
        id="an unstorable message",
    ),
]


@pytest.mark.parametrize(("body", "code", "status"), ERRORS)
def test_an_error_under_http_200_fails_the_turn(body: Any, code: str, status: int) -> None:
    with pytest.raises(UpstreamFailed) as caught:
        parse(body)
    assert (caught.value.code, caught.value.status, caught.value.reason) == (
        code,
        status,
        "upstream_error",
    )
    assert "boom" in caught.value.message
    assert "\0" not in caught.value.message


def test_an_overflow_under_http_200_is_recognised() -> None:
    with pytest.raises(UpstreamFailed) as caught:
        parse({"error": {"message": "boom", "code": "context_length_exceeded"}})
    assert (caught.value.reason, caught.value.code, caught.value.status) == (
        "context_length_exceeded",
        "context_length_exceeded",
        400,
    )


def test_the_upstreams_message_about_our_credential_is_not_shown() -> None:
    with pytest.raises(UpstreamFailed) as caught:
        parse({"error": {"message": "Incorrect API key provided: sk-secret", "code": 401}})
    assert "secret" not in caught.value.message


LOGPROBS = [
    pytest.param(
        b'{"token":"a","logprob":-0.5,"bytes":[97],"top_logprobs":[]}', -0.5, [97], id="in full"
    ),
    pytest.param(b'{"token":"a","logprob":0,"bytes":null}', 0, [], id="null bytes, no top"),
    pytest.param(b'{"token":"a","logprob":-Infinity}', -9999.0, [], id="minus infinity"),
    pytest.param(b'{"token":"a","logprob":NaN}', -9999.0, [], id="not a number"),
    pytest.param(b'{"token":"a","logprob":-1e999}', -9999.0, [], id="beyond a float"),
    pytest.param(b'{"token":"a","logprob":null}', -9999.0, [], id="null"),
    pytest.param(
        b'{"token":"a","logprob":-1,"bytes":[97,256]}', -1.0, [], id="bytes that are none"
    ),
]


@pytest.mark.parametrize(("score", "logprob", "octets"), LOGPROBS)
def test_log_probabilities_become_strict(score: bytes, logprob: float, octets: list[int]) -> None:
    [flat] = parse_chunk(
        b'{"choices":[{"delta":{"content":"a"},"logprobs":{"content":[' + score + b"]}}]}"
    ).logprobs
    assert flat == {"token": "a", "logprob": logprob, "bytes": octets, "top_logprobs": []}
    assert type(flat["logprob"]) is float


CITATION = {"url": "https://x", "title": "X", "start_index": 1, "end_index": 2}
ANNOTATIONS = [
    pytest.param(
        {"type": "url_citation", "url_citation": {**CITATION, "content": "more"}},
        [{"type": "url_citation", **CITATION}],
        id="nested",
    ),
    pytest.param(
        {"type": "url_citation", "url_citation": {"url": "https://x"}},
        [
            {
                "type": "url_citation",
                "url": "https://x",
                "title": "",
                "start_index": 0,
                "end_index": 0,
            }
        ],
        id="the address alone",
    ),
    pytest.param({"type": "url_citation", "url_citation": {"title": "X"}}, [], id="no address"),
    pytest.param({"type": "unheard_of"}, [], id="another kind"),
    pytest.param("words", [], id="no object"),
]


@pytest.mark.parametrize(("annotation", "flat"), ANNOTATIONS)
def test_annotations_become_flat(annotation: Any, flat: list[JSON]) -> None:
    assert parse(delta(content="a", annotations=[annotation])).annotations == flat


def test_counts_stay_exact_for_every_json_reader() -> None:
    usage = parse({"usage": {"prompt_tokens": 10**30, "completion_tokens": 2**53}}).usage
    assert usage == TokenCounts(None, 2**53)


def test_any_damage_gives_a_chunk_or_a_failure_of_the_upstream() -> None:
    """Bytes flipped, dropped and doubled: the result is UpstreamFailed or a chunk whose
    text can be stored."""
    chance = random.Random(5)
    whole = json.dumps(
        {
            **finish(
                "stop",
                content="Hi 🤔",
                tool_calls=[{"index": 0, "function": {"name": "f", "arguments": "{}"}}],
            ),
            "usage": {"prompt_tokens": 1},
        }
    ).encode()
    for _ in range(5000):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(damaged))
            damaged[at : at + chance.randint(0, 2)] = chance.choice(
                [b"", b"\\u0000", b"\\ud800", b'"', b"[", b"1", bytes([chance.randrange(256)])]
            )
        for text in _texts(bytes(damaged)):
            assert "\0" not in text.encode().decode()


def _texts(data: bytes) -> list[str]:
    try:
        chunk = parse_chunk(data)
    except UpstreamFailed as failure:
        return [failure.message]
    return [chunk.content, chunk.reasoning, *(call.name + call.arguments for call in chunk.calls)]


MARKED = [
    pytest.param(
        {"extra_content": {"google": {"thought_signature": "AbC="}}},
        {},
        id="Gemini",
    ),
    pytest.param({"thought_signature": "x", "provider_specific_fields": {}}, {}, id="a gateway"),
    pytest.param({}, {"thought_signature": "x"}, id="on the function (Ollama)"),
    pytest.param(
        {"n": 2**70, "list": [1.5, None, {"deep": "\u00e9\U0001f600"}]}, {}, id="any JSON"
    ),
    pytest.param({"fields": {"id": "x"}, "function_fields": 1}, {"fields": 2}, id="odd names"),
]


@pytest.mark.parametrize(("of_call", "of_function"), MARKED)
def test_unknown_fields_of_a_call_are_kept(of_call: JSON, of_function: JSON) -> None:
    function = {"name": "look", "arguments": "{}", **of_function}
    entry = {"index": 0, "id": "a", "type": "function", "function": function, **of_call}
    expected = (CallDelta(0, "a", "look", "{}", of_call, of_function),)
    assert parse(delta(tool_calls=[entry])).calls == expected
    whole = {"choices": [{"message": {"tool_calls": [entry]}}]}
    assert parse(whole).calls == expected


def test_unknown_fields_of_a_call_may_come_alone_and_null_ones_are_nothing() -> None:
    alone = delta(tool_calls=[{"index": 1, "extra_content": {"x": 1}, "extra": None}])
    assert parse(alone).calls == (CallDelta(1, fields={"extra_content": {"x": 1}}),)
    assert parse(delta(tool_calls=[{"index": 1, "extra": None}])).calls == ()
    old = delta(function_call={"name": "look", "arguments": "{}", "signature": "s"})
    assert parse(old).calls == (CallDelta(0, "", "look", "{}", {}, {"signature": "s"}),)
