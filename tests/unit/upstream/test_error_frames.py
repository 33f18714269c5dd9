"""Errors under HTTP 200, in the frames of many vendors, and payloads that are no error."""

import json
from typing import Any, NamedTuple

import pytest

from models.errors import UpstreamFailed
from worker.upstream.chat_chunks import parse_chunk
from worker.upstream.responses_events import parse_event
from worker.upstream.sse import SseSplitter


class Fault(NamedTuple):
    """What becomes of an error: the code of the response, the status for a foreground client,
    whether a background response waits, and words of the message."""

    code: str
    status: int
    waits: bool = False
    words: str = "boom"
    retry_after: int | None = None


LIMIT = Fault("rate_limit_exceeded", 429, waits=True)
QUOTA = Fault("insufficient_quota", 429)
CREDENTIAL = Fault("server_error", 502, words="The upstream refused this server's credential: boom")
REFUSED = Fault("invalid_prompt", 400)
OVERLOADED = Fault("server_error", 502, waits=True)
UNKNOWN = Fault("server_error", 502)
OVERFLOW = Fault("context_length_exceeded", 400)
NO_MODEL = Fault("invalid_prompt", 400, words="does not exist")


def minimax(code: int, message: str = "boom", **more: Any) -> dict[str, Any]:
    return {"id": "x", "base_resp": {"status_code": code, "status_msg": message}, **more}


FRAMES: list[tuple[str, Any, Fault]] = [
    # MiniMax
    ("minimax: rate", minimax(1002), LIMIT),
    ("minimax: rate, choices null", minimax(1002, choices=None, created=1, model="m"), LIMIT),
    ("minimax: beside choices", minimax(1039, choices=[{"delta": {"content": ""}}]), LIMIT),
    ("minimax: usage limit", minimax(2056), LIMIT),
    ("minimax: key", minimax(1004), CREDENTIAL),
    ("minimax: new key", minimax(2049), CREDENTIAL),
    ("minimax: balance", minimax(1008), QUOTA),
    ("minimax: input filter", minimax(1026), REFUSED),
    ("minimax: output filter", minimax(1027), REFUSED),
    ("minimax: bad request", minimax(2013), REFUSED),
    (
        "minimax: too long",
        minimax(2013, "invalid params, context window exceeds limit"),
        OVERFLOW._replace(words="window exceeds"),
    ),
    ("minimax: model", minimax(2013, "invalid params, unknown model 'x'"), NO_MODEL),
    ("minimax: timeout", minimax(1001), Fault("server_error", 408, waits=True)),
    ("minimax: internal", minimax(1000), OVERLOADED),
    ("minimax: a number as text", minimax("1002"), LIMIT),  # type: ignore[arg-type]
    # an object of another name
    ("bedrock: key", {"throttlingException": {"message": "boom"}}, LIMIT),
    (
        "tencent",
        {"Response": {"Error": {"Code": "LimitExceeded", "Message": "boom"}, "RequestId": "r"}},
        LIMIT,
    ),
    ("tencent: older", {"ErrorMsg": {"Msg": "boom", "Code": 4001}, "Note": "n"}, UNKNOWN),
    (
        "volcengine",
        {"ResponseMetadata": {"Error": {"Code": "InternalServiceError", "Message": "boom"}}},
        UNKNOWN,
    ),
    (
        "coze",
        {"id": "x", "status": "failed", "last_error": {"code": 4100, "msg": "boom"}},
        UNKNOWN,
    ),
    (
        "the Responses API",
        {
            "type": "response.failed",
            "response": {"error": {"code": "server_error", "message": "boom"}},
        },
        OVERLOADED,
    ),
    (
        "watsonx",
        {"errors": [{"code": "token_quota_reached", "message": "boom"}], "status_code": 402},
        QUOTA,
    ),
    (
        "iflytek: rate",
        {"code": 11202, "message": "AppIdQpsOverFlowError", "sid": "x"},
        LIMIT._replace(words="QpsOverFlow"),
    ),
    (
        "grpc",
        {"code": 8, "message": "resource exhausted", "details": []},
        LIMIT._replace(words="resource exhausted"),
    ),
    # an error object
    (
        "anthropic: overloaded",
        {"type": "error", "error": {"type": "overloaded_error", "message": "boom"}},
        OVERLOADED,
    ),
    (
        "anthropic: request",
        {"type": "error", "error": {"type": "invalid_request_error", "message": "boom"}},
        REFUSED,
    ),
    (
        "anthropic: too long",
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": "prompt is too long: 9 tokens > 8 maximum",
            },
        },
        OVERFLOW._replace(words="too long"),
    ),
    (
        "anthropic: key",
        {"type": "error", "error": {"type": "authentication_error", "message": "boom"}},
        CREDENTIAL,
    ),
    (
        "anthropic: rate",
        {"type": "error", "error": {"type": "rate_limit_error", "message": "boom"}},
        LIMIT,
    ),
    (
        "openrouter: choices empty",
        {"choices": [], "error": {"code": 502, "message": "boom"}},
        OVERLOADED,
    ),
    (
        "4xx beside server_error",
        {"error": {"type": "server_error", "code": 400, "message": "boom"}},
        REFUSED,
    ),
    (
        "422 beside server_error",
        {"error": {"code": "server_error", "status": 422, "message": "boom"}},
        Fault("invalid_prompt", 422),
    ),
    (
        "429 beside server_error",
        {"error": {"type": "server_error", "code": 429, "message": "boom"}},
        LIMIT,
    ),
    (
        "401 beside server_error",
        {"error": {"type": "server_error", "code": 401, "message": "boom"}},
        CREDENTIAL,
    ),
    (
        "409 beside server_error",
        {"error": {"type": "server_error", "code": 409, "message": "boom"}},
        REFUSED,
    ),
    ("402", {"error": {"code": 402, "message": "boom"}}, QUOTA),
    (
        "404 without a model",
        {"error": {"code": 404, "message": "boom"}},
        Fault("invalid_prompt", 404),
    ),
    (
        "5xx beside a request's code",
        {"error": {"type": "invalid_request_error", "code": 500, "message": "boom"}},
        OVERLOADED,
    ),
    (
        "openrouter: the provider's words",
        {
            "error": {
                "code": 400,
                "message": "no",
                "metadata": {
                    "raw": '{"error":{"message":"Its maximum context length is 9 tokens."}}'
                },
            }
        },
        OVERFLOW._replace(words="no: Its maximum"),
    ),
    ("outer status", {"status": 429, "error": {"message": "boom"}}, LIMIT),
    ("outer words", {"status_code": 503, "error": True, "message": "boom"}, OVERLOADED),
    ("nested", {"error": {"error": {"code": 429, "message": "boom"}}}, LIMIT),
    ("words and a name", {"error": "too_many_requests", "message": "boom"}, LIMIT),
    ("words and a code", {"error": "boom", "code": 429}, LIMIT),
    ("words", {"error": "boom"}, UNKNOWN),
    ("words of a limit", {"error": "Rate limit exceeded"}, LIMIT._replace(words="Rate limit")),
    (
        "words of a key",
        {"error": "Incorrect API key provided"},
        CREDENTIAL._replace(words="Incorrect API key"),
    ),
    ("zhipu: rate", {"error": {"code": "1302", "message": "boom"}}, LIMIT),
    ("zhipu: balance", {"error": {"code": "1113", "message": "boom"}}, QUOTA),
    ("zhipu: key", {"error": {"code": "1002", "message": "boom"}}, CREDENTIAL),
    ("zhipu: model", {"error": {"code": "1211", "message": "模型不存在"}}, NO_MODEL),
    (
        "google",
        [{"error": {"code": 400, "message": "boom", "status": "INVALID_ARGUMENT"}}],
        REFUSED,
    ),
    (
        "google: when",
        [
            {
                "error": {
                    "code": 429,
                    "message": "boom",
                    "status": "RESOURCE_EXHAUSTED",
                    "details": [
                        {
                            "@type": "type.googleapis.com/google.rpc.RetryInfo",
                            "retryDelay": "34.07s",
                        }
                    ],
                }
            }
        ],
        LIMIT._replace(retry_after=35),
    ),
    ("ollama", {"error": "model 'x' not found, try pulling it first"}, NO_MODEL),
    (
        "litellm: model",
        {
            "error": {
                "message": "/chat/completions: Invalid model name passed in model=x. Call",
                "type": "None",
                "param": "None",
                "code": "400",
            }
        },
        NO_MODEL,
    ),
    (
        "llama.cpp: image",
        {
            "error": {
                "code": 500,
                "message": "image input is not supported - hint: you may need the mmproj",
                "type": "server_error",
            }
        },
        REFUSED._replace(words="image input"),
    ),
    # other fields
    ("detail", {"detail": "boom"}, UNKNOWN),
    (
        "detail: limit",
        {"detail": "Too Many Requests", "retry_after": 7},
        LIMIT._replace(words="Too Many", retry_after=7),
    ),
    (
        "detail: fastapi",
        {"detail": [{"loc": ["body", "messages"], "msg": "boom", "type": "missing"}]},
        Fault("invalid_prompt", 422, words="body.messages: boom"),
    ),
    ("detail: object", {"detail": {"error": "boom", "code": 429}}, LIMIT),
    (
        "problem+json",
        {"type": "about:blank", "title": "no", "status": 503, "detail": "boom"},
        OVERLOADED,
    ),
    ("errors: words", {"errors": ["boom", "bang"]}, UNKNOWN._replace(words="boom; bang")),
    (
        "cloudflare",
        {"success": False, "errors": [{"code": 7003, "message": "boom"}], "result": None},
        UNKNOWN,
    ),
    (
        "cloudflare: model",
        {"success": False, "errors": [{"code": 5007, "message": "No such model @cf/x or task"}]},
        NO_MODEL,
    ),
    ("dashscope", {"code": "InvalidParameter", "message": "boom", "request_id": "r"}, REFUSED),
    (
        "dashscope: rate",
        {"code": "Throttling.RateQuota", "message": "boom", "request_id": "r"},
        LIMIT,
    ),
    ("dashscope: key", {"code": "InvalidApiKey", "message": "boom", "request_id": "r"}, CREDENTIAL),
    ("dashscope: debt", {"code": "Arrearage", "message": "boom", "request_id": "r"}, QUOTA),
    (
        "dashscope: too long",
        {"code": "InvalidParameter", "message": "Range of input length should be [1, 30720]"},
        OVERFLOW._replace(words="Range"),
    ),
    ("baidu: rate", {"error_code": 18, "error_msg": "boom", "id": "as-x"}, LIMIT),
    ("baidu: key", {"error_code": 110, "error_msg": "boom"}, CREDENTIAL),
    ("baidu: request", {"error_code": 336003, "error_msg": "boom"}, REFUSED),
    ("baidu: busy", {"error_code": 336100, "error_msg": "boom"}, OVERLOADED),
    (
        "error_type and error_message",
        {"choices": None, "error_type": "BadRequestError", "error_message": "boom"},
        REFUSED,
    ),
    ("success false", {"success": False, "msg": "boom"}, UNKNOWN),
    ("success false with a code", {"success": False, "code": 401, "message": "boom"}, CREDENTIAL),
    ("status error", {"status": "error", "message": "boom"}, UNKNOWN),
    ("status failed", {"status": "FAILED", "code": 429, "message": "boom"}, LIMIT),
    (
        "amazon",
        {"__type": "com.amazon.coral.service#ThrottlingException", "message": "boom"},
        LIMIT,
    ),
    ("amazon: request", {"__type": "ValidationException", "Message": "boom"}, REFUSED),
    ("amazon: key", {"__type": "UnrecognizedClientException", "message": "boom"}, CREDENTIAL),
    ("amazon: bare", {"message": "boom"}, UNKNOWN),
    ("a code of its own", {"code": 10013, "message": "boom", "sid": "s"}, UNKNOWN),
    (
        "vllm of old",
        {"object": "error", "message": "boom", "type": "BadRequestError", "code": 400},
        REFUSED,
    ),
    ("tgi", {"error": "boom", "error_type": "overloaded"}, OVERLOADED),
    ("tgi: request", {"error": "boom", "error_type": "validation"}, REFUSED),
    (
        "hugging face",
        {"error": "Model x is currently loading", "estimated_time": 20.5},
        OVERLOADED._replace(words="loading", retry_after=21),
    ),
    ("fastchat", {"text": "boom", "error_code": 50001}, UNKNOWN),
    ("a code alone", {"code": 503}, OVERLOADED._replace(words="it gave no reason")),
]

TEXTS: list[tuple[str, bytes, Fault]] = [
    ("words as data", b"data: boom\n\n", UNKNOWN),
    ("words behind a name", b"data: [ERROR] boom\n\n", UNKNOWN._replace(words="error: boom")),
    ("JSON behind a name", b'data: error: {"message":"boom","code":429}\n\n', LIMIT),
    (
        "envoy",
        b"data: upstream connect error or disconnect/reset. reset reason: overflow\n\n",
        OVERLOADED._replace(words="upstream connect error"),
    ),
    ("a string as data", b'data: "boom"\n\n', UNKNOWN),
    ("words as a body", b"no healthy upstream", OVERLOADED._replace(words="no healthy upstream")),
    (
        "a page",
        b"<!DOCTYPE html>\n<html><head><title>502 Bad Gateway</title></head></html>",
        OVERLOADED._replace(words="a web page (HTML): 502 Bad Gateway"),
    ),
    (
        "a page without a title",
        b"<html>\n<body><p>Sorry, &lt;you&gt; are lost.</p></body>",
        UNKNOWN._replace(words="a web page (HTML): Sorry, <you> are lost."),
    ),
    (
        "llama.cpp's field",
        b'error: {"code":400,"message":"boom","type":"invalid_request_error"}\n\n',
        REFUSED,
    ),
    (
        "llama.cpp's field, too long",
        b'error: {"code":400,"message":"it exceeds the available context size","type":"x"}\n\n',
        OVERFLOW._replace(words="context size"),
    ),
    ("the field with words", b"error: rate limit reached\n\n", LIMIT._replace(words="rate limit")),
    ("an error event with a message", b'event: error\ndata: {"message":"boom"}\n\n', UNKNOWN),
    (
        "an error event of any shape",
        b'event: error\ndata: {"code":429,"reason":"boom","model":"m"}\n\n',
        LIMIT,
    ),
    ("an error event with words", b"event: error\ndata: boom\n\n", UNKNOWN),
    (
        "an exception event",
        b'event:exception\ndata:{"__type":"ThrottlingException","message":"boom"}\n\n',
        LIMIT,
    ),
    (
        "an exception event with its name",
        b'event: exception\ndata: {"modelStreamErrorException":{"message":"boom"}}\n\n',
        OVERLOADED,
    ),
    ("a body", b'{"detail":"boom"}', UNKNOWN),
]

NO_ERRORS: list[tuple[str, Any]] = [
    ("minimax", minimax(0, "", choices=[{"delta": {"content": "a"}}])),
    ("minimax at the end", minimax(0, "success")),
    ("null", {"choices": [], "error": None}),
    ("empty text", {"error": ""}),
    ("empty object", {"error": {}}),
    ("false", {"error": False, "choices": []}),
    ("a code of 0 in it", {"error": {"code": 0, "message": ""}}),
    ("detail beside choices", {"detail": "none", "choices": [{"delta": {"content": "a"}}]}),
    (
        "detail beside empty choices",
        {"detail": "none", "choices": [], "usage": {"total_tokens": 1}},
    ),
    ("errors without any", {"errors": [], "success": True}),
    ("success", {"success": True, "message": "fine"}),
    ("code 200", {"code": 200, "message": "done"}),
    ('code "0"', {"code": "0", "msg": "ok"}),
    (
        "iflytek",
        {"code": 0, "message": "Success", "sid": "s", "choices": [{"delta": {"content": "a"}}]},
    ),
    ("usage", {"id": "x", "usage": {"prompt_tokens": 1}}),
    ("a ping", {"type": "ping"}),
    ("a ping with words", {"type": "ping", "message": "alive"}),
    ("a beginning", {"id": "x", "object": "chat.completion.chunk", "message": "started"}),
    ("a response", {"type": "response.created", "response": {"id": "r", "error": None}}),
    ("azure", {"choices": [], "prompt_filter_results": [{"content_filter_results": {}}]}),
    ("baidu", {"error_code": 0, "error_msg": ""}),
    ("an empty object", {}),
]


def _fault(failure: UpstreamFailed, expected: Fault) -> Fault:
    return Fault(
        failure.code,
        failure.status,
        failure.is_temporary,
        expected.words if expected.words in failure.message else failure.message,
        failure.retry_after,
    )


@pytest.mark.parametrize(("frame", "fault"), [pytest.param(*row[1:], id=row[0]) for row in FRAMES])
def test_an_error_of_any_frame_has_its_class_and_its_words(frame: Any, fault: Fault) -> None:
    data = json.dumps(frame).encode()
    with pytest.raises(UpstreamFailed) as failed:
        parse_chunk(data)
    assert _fault(failed.value, fault) == fault


@pytest.mark.parametrize(("stream", "fault"), [pytest.param(*row[1:], id=row[0]) for row in TEXTS])
def test_an_error_outside_of_json_has_its_class_and_its_words(stream: bytes, fault: Fault) -> None:
    splitter = SseSplitter(limit=10_000)
    [payload] = [*splitter.feed(stream), *splitter.flush()]
    for parse in (parse_chunk, parse_event):
        with pytest.raises(UpstreamFailed) as failed:
            parse(payload)
        assert _fault(failed.value, fault) == fault


@pytest.mark.parametrize("frame", [pytest.param(row[1], id=row[0]) for row in NO_ERRORS])
def test_no_error_is_seen_where_there_is_none(frame: Any) -> None:
    parse_chunk(json.dumps(frame).encode())


@pytest.mark.parametrize(
    "frame",
    [
        minimax(1002),
        {"detail": "Too many requests"},
        {"code": "Throttling", "message": "boom"},
        [{"error": {"code": 429, "message": "boom"}}],
        {"type": "about:blank", "title": "boom", "status": 429},
        {"type": "https://a.example/limit", "title": "boom", "status": 429},
        {"type": "rate_limit_error", "message": "boom"},
        {"type": "error", "error": {"type": "rate_limit_error", "message": "boom"}},
    ],
)
def test_a_native_upstream_may_use_these_frames_too(frame: Any) -> None:
    with pytest.raises(UpstreamFailed) as failed:
        parse_event(json.dumps(frame).encode())
    assert failed.value.code == "rate_limit_exceeded"
    assert failed.value.is_temporary


@pytest.mark.parametrize(
    "data",
    [
        b'{"error":' + b"[" * 400 + b"]" * 400 + b"}",
        b'{"error":[' * 200 + b"1" + b"]}" * 200,
        b'{"error":{"message":' + b"[" * 300 + b"1" + b"]" * 300 + b"}}",
    ],
)
def test_an_error_of_any_depth_is_an_error(data: bytes) -> None:
    with pytest.raises(UpstreamFailed):
        parse_chunk(data)
