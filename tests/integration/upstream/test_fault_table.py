"""Every fault of an upstream: the right ending, within its limit, without internals in the message.

Each fault is met by a foreground client, a stream and a background response.

tests/integration/upstream/test_upstream_faults.py has the common faults with the SDK's retries;
here the upstream is called once.
"""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from cli.embedded.process import free_port
from tests.conftest import PrivateStack
from tests.support.api import JSON, until
from tests.support.fake_upstream import (
    Exchange,
    FakeUpstream,
    Script,
    Step,
    UpstreamRequest,
    call,
    chunk,
    delta,
    done,
    drop,
    error_body,
    finish,
    hang,
    raw,
    reasoning,
    reply,
    reset,
    status,
    text,
    usage,
)
from tests.support.stack import RUNNING_STACKS, SHORT_LEASES, Databases, Stack, SuiteSettings, stack
from tests.support.strict_types import check_response
from tests.support.upstream_faults import (
    SECRET,
    FaultCase,
    assert_all_closed,
    assert_fails,
    assert_no_internals,
    chunk_json,
    completion,
    endless,
    gzip_bomb,
    head,
    memory_growth,
    raw_bytes,
    request_three_ways,
    separate_reads,
    text_event,
    waited_for,
)

FIRST_TOKEN, TOKEN_GAP, TURN, OUTPUT = 2.0, 1.6, 4.0, 2_000_000
LATE = 20
"""How many seconds after a limit its end may be seen: the machine may be busy."""
ONE_CALL = {
    "BACKBURNER_LEASE__SWEEP": "0.2",
    "BACKBURNER_UPSTREAM__MAX_RETRIES": "0",
    "BACKBURNER_UPSTREAM__REPEAT_TURNS": "0",
    "BACKBURNER_LIMITS__OUTPUT": str(OUTPUT),
}
SHORT_LIMITS = {
    **ONE_CALL,
    "BACKBURNER_LIMITS__FIRST_TOKEN": str(FIRST_TOKEN),
    "BACKBURNER_LIMITS__TOKEN_GAP": str(TOKEN_GAP),
    "BACKBURNER_LIMITS__TURN": str(TURN),
}
MEGABYTE = 1_000_000
TEXT_FRAME, FINISH_FRAME, DONE_FRAME = (
    text_event("Hello."),
    b"data: " + chunk_json({}, finish_reason="stop") + b"\n\n",
    b"data: [DONE]\n\n",
)
WHOLE_STREAM = TEXT_FRAME + FINISH_FRAME + DONE_FRAME


@pytest.fixture(scope="module")
async def one_call_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment that calls its upstream once."""
    folder = tmp_path_factory.mktemp("one-call")
    async with stack(folder, database_server, suite_settings, fake, settings=ONE_CALL) as running:
        yield running
    RUNNING_STACKS.remove(running)


@pytest.fixture(scope="module")
async def short_limits_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """The same with short limits of time: for upstreams that are silent, as a busy machine reaches
    such limits also where the upstream is not.
    """
    folder = tmp_path_factory.mktemp("short")
    async with stack(
        folder, database_server, suite_settings, fake, settings=SHORT_LIMITS
    ) as running:
        yield running
    RUNNING_STACKS.remove(running)


def cases(rows: list[FaultCase], *long: str) -> pytest.MarkDecorator:
    """`long`: the names of those that are long tests."""
    marks = dict.fromkeys(long, (pytest.mark.long,))
    return pytest.mark.parametrize(
        "fault", [pytest.param(row, id=row.name, marks=marks.get(row.name, ())) for row in rows]
    )


# The upstream refuses.

NO_IMAGES = "image input is not supported - hint: you may need to provide the mmproj"
NO_IMAGE = "The upstream refused the request: No image."
QUOTA = "insufficient_quota"
CREDENTIAL = "The upstream refused this server's credential: {}"
FAKE_WORDS = "The fake upstream says {}."
REFUSED = f"The upstream refused the request: {FAKE_WORDS}"

WRONG_PATH = (
    "The upstream has nothing at /chat/completions (HTTP {0}): its 'base_url' or its 'api'"
    " may be wrong. It said: The fake upstream says {0}."
)


def _refusing(code: int, shown: int, error: str, message: str, **more: Any) -> FaultCase:
    return FaultCase(str(code), [status(code)], shown, error, message.format(code), **more)


def _status_only(code: int) -> str:
    return f"The upstream answered with HTTP {code}."


RATE_LIMITED: dict[str, Any] = {"envelope_code": "rate_limit_exceeded", "waits": True}
REFUSALS = [
    _refusing(400, 400, "invalid_prompt", REFUSED),
    _refusing(401, 502, "server_error", CREDENTIAL.format(FAKE_WORDS)),
    _refusing(402, 429, QUOTA, REFUSED, envelope_code=QUOTA),
    _refusing(403, 502, "server_error", CREDENTIAL.format(FAKE_WORDS)),
    _refusing(404, 404, "invalid_prompt", WRONG_PATH),
    _refusing(405, 400, "invalid_prompt", WRONG_PATH),
    _refusing(408, 408, "server_error", REFUSED, waits=True),
    _refusing(409, 400, "invalid_prompt", REFUSED),
    _refusing(413, 413, "invalid_prompt", REFUSED),
    _refusing(422, 422, "invalid_prompt", REFUSED),
    _refusing(429, 429, "rate_limit_exceeded", REFUSED, **RATE_LIMITED),
    *(
        _refusing(
            code,
            502,
            "server_error",
            f"The upstream answered with HTTP {code}: {FAKE_WORDS.format(code)}",
            waits=True,
        )
        for code in (500, 501, 502, 503, 504, 529, 599)
    ),
    *(
        FaultCase(
            f"{code} with the code {sent}",
            [status(code, error_body("No image.", "invalid_request_error", sent))],
            shown,
            known,
            message,
            envelope_code=None if known == "server_error" or shown == 502 else known,
            waits=code == 500,
        )
        for code, sent, known, shown, message in (
            (400, "invalid_image_url", "invalid_image_url", 400, NO_IMAGE),
            (400, "invalid_base64", "invalid_base64_image", 400, NO_IMAGE),
            (413, "image_too_large", "image_too_large", 413, NO_IMAGE),
            (409, "image_parse_error", "image_parse_error", 400, NO_IMAGE),
            (400, "server_error", "invalid_prompt", 400, NO_IMAGE),
            (
                500,
                "invalid_image",
                "server_error",
                502,
                "The upstream answered with HTTP 500: No image.",
            ),
            (403, "invalid_prompt", "server_error", 502, CREDENTIAL.format("No image.")),
        )
    ),
    FaultCase(
        "429 with seconds",
        [status(429, headers={"retry-after": "7"})],
        429,
        "rate_limit_exceeded",
        REFUSED.format(429),
        retry_after="7",
        **RATE_LIMITED,
    ),
    *(
        FaultCase(
            f"429 with {value!r}",
            [status(429, headers={"retry-after": value})],
            429,
            "rate_limit_exceeded",
            REFUSED.format(429),
            **RATE_LIMITED,
        )
        for value in ("soon", "-1", "1.5", "9" * 30, "Wed, 21 Oct 2099 07:28:00 GMT")
    ),
    FaultCase(
        "429 with zero",
        [status(429, headers={"retry-after": "0"})],
        429,
        "rate_limit_exceeded",
        REFUSED.format(429),
        retry_after="1",
        **RATE_LIMITED,
    ),
    FaultCase(
        "503 with seconds",
        [status(503, headers={"retry-after": "7"})],
        502,
        "server_error",
        f"The upstream answered with HTTP 503: {FAKE_WORDS.format(503)}",
        retry_after="7",
        waits=True,
    ),
    FaultCase(
        "429 without money",
        [status(429, error_body("Your quota is used up.", "insufficient_quota", QUOTA))],
        429,
        QUOTA,
        "The upstream refused the request: Your quota is used up.",
        envelope_code=QUOTA,
    ),
]

SAID = "The upstream refused the request:"
ABOUT_MODEL = {
    "error": {"message": "No such model.", "type": "x", "param": "model", "code": "model_not_found"}
}
REFUSING_BODIES = [
    FaultCase(
        "a web page",
        [status(400, b"<html>no</html>", {"content-type": "text/html"})],
        400,
        "invalid_prompt",
        f"{SAID} a web page (HTML): no",
    ),
    FaultCase("nothing", [status(400, b"")], 400, "invalid_prompt", _status_only(400)),
    FaultCase(
        "half of its JSON",
        [status(400, b'{"error": {"message": "x')],
        400,
        "invalid_prompt",
        _status_only(400),
    ),
    FaultCase(
        "JSON a thousand deep",
        [status(400, b'{"error":' * 1000 + b"1" + b"}" * 1000)],
        400,
        "invalid_prompt",
        _status_only(400),
    ),
    FaultCase(
        "a list",
        [status(422, b'[{"error": {"message": "x"}}]')],
        422,
        "invalid_prompt",
        f"{SAID} x",
    ),
    FaultCase("a string", [status(422, b'"no"')], 422, "invalid_prompt", f"{SAID} no"),
    FaultCase("words", [status(400, b"n must be 1")], 400, "invalid_prompt", f"{SAID} n must be 1"),
    FaultCase(
        "an error that is a string",
        [status(400, {"error": "too long"})],
        400,
        "invalid_prompt",
        f"{SAID} too long",
    ),
    FaultCase(
        "a number as message",
        [status(400, {"error": {"message": 7}})],
        400,
        "invalid_prompt",
        f"{SAID} 7",
    ),
    FaultCase(
        "detail, as FastAPI",
        [status(422, {"detail": "no such field"})],
        422,
        "invalid_prompt",
        "The upstream refused the request: no such field",
    ),
    FaultCase(
        "our credential",
        [status(400, {"error": {"message": f"Bad key {SECRET}!"}})],
        400,
        "invalid_prompt",
        "The upstream refused the request: Bad key …!",
    ),
    FaultCase(
        "a message of a megabyte",
        [status(400, {"error": {"message": "x" * MEGABYTE}})],
        400,
        "invalid_prompt",
        _status_only(400),
    ),
    FaultCase(
        "a long message",
        [status(400, {"error": {"message": "x" * 9000}})],
        400,
        "invalid_prompt",
        f"The upstream refused the request: {'x' * 500}",
    ),
    *(
        FaultCase(
            f"text in {codec}",
            [
                status(
                    400,
                    {"error": {"message": "no"}},
                    {"content-type": f"application/json; charset={codec}"},
                )
            ],
            400,
            "invalid_prompt",
            "The upstream refused the request: no",
        )
        for codec in ("hex", "zlib", "rot13", "undefined", "idna", "utf-7", "nonsense", "\xff")
    ),
    FaultCase(
        "a model it does not have",
        [status(404, ABOUT_MODEL)],
        400,
        "invalid_prompt",
        "The requested model '{model}' does not exist. GET /v1/models lists those that do.",
        "model_not_found",
    ),
    FaultCase(
        "a model to which it is not pinned",
        [status(400, {"detail": "Server is pinned to 'a'; request specified 'b'."})],
        400,
        "invalid_prompt",
        "The requested model '{model}' does not exist. GET /v1/models lists those that do.",
        "model_not_found",
    ),
    FaultCase(
        "an image under 500",
        [status(500, error_body(NO_IMAGES, "server_error", None))],
        400,
        "invalid_prompt",
        f"{SAID} {NO_IMAGES}",
        "invalid_prompt",
    ),
    FaultCase(
        "nothing but a status",
        [raw_bytes(head("content-length: 0", status="500 "))],
        502,
        "server_error",
        _status_only(500),
        waits=True,
    ),
    FaultCase(
        "an unknown status",
        [raw_bytes(head("content-length: 0", status="999 X"))],
        502,
        "server_error",
        _status_only(999),
    ),
]


@cases(REFUSALS)
async def test_a_refusal_becomes_its_class_of_error(
    one_call_stack: Stack, fault: FaultCase
) -> None:
    await assert_fails(one_call_stack, fault)


@cases(REFUSING_BODIES)
async def test_every_body_of_a_refusal_becomes_a_clean_error(
    one_call_stack: Stack, fake: FakeUpstream, fault: FaultCase
) -> None:
    if "{model}" in fault.message:
        model = fake.script(fault.script)
        answer = (await request_three_ways(one_call_stack, model)).answer
        assert (answer.status, answer.error["code"], answer.error["param"]) == (
            400,
            "model_not_found",
            "model",
        )
        assert answer.error["message"] == fault.message.format(model=model)
    else:
        await assert_fails(one_call_stack, fault)


@pytest.mark.parametrize(
    "code",
    [302, 307, *(pytest.param(code, marks=pytest.mark.long) for code in (300, 301, 303, 308))],
)
async def test_a_redirect_is_not_followed_and_the_credential_not_sent_on(
    one_call_stack: Stack, fake: FakeUpstream, code: int
) -> None:
    async with FakeUpstream() as other_server:
        message = f"The upstream answered with an unexpected redirect (HTTP {code})."
        for location in (
            f"{other_server.base_url}/chat/completions",
            f"{fake.base_url}/chat/completions",
            "/v1/chat/completions",
            "http://[",
            "",
        ):
            script = [status(code, b"", {"location": location})]
            await assert_fails(
                one_call_stack, FaultCase(location, script, 502, "server_error", message)
            )
        assert other_server.requests == []


# The upstream disconnects, or sends an invalid stream.

REPORTED = "The upstream reported an error:"
PAGE = "The upstream answered with a web page (HTML)"
WRONG_ADDRESS = "Does its address lead to an API?"
UNREACHABLE = "The upstream could not be reached, or closed the connection before it answered."
NO_HTTP = "The upstream sent something that is no HTTP answer."
NO_JSON = "The upstream sent a chunk that is not JSON."
NO_OBJECT = "The upstream sent a chunk that is not a JSON object."
ENDED_EARLY = "The upstream ended its answer before it was complete."
COMPRESSED = "The upstream sent a compressed stream although none was asked for."
TOO_LONG = "The upstream sent an event larger than 16777216 bytes."
SSE = "content-type: text/event-stream"
RANDOM = random.Random(3).randbytes(20_000)


def _broken(name: str, message: str, *script: Step) -> FaultCase:
    return FaultCase(name, script, 502, "server_error", message)


def _cut(name: str, message: str, *script: Step) -> FaultCase:
    return FaultCase(name, script, 502, "server_error", message, waits=True)


BROKEN_STREAMS = [
    _cut("a reset before the first byte", UNREACHABLE, reset()),
    _cut("an end before the first byte", UNREACHABLE, drop()),
    _cut("a reset in the head", UNREACHABLE, raw_bytes(b"HTTP/1.1 200 OK\r\nconte"), reset()),
    _cut("an end in the head", UNREACHABLE, raw_bytes(b"HTTP/1.1 200 OK\r\nconte"), drop()),
    _cut(
        "a reset after the head",
        ENDED_EARLY,
        raw_bytes(head(SSE, "transfer-encoding: chunked")),
        reset(),
    ),
    _cut(
        "an end after the head",
        ENDED_EARLY,
        raw_bytes(head(SSE, "transfer-encoding: chunked")),
        drop(),
    ),
    _cut("a reset in the first frame", ENDED_EARLY, raw(b'data: {"choices":[{"del'), reset()),
    _cut("an end in the first frame", ENDED_EARLY, raw(b'data: {"choices":[{"del'), drop()),
    _cut(
        "a body shorter than announced",
        ENDED_EARLY,
        raw_bytes(head(SSE, "content-length: 1000") + b": x\n\n"),
        drop(),
    ),
    _broken("no HTTP", NO_HTTP, raw_bytes(b"220 mail.example ESMTP\r\n"), drop()),
    _broken("random bytes for a head", NO_HTTP, raw_bytes(RANDOM), drop()),
    _broken("HTTP/2", NO_HTTP, raw_bytes(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"), drop()),
    _broken("a length below zero", NO_HTTP, raw_bytes(head(SSE, "content-length: -1")), drop()),
    _broken(
        "broken chunk sizes",
        NO_HTTP,
        raw_bytes(head(SSE, "transfer-encoding: chunked") + b"5\r\n: x\n\n\r\nZZZ\r\n"),
        hang(),
    ),
    _broken("a header line without end", NO_HTTP, endless(b"x" * 65536, b"HTTP/1.1 200 OK\r\nx: ")),
    _broken(
        "a web page",
        f"{PAGE}: hello. {WRONG_ADDRESS}",
        status(200, b"<html>\n<p>hello</p>\n</html>\n", {"content-type": "text/html"}),
    ),
    _broken(
        "a web page as a stream",
        f"{PAGE}. {WRONG_ADDRESS}",
        raw(b"<!doctype html>\n<html>\n\n</html>"),
    ),
    _broken(
        "a web page with a script, in another encoding",
        f"{PAGE}: Caf\ufffd. {WRONG_ADDRESS}",
        raw("<!doctype html><title>Café</title>\n<script>\n{\n}\n</script>\n".encode("latin-1")),
    ),
    _broken("an empty answer", ENDED_EARLY, status(200, b"")),
    _broken("no content", ENDED_EARLY, raw_bytes(head(SSE, status="204 No Content"))),
    _broken("[DONE] at once", ENDED_EARLY, done()),
    _broken("comments and an end", ENDED_EARLY, raw(b": a\n\n: b\n\n")),
    _broken(
        "a role and nothing else", ENDED_EARLY, delta({"role": "assistant", "content": ""}), done()
    ),
    _broken(
        "JSON cut off instead of a stream",
        NO_JSON,
        status(200, json.dumps(completion(content="x")).encode()[:-10]),
    ),
    _broken("JSON cut off in a frame", NO_JSON, raw(b'data: {"choices":[\n\n')),
    _broken("JSON cut off at the end", ENDED_EARLY, raw(b'data: {"choices":[')),
    _broken("text instead of JSON", f"{REPORTED} hello", raw(b"data: hello\n\n")),
    _broken("a list for JSON", NO_OBJECT, raw(b"data: [1]\n\n")),
    _broken("null for JSON", NO_OBJECT, raw(b"data: null\n\n")),
    _broken("JSON without end in depth", NO_JSON, raw(b"data: " + b'{"a":' * 100_000 + b"\n\n")),
    _broken("random bytes", ENDED_EARLY, raw(RANDOM.replace(b"data:", b"")), raw(b"\n\n")),
    _broken(
        "random bytes as data",
        NO_JSON,
        raw(b"data: " + RANDOM.replace(b"\n", b"").replace(b"\r", b"") + b"\n\n"),
    ),
    _broken(
        "a compressed stream",
        COMPRESSED,
        status(200, gzip_bomb(b"data: "), {"content-encoding": "gzip"}),
    ),
    _broken(
        "an unknown compression", COMPRESSED, status(200, b"x", {"content-encoding": "zstd, br"})
    ),
    _broken(
        "a call without a name",
        "The upstream sent a function call without a name.",
        delta({"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": "{}"}}]}),
        finish("tool_calls"),
        done(),
    ),
    _broken(
        "a reason that is an error",
        "The upstream reported an error while it was generating (finish_reason 'error').",
        finish("error"),
        done(),
    ),
]

OVERLOADED = "The upstream reported an error: overloaded"
ERRORS_IN_STREAM = [
    FaultCase(
        "an error chunk",
        [chunk({"error": {"message": "overloaded", "code": 500}})],
        502,
        "server_error",
        OVERLOADED,
        waits=True,
    ),
    FaultCase(
        "an error chunk of 429",
        [chunk({"error": {"message": "overloaded", "code": 429, "retry_after": 7}})],
        429,
        "rate_limit_exceeded",
        OVERLOADED,
        retry_after="7",
        **RATE_LIMITED,
    ),
    FaultCase(
        "MiniMax",
        [chunk({"base_resp": {"status_code": 1002, "status_msg": "overloaded"}})],
        429,
        "rate_limit_exceeded",
        OVERLOADED,
        **RATE_LIMITED,
    ),
    FaultCase(
        "the field error",
        [raw(b'error: {"message":"overloaded","code":400,"type":"server_error"}\n\n')],
        400,
        "invalid_prompt",
        OVERLOADED,
        "invalid_prompt",
    ),
    FaultCase(
        "detail in a body",
        [status(200, {"detail": "overloaded"})],
        502,
        "server_error",
        OVERLOADED,
        waits=True,
    ),
    FaultCase(
        "an error chunk of 400",
        [chunk({"error": {"message": "overloaded", "code": 400}})],
        400,
        "invalid_prompt",
        OVERLOADED,
    ),
    FaultCase(
        "an error that is a string",
        [chunk({"error": "overloaded"})],
        502,
        "server_error",
        OVERLOADED,
        waits=True,
    ),
    FaultCase(
        "an error in a choice",
        [delta({}, error={"message": "overloaded", "code": 502})],
        502,
        "server_error",
        OVERLOADED,
        waits=True,
    ),
    FaultCase(
        "vLLM's old shape",
        [chunk({"object": "error", "message": "overloaded", "code": 400})],
        400,
        "invalid_prompt",
        OVERLOADED,
    ),
    FaultCase(
        "an error event",
        [raw(b'event: error\ndata: {"message": "broken"}\n\n')],
        502,
        "server_error",
        f"{REPORTED} broken",
    ),
    FaultCase(
        "a bare line",
        [raw(b': x\n\n{"error": {"message": "broken"}}\n')],
        502,
        "server_error",
        f"{REPORTED} broken",
    ),
    FaultCase(
        "a body instead of a stream",
        [status(200, {"error": {"message": "broken"}})],
        502,
        "server_error",
        f"{REPORTED} broken",
    ),
    FaultCase(
        "our credential",
        [chunk({"error": {"message": f"key {SECRET}", "code": 400}})],
        400,
        "invalid_prompt",
        "The upstream reported an error: key …",
    ),
    FaultCase(
        "about our credential",
        [
            chunk(
                {"error": {"message": f"Bad keys sk-12, {SECRET[:2]}***{SECRET[-2:]}", "code": 401}}
            )
        ],
        502,
        "server_error",
        CREDENTIAL.format("Bad keys … …"),
    ),
]


@cases(BROKEN_STREAMS)
async def test_a_broken_stream_fails_the_response(one_call_stack: Stack, fault: FaultCase) -> None:
    await assert_fails(one_call_stack, fault)


@cases(ERRORS_IN_STREAM)
async def test_an_error_under_http_200_fails_the_response(
    one_call_stack: Stack, fault: FaultCase
) -> None:
    await assert_fails(one_call_stack, fault)


async def test_a_request_that_always_gets_a_server_error_ends_while_others_are_answered(
    one_call_stack: Stack, fake: FakeUpstream
) -> None:
    def decide(request: UpstreamRequest) -> Script:
        return [status(500)] if "poison" in json.dumps(request.body) else reply("Fine.")

    fake.decide("fragile", decide)
    api = one_call_stack.api()
    response_id = await api.create_background("fragile", input="poison")
    try_now = (
        "UPDATE responses SET resume_at = clock_timestamp()"
        " WHERE id = %s AND worker IS NULL AND resume_at IS NOT NULL RETURNING 1"
    )

    async def has_ended() -> JSON | None:
        assert (await api.create("fragile"))["output_text"] == "Fine.", "no circuit has opened"
        await one_call_stack.value(try_now, response_id.removeprefix("resp_"))
        response = await api.get(response_id)
        return response if response["status"] == "failed" else None

    ended = await until(has_ended, 30)
    assert ended is not None
    assert ended["error"] == {
        "code": "invalid_prompt",
        "message": "The upstream answered with HTTP 500: The fake upstream says 500. It has"
        " answered this request so 5 times, and other requests of the model in between.",
    }
    bodies = [json.dumps(request.body) for request in fake.requests_for("fragile")]
    assert sum("poison" in body for body in bodies) == 5


NO_FIRST_TOKEN, NO_FURTHER_TOKEN = (
    f"The upstream was silent for longer than the limit of {seconds:g} s ({limit})."
    for seconds, limit in ((FIRST_TOKEN, "first_token"), (TOKEN_GAP, "token_gap"))
)
BROKEN_AFTER_OUTPUT: list[tuple[str, Script, str, str]] = [
    ("a reset in a frame", [raw(b'data: {"choices":[{"del'), reset()], "server_error", ENDED_EARLY),
    ("an end in a frame", [raw(b'data: {"choices":[{"del'), drop()], "server_error", ENDED_EARLY),
    ("a proper end in a frame", [raw(b'data: {"choices":[{"del')], "server_error", ENDED_EARLY),
    ("words", [raw(b"data: x\n\n")], "server_error", f"{REPORTED} x"),
    ("an error field", [raw(b'error: {"message":"x"}\n\n')], "server_error", f"{REPORTED} x"),
    (
        "random bytes",
        [raw(b"data: " + RANDOM.replace(b"\n", b"").replace(b"\r", b"") + b"\n\n")],
        "server_error",
        NO_JSON,
    ),
    (
        "an error of 429",
        [chunk({"error": {"message": "overloaded", "code": 429}})],
        "rate_limit_exceeded",
        OVERLOADED,
    ),
    (
        "a frame without end",
        [raw(b"data: "), separate_reads(*[b"x" * 65536] * 257)],
        "server_error",
        TOO_LONG,
    ),
]


OPEN_ITEMS = {
    "text": text("so ", "far"),
    "reasoning": reasoning("so ", "far"),
    "call": call(0, "call_1", "f", "so ", "far"),
}


@pytest.mark.parametrize(
    ("script", "code", "message"),
    [pytest.param(*row[1:], id=row[0]) for row in BROKEN_AFTER_OUTPUT],
)
@pytest.mark.parametrize("open_item", OPEN_ITEMS)
async def test_a_stream_that_breaks_after_output_keeps_the_output(
    one_call_stack: Stack, script: Script, code: str, message: str, open_item: str
) -> None:
    error = {"code": code, "message": message}
    await assert_output_is_kept(one_call_stack, [OPEN_ITEMS[open_item], *script], error)


@pytest.mark.parametrize("open_item", OPEN_ITEMS)
async def test_a_stream_that_is_silent_after_output_keeps_the_output(
    short_limits_stack: Stack, open_item: str
) -> None:
    error = {"code": "server_error", "message": NO_FURTHER_TOKEN}
    await assert_output_is_kept(short_limits_stack, [OPEN_ITEMS[open_item], hang()], error)


async def assert_output_is_kept(stack: Stack, script: Script, error: JSON) -> None:
    """Checks a fault after the output "so far"."""
    model = stack.fake.script(script)
    outcome = await request_three_ways(stack, model)
    assert outcome.answer.status == 200, outcome.answer.raw
    for response in (outcome.answer.body, outcome.events[-1]["response"], outcome.stored):
        check_response(response)
        assert (response["status"], response["error"]) == ("failed", error)
        [item] = response["output"]
        assert item["status"] == "incomplete"
        assert "so far" in json.dumps(item)
    assert_no_internals(outcome, stack.fake)
    await assert_all_closed(stack.fake, model)


# The upstream is silent or slow: the limits of this server.


def _drip(data: bytes) -> Step:
    """Writes the same bytes ten times a second, without end."""

    async def step(exchange: Exchange) -> None:
        while True:
            await exchange.write(data)
            await asyncio.sleep(0.1)

    return step


SILENT_STREAMS = [
    FaultCase("nothing at all", [hang()], 504, "server_error", NO_FIRST_TOKEN),
    FaultCase(
        "half a head",
        [raw_bytes(b"HTTP/1.1 200 OK\r\nconte"), hang()],
        504,
        "server_error",
        NO_FIRST_TOKEN,
    ),
    FaultCase(
        "informational answers only",
        [raw_bytes(b"HTTP/1.1 100 Continue\r\n\r\n" * 50), hang()],
        504,
        "server_error",
        NO_FIRST_TOKEN,
    ),
    FaultCase(
        "a head and nothing else",
        [raw_bytes(head(SSE, "transfer-encoding: chunked")), hang()],
        504,
        "server_error",
        NO_FIRST_TOKEN,
    ),
    FaultCase(
        "half a frame", [raw(b'data: {"choices":'), hang()], 504, "server_error", NO_FIRST_TOKEN
    ),
    FaultCase(
        "keep-alive comments only",
        [_drip(b": keep-alive\n\n")],
        504,
        "server_error",
        NO_FIRST_TOKEN,
    ),
    FaultCase("a comment that never ends", [_drip(b": ")], 504, "server_error", NO_FIRST_TOKEN),
    FaultCase("empty lines only", [_drip(b"\n")], 504, "server_error", NO_FIRST_TOKEN),
    FaultCase(
        "events without data only", [_drip(b"event: ping\n\n")], 504, "server_error", NO_FIRST_TOKEN
    ),
    FaultCase(
        "chunks without text only",
        [_drip(b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n')],
        504,
        "server_error",
        NO_FIRST_TOKEN,
    ),
    FaultCase(
        "JSON that never ends",
        [raw(b'{"choices":'), _drip(b" ")],
        504,
        "server_error",
        NO_FIRST_TOKEN,
    ),
    FaultCase(
        "half a refusal",
        [raw_bytes(head("content-length: 1000", status="500 X") + b"{"), hang()],
        504,
        "server_error",
        NO_FIRST_TOKEN,
    ),
]


@cases(
    SILENT_STREAMS,
    *("half a frame", "a comment that never ends", "empty lines only", "events without data only"),
    *("a head and nothing else", "half a head", "chunks without text only"),
    *("JSON that never ends", "half a refusal"),
)
async def test_an_upstream_without_a_first_token_ends_at_the_limit(
    short_limits_stack: Stack, fault: FaultCase
) -> None:
    started = time.monotonic()
    await assert_fails(short_limits_stack, fault)
    assert FIRST_TOKEN <= time.monotonic() - started < FIRST_TOKEN + LATE


KEEP_ALIVES = {
    "comments": b": keep-alive\n\n",
    "chunks without text": b'data: {"choices":[{"index":0,"delta":{}}]}\n\n',
    "repeated usage": b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n',
}


@pytest.mark.parametrize(
    "keep_alive",
    ["comments", *(pytest.param(name, marks=pytest.mark.long) for name in list(KEEP_ALIVES)[1:])],
)
async def test_keep_alives_do_not_extend_the_limit_between_two_tokens(
    short_limits_stack: Stack, fake: FakeUpstream, keep_alive: str
) -> None:
    model = fake.script([text("so far"), _drip(KEEP_ALIVES[keep_alive])])
    started = time.monotonic()
    outcome = await request_three_ways(short_limits_stack, model)
    assert TOKEN_GAP <= time.monotonic() - started < TOKEN_GAP + LATE
    assert outcome.stored["error"]["message"] == NO_FURTHER_TOKEN
    assert outcome.stored["output_text"] == "so far"
    await assert_all_closed(fake, model)


async def test_a_slow_upstream_within_the_limits_completes(
    short_limits_stack: Stack, fake: FakeUpstream
) -> None:
    pause = TOKEN_GAP / 4
    model = fake.script(
        [text("one ", "two ", "three ", "four", gap=pause), finish(), usage(), done()]
    )
    assert (await request_three_ways(short_limits_stack, model)).stored[
        "output_text"
    ] == "one two three four"


async def test_a_turn_without_end_ends_at_the_limit(
    short_limits_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([_drip(text_event("x"))])
    started = time.monotonic()
    outcome = await request_three_ways(short_limits_stack, model)
    assert TURN <= time.monotonic() - started < TURN + LATE
    for response in (outcome.answer.body, outcome.events[-1]["response"], outcome.stored):
        assert response["error"] == {
            "code": "server_error",
            "message": f"The model's turn took longer than the limit of {TURN:g} s.",
        }
        assert response["output_text"].startswith("xxxx")
    await assert_all_closed(fake, model)


@pytest.mark.long
async def test_a_response_ends_at_the_limits_of_wall_clock_and_queue_wait(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    settings = {
        **SHORT_LEASES,
        "BACKBURNER_LIMITS__WALL_CLOCK": "3",
        "BACKBURNER_LIMITS__QUEUE_WAIT": "1",
    }
    deadline_message, queue_message = (
        "The response did not finish within its time limit.",
        "The response waited in the queue longer than the limit.",
    )
    async with private_stack(streams=1, settings=settings) as own_stack:
        api = own_stack.api()
        model, never, warm = (
            fake.script([_drip(text_event("x"))]),
            fake.script(reply("never")),
            fake.script(reply("warm")),
        )

        async def gets_messages() -> bool:
            return bool(
                (await api.wait_for_end(await api.create_background(warm)))["status"] == "completed"
            )

        # A worker counts as claiming before its consumer gets messages; here a second matters.
        await until(gets_messages, 20)
        down = await api.create_background(fake.script([status(503)]))
        await until(lambda: waited_for(own_stack, down))
        running = await api.create_background(model)
        await until(lambda: fake.requests_for(model))
        async with api.post_stream(
            model
        ) as busy:  # uses the slot reserved for foreground responses
            await busy.until("response.output_text.delta")
            queued = await api.create_background(never)
            refused = await api.call("POST", "/responses", {"model": never, "input": "Hi."})
            assert (refused.status, refused.error["message"]) == (504, queue_message)
            assert refused.headers["x-should-retry"] == "false"
            assert (await api.wait_for_end(queued))["error"] == {
                "code": "server_error",
                "message": queue_message,
            }
            await busy.to_end()
        assert (await api.wait_for_end(down))["error"] == {
            "code": "server_error",
            "message": f"{deadline_message} The last failure of its upstream: "
            "The upstream answered with HTTP 503: The fake upstream says 503.",
        }
        for ended in (busy.final, await api.wait_for_end(running)):
            assert (ended["status"], ended["error"]) == (
                "failed",
                {"code": "server_error", "message": deadline_message},
            )
            assert ended["output_text"].startswith("xxxx")
        assert fake.requests_for(never) == []
        await assert_all_closed(fake, model, count=2)
        silent = fake.script([hang()])
        answer = await api.call("POST", "/responses", {"model": silent, "input": "Hi."})
        assert (answer.status, answer.error["message"]) == (504, deadline_message)
        await assert_all_closed(fake, silent, count=1)


# The upstream cannot be reached, or redirects.


async def test_an_upstream_that_is_unreachable_or_redirects_is_a_502(
    private_stack: PrivateStack,
) -> None:
    port = free_port()
    settings = {
        "BACKBURNER_UPSTREAM__BASE_URL": f"http://127.0.0.1:{port}/v1",
        "BACKBURNER_UPSTREAM__MAX_RETRIES": "0",
    }
    async with private_stack(settings=settings) as own_stack, FakeUpstream() as other_server:
        outcome = await request_three_ways(own_stack, "any")
        assert (outcome.answer.status, outcome.answer.error["message"]) == (502, UNREACHABLE)
        assert outcome.answer.headers["x-should-retry"] == "false"
        error = {"code": "server_error", "message": UNREACHABLE}
        assert outcome.events[-1]["response"]["error"] == error
        assert outcome.waits_for is not None
        assert outcome.waits_for["message"] == UNREACHABLE
        assert str(port) not in "".join(outcome.texts())
        listing = await own_stack.api().call("GET", "/models")
        assert (listing.status, listing.error["message"]) == (
            502,
            "The upstream's list of models could not be read: it could not be reached.",
        )

        async def answer_redirect(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(
                head(
                    f"location: {other_server.base_url}/models", "content-length: 0", status="307 X"
                )
            )
            writer.close()

        async with await asyncio.start_server(answer_redirect, "127.0.0.1", port):
            listing = await own_stack.api().call("GET", "/models")
            assert listing.status == 502
            answer = await own_stack.api().call(
                "POST", "/responses", {"model": "any", "input": "Hi."}
            )
            assert (answer.status, answer.error["message"]) == (
                502,
                "The upstream answered with an unexpected redirect (HTTP 307).",
            )
        assert other_server.requests == []


# Unusual streams that are valid all the same.


@dataclass(frozen=True, slots=True)
class UnusualStream:
    """An unusual stream, and what it must become."""

    name: str
    script: Script
    text: str = "Hello."
    usage: tuple[int, int, int] | None = None
    """Input, output and total tokens."""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Names and arguments."""
    status: str = "completed"


def usage_fields(prompt: int, completion: int) -> JSON:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def call_chunk(**fields: Any) -> Step:
    """A chunk with a part of one call."""
    return delta({"tool_calls": [fields]})


def function(name: str = "", arguments: str = "") -> JSON:
    return {"name": name, "arguments": arguments}


TWO_CALLS = [("f", '{"a":1}'), ("g", '{"b":2}')]

FRAMING = [
    UnusualStream("CRLF", [raw(WHOLE_STREAM.replace(b"\n", b"\r\n"))]),
    UnusualStream("CR", [raw(WHOLE_STREAM.replace(b"\n", b"\r"))]),
    UnusualStream(
        "one byte at a time", [separate_reads(*(bytes([byte]) for byte in WHOLE_STREAM))]
    ),
    UnusualStream(
        "CRLF a byte at a time",
        [separate_reads(*(bytes([byte]) for byte in WHOLE_STREAM.replace(b"\n", b"\r\n")))],
    ),
    UnusualStream(
        "comments everywhere",
        [raw(b": a\n\n" + TEXT_FRAME + b": b\n: c\n\n" + FINISH_FRAME + b": d\n\n" + DONE_FRAME)],
    ),
    UnusualStream(
        "data on several lines",
        [
            raw(
                TEXT_FRAME.replace(b', "choices"', b',\ndata: "choices"')
                + FINISH_FRAME
                + DONE_FRAME
            )
        ],
    ),
    UnusualStream("no space after data", [raw(WHOLE_STREAM.replace(b"data: ", b"data:"))]),
    UnusualStream("a byte order mark", [raw(b"\xef\xbb\xbf" + WHOLE_STREAM)]),
    UnusualStream(
        "a reason that is no text",
        [
            raw_bytes(
                head(SSE, f"content-length: {len(WHOLE_STREAM)}", status="200 \xff\xfe")
                + WHOLE_STREAM
            )
        ],
    ),
    UnusualStream("other fields", [raw(b"id: 1\nevent: x\nretry: 1\n" + WHOLE_STREAM)]),
    UnusualStream(
        "another content type", [status(200, WHOLE_STREAM, {"content-type": "text/plain"})]
    ),
    UnusualStream(
        "a content length", [status(200, WHOLE_STREAM, {"content-type": "text/event-stream"})]
    ),
    UnusualStream(
        "no length and no chunks",
        [raw_bytes(head(SSE, "connection: close") + WHOLE_STREAM), drop()],
    ),
    UnusualStream(
        "more after [DONE]", [raw(WHOLE_STREAM + text_event("more") + b"data: nonsense\n\n")]
    ),
    UnusualStream("no end after [DONE]", [raw(WHOLE_STREAM), hang()]),
    UnusualStream("no [DONE]", [raw(TEXT_FRAME + FINISH_FRAME)]),
    UnusualStream("no [DONE] and no last line", [raw((TEXT_FRAME + FINISH_FRAME).rstrip(b"\n"))]),
    UnusualStream("no [DONE] and no end", [raw(TEXT_FRAME + FINISH_FRAME), hang()]),
    UnusualStream("no [DONE] and a reset", [raw(TEXT_FRAME + FINISH_FRAME), reset()]),
    UnusualStream(
        "no [DONE] and an end in a frame", [raw(TEXT_FRAME + FINISH_FRAME + b"data: {"), drop()]
    ),
    UnusualStream("no finish_reason", [raw(TEXT_FRAME + DONE_FRAME)]),
    UnusualStream(
        "an empty finish_reason", [raw(text_event("Hello.", finish_reason="") + DONE_FRAME)]
    ),
    UnusualStream(
        "a finish_reason of a vendor",
        [raw(TEXT_FRAME + FINISH_FRAME.replace(b'"stop"', b'"eos"') + DONE_FRAME)],
    ),
    UnusualStream(
        "the reason beside the text", [raw(text_event("Hello.", finish_reason="stop") + DONE_FRAME)]
    ),
    UnusualStream("JSON instead of a stream", [status(200, completion(content="Hello."))]),
    UnusualStream(
        "pretty JSON instead of a stream",
        [status(200, json.dumps(completion(content="Hello."), indent=2).encode())],
    ),
    UnusualStream("JSON as a stream", [raw(json.dumps(completion(content="Hello.")).encode())]),
    UnusualStream(
        "a second choice",
        [chunk({"choices": [{"index": 1, "delta": {"content": "No."}}]}), raw(WHOLE_STREAM)],
    ),
    UnusualStream(
        "content in parts",
        [
            delta({"content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}]}),
            raw(FINISH_FRAME + DONE_FRAME),
        ],
    ),
    UnusualStream(
        "a character in several reads",
        [
            separate_reads(
                *(bytes([byte]) for byte in text_event("é").replace(b"\\u00e9", "é".encode()))
            ),
            raw(FINISH_FRAME + DONE_FRAME),
        ],
        "é",
    ),
    UnusualStream(
        "the length limit", [raw(TEXT_FRAME), finish("length"), done()], status="incomplete"
    ),
    UnusualStream(
        "the content filter",
        [raw(TEXT_FRAME), finish("content_filter"), done()],
        status="incomplete",
    ),
    UnusualStream(
        "an error after the end", [raw(WHOLE_STREAM), chunk({"error": {"message": "late"}})]
    ),
]

USAGES = [
    UnusualStream(
        "in a separate chunk", [raw(TEXT_FRAME), finish(), usage(5, 2), done()], usage=(5, 2, 7)
    ),
    UnusualStream("before the text", [usage(5, 2), raw(WHOLE_STREAM)], usage=(5, 2, 7)),
    UnusualStream(
        "beside the reason",
        [
            raw(TEXT_FRAME),
            chunk(
                {
                    "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
                    "usage": usage_fields(5, 2),
                }
            ),
            done(),
        ],
        usage=(5, 2, 7),
    ),
    UnusualStream(
        "on every chunk, the last counts",
        [
            *(
                chunk(
                    {
                        "choices": [{"index": 0, "delta": {"content": "o"}}],
                        "usage": usage_fields(5, count),
                    }
                )
                for count in (1, 2)
            ),
            finish(),
            done(),
        ],
        "oo",
        (5, 2, 7),
    ),
    UnusualStream(
        "in the choice",
        [
            raw(TEXT_FRAME),
            chunk(
                {
                    "choices": [
                        {
                            "index": 0,
                            "delta": {},
                            "finish_reason": "stop",
                            "usage": usage_fields(5, 2),
                        }
                    ]
                }
            ),
            done(),
        ],
        usage=(5, 2, 7),
    ),
    UnusualStream(
        "in x_groq",
        [
            raw(TEXT_FRAME),
            chunk(
                {
                    "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
                    "x_groq": {"usage": usage_fields(5, 2)},
                }
            ),
            done(),
        ],
        usage=(5, 2, 7),
    ),
    UnusualStream(
        "in a body that is no stream",
        [status(200, {**completion(content="Hello."), "usage": usage_fields(5, 2)})],
        usage=(5, 2, 7),
    ),
    UnusualStream(
        "without a total",
        [
            raw(TEXT_FRAME),
            finish(),
            chunk({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}),
            done(),
        ],
        usage=(5, 2, 7),
    ),
    UnusualStream(
        "as strings",
        [
            raw(TEXT_FRAME),
            finish(),
            chunk({"choices": [], "usage": {"prompt_tokens": "5", "completion_tokens": "2"}}),
            done(),
        ],
        usage=(5, 2, 7),
    ),
    UnusualStream(
        "null", [raw(TEXT_FRAME), finish(), chunk({"choices": [], "usage": None}), done()]
    ),
    UnusualStream(
        "empty", [raw(TEXT_FRAME), finish(), chunk({"choices": [], "usage": {}}), done()]
    ),
    UnusualStream(
        "below zero",
        [
            raw(TEXT_FRAME),
            finish(),
            chunk({"choices": [], "usage": {"prompt_tokens": -5, "completion_tokens": -2}}),
            done(),
        ],
    ),
    UnusualStream(
        "too large",
        [
            raw(TEXT_FRAME),
            finish(),
            chunk({"choices": [], "usage": {"prompt_tokens": 10**400, "completion_tokens": 0}}),
            done(),
        ],
    ),
    UnusualStream("absent", [raw(WHOLE_STREAM)]),
]

CALLS = [
    UnusualStream(
        "in one piece",
        [
            call_chunk(index=0, id="a", function=function(*TWO_CALLS[0])),
            call_chunk(index=1, id="b", function=function(*TWO_CALLS[1])),
            finish("tool_calls"),
        ],
        "",
        calls=TWO_CALLS,
    ),
    UnusualStream(
        "without indices",
        [
            call_chunk(id="a", function=function(*TWO_CALLS[0])),
            call_chunk(id="b", function=function(*TWO_CALLS[1])),
            finish("tool_calls"),
        ],
        "",
        calls=TWO_CALLS,
    ),
    UnusualStream(
        "without ids or indices",
        [
            call_chunk(function=function(*TWO_CALLS[0])),
            call_chunk(function=function(*TWO_CALLS[1])),
            finish("tool_calls"),
        ],
        "",
        calls=TWO_CALLS,
    ),
    UnusualStream(
        "all of index zero",
        [
            call_chunk(index=0, id="a", function=function(*TWO_CALLS[0])),
            call_chunk(index=0, id="b", function=function(*TWO_CALLS[1])),
            finish("tool_calls"),
        ],
        "",
        calls=TWO_CALLS,
    ),
    UnusualStream(
        "one id for both",
        [
            call_chunk(index=0, id="a", function=function(*TWO_CALLS[0])),
            call_chunk(index=1, id="a", function=function(*TWO_CALLS[1])),
            finish("tool_calls"),
        ],
        "",
        calls=TWO_CALLS,
    ),
    UnusualStream(
        "an id too long",
        [call_chunk(index=0, id="a" * 500, function=function(*TWO_CALLS[0])), finish("tool_calls")],
        "",
        calls=TWO_CALLS[:1],
    ),
    UnusualStream(
        "an index too large",
        [call_chunk(index=10**12, id="a", function=function(*TWO_CALLS[0])), finish("tool_calls")],
        "",
        calls=TWO_CALLS[:1],
    ),
    UnusualStream(
        "interleaved",
        [
            call_chunk(index=0, id="a", function=function("f")),
            call_chunk(index=1, id="b", function=function("g")),
            call_chunk(index=0, function=function("", '{"a":1}')),
            call_chunk(index=1, function=function("", '{"b":2}')),
            finish("tool_calls"),
        ],
        "",
        calls=TWO_CALLS,
    ),
    UnusualStream(
        "a name in pieces",
        [
            call_chunk(index=0, id="a", function=function("lo")),
            call_chunk(index=0, function=function("ok")),
            call_chunk(index=0, function=function("", "{}")),
            finish("tool_calls"),
        ],
        "",
        calls=[("look", "{}")],
    ),
    UnusualStream(
        "a name with every piece",
        [
            call_chunk(index=0, id="a", function=function("f", '{"a"')),
            call_chunk(index=0, id="a", function=function("f", ":1}")),
            finish("tool_calls"),
        ],
        "",
        calls=TWO_CALLS[:1],
    ),
    UnusualStream(
        "a name that comes late",
        [
            call_chunk(index=0, id="a", function={}),
            call_chunk(index=0, function=function("f")),
            call_chunk(index=0, function=function("", "{}")),
            finish("tool_calls"),
        ],
        "",
        calls=[("f", "{}")],
    ),
    UnusualStream(
        "arguments that are no JSON",
        [call(0, "a", "f", "no", " JSON"), finish("tool_calls")],
        "",
        calls=[("f", "no JSON")],
    ),
    UnusualStream(
        "arguments that are an object",
        [
            call_chunk(index=0, id="a", function={"name": "f", "arguments": {"a": 1}}),
            finish("tool_calls"),
        ],
        "",
        calls=TWO_CALLS[:1],
    ),
    UnusualStream(
        "no arguments",
        [call_chunk(index=0, id="a", function={"name": "f"}), finish("tool_calls")],
        "",
        calls=[("f", "{}")],
    ),
    UnusualStream(
        "stop instead of tool_calls",
        [call(0, "a", "f", "{}"), finish("stop")],
        "",
        calls=[("f", "{}")],
    ),
    UnusualStream("no reason at all", [call(0, "a", "f", "{}"), done()], "", calls=[("f", "{}")]),
    UnusualStream(
        "the old function_call",
        [
            delta({"function_call": function("f", '{"a"')}),
            delta({"function_call": function("", ":1}")}),
            finish("function_call"),
        ],
        "",
        calls=TWO_CALLS[:1],
    ),
    UnusualStream(
        "in a body that is no stream",
        [
            status(
                200,
                completion(
                    content=None,
                    tool_calls=[
                        {"id": "a", "function": function(*TWO_CALLS[0])},
                        {"id": "b", "function": function(*TWO_CALLS[1])},
                    ],
                ),
            )
        ],
        "",
        calls=TWO_CALLS,
    ),
    UnusualStream(
        "beside text",
        [text("Hello."), call(0, "a", "f", "{}"), finish("tool_calls")],
        calls=[("f", "{}")],
    ),
]


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(row, id=f"{kind}: {row.name}")
        for kind, rows in (("framing", FRAMING), ("usage", USAGES), ("calls", CALLS))
        for row in rows
    ],
)
async def test_an_unusual_stream_is_understood(
    one_call_stack: Stack, fake: FakeUpstream, case: UnusualStream
) -> None:
    model = fake.script(case.script)
    outcome = await request_three_ways(one_call_stack, model)
    assert outcome.answer.status == 200, outcome.answer.raw
    for response in (outcome.answer.body, outcome.events[-1]["response"], outcome.stored):
        check_response(response)
        assert (response["status"], response["output_text"]) == (case.status, case.text)
        calls = [item for item in response["output"] if item["type"] == "function_call"]
        assert [(item["name"], item["arguments"]) for item in calls] == case.calls
        assert len({item["call_id"] for item in calls}) == len(calls)
        reported = response["usage"]
        assert case.usage == (
            reported
            and (reported["input_tokens"], reported["output_tokens"], reported["total_tokens"])
        )
    await assert_all_closed(fake, model)


# Large streams. The bounds separate buffering a whole stream from passing it through.


@pytest.mark.parametrize(
    ("script", "size"),
    [
        ([text("x" * 2 * MEGABYTE), finish(), done()], 2 * MEGABYTE),
        ([status(200, completion(content="x" * 2 * MEGABYTE))], 2 * MEGABYTE),
        ([raw(b"".join([text_event("x")] * 10_000)), finish(), done()], 10_000),
    ],
    ids=[
        "2 MB in one delta",
        "2 MB in one body",
        "10 000 deltas in one write",
    ],
)
async def test_a_large_answer_arrives_whole(
    shared_stack: Stack, fake: FakeUpstream, script: Script, size: int
) -> None:
    model = fake.script(script)
    outcome, growth = await memory_growth(
        [*shared_stack.workers, *shared_stack.webs],
        request_three_ways(shared_stack, model),
    )
    for response in (outcome.answer.body, outcome.events[-1]["response"], outcome.stored):
        assert (response["status"], len(response["output_text"])) == ("completed", size)
    assert growth < 600 * MEGABYTE, growth
    await assert_all_closed(fake, model)


ENDLESS = [
    _broken("a line without end", TOO_LONG, endless(b"data: " + b"x" * 65536)),
    _broken(
        "a JSON body without end",
        TOO_LONG,
        endless(b" " * 65536, head("content-type: application/json") + b"{"),
    ),
    _broken(
        "one event of endless lines", TOO_LONG, endless((b"data: " + b"x" * 1000 + b"\n") * 64)
    ),
    _broken("a comment without end", TOO_LONG, endless(b"x" * 65536, head(SSE) + b": ")),
    _broken(
        "a gzip bomb", COMPRESSED, status(200, gzip_bomb(TEXT_FRAME), {"content-encoding": "gzip"})
    ),
    _cut(
        "a refusal without end",
        f"{_status_only(500)[:-1]}: {'x' * 500}",
        endless(b"x" * 65536, head(status="500 X")),
    ),
    _cut(
        "a refusal that is a gzip bomb",
        _status_only(500),
        status(500, gzip_bomb(b'{"error": {"message": "'), {"content-encoding": "gzip"}),
    ),
    _broken("headers without end", NO_HTTP, endless(b"x-a: y\r\n" * 8000, b"HTTP/1.1 200 OK\r\n")),
]
ENDLESS_WITHOUT_TOKENS = [
    FaultCase(
        "comments without end", [endless(b": x\n\n" * 8000)], 504, "server_error", NO_FIRST_TOKEN
    ),
    FaultCase(
        "web pages without end",
        [endless(b"<p>x</p>\n" * 8000)],
        504,
        "server_error",
        NO_FIRST_TOKEN,
    ),
]


@cases(ENDLESS)
async def test_an_endless_stream_is_cut_off_in_bounded_memory(
    one_call_stack: Stack, fault: FaultCase
) -> None:
    await assert_fails_in_bounded_memory(one_call_stack, fault)


@cases(ENDLESS_WITHOUT_TOKENS, "web pages without end")
async def test_an_endless_stream_without_tokens_ends_at_the_limit_in_bounded_memory(
    short_limits_stack: Stack, fault: FaultCase
) -> None:
    await assert_fails_in_bounded_memory(short_limits_stack, fault)


async def assert_fails_in_bounded_memory(stack: Stack, fault: FaultCase) -> None:
    """Checks a fault that sends without end."""
    _, growth = await memory_growth(stack.workers, assert_fails(stack, fault, flood=True))
    assert growth < 200 * MEGABYTE, growth


async def test_a_model_with_too_much_output_is_cut_off_and_its_output_kept(
    one_call_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([endless(text_event("x" * 60_000))])
    outcome, growth = await memory_growth(
        [*one_call_stack.workers, *one_call_stack.webs],
        request_three_ways(one_call_stack, model),
    )
    assert outcome.answer.status == 200
    for response in (outcome.answer.body, outcome.events[-1]["response"], outcome.stored):
        assert response["error"] == {
            "code": "server_error",
            "message": f"The model's output exceeded the limit of {OUTPUT} bytes in one turn.",
        }
        assert 0.9 * OUTPUT < len(response["output_text"]) <= OUTPUT
    assert growth < 600 * MEGABYTE, growth
    await assert_all_closed(fake, model)


async def test_after_all_faults_no_process_has_died_and_no_log_has_a_secret(
    one_call_stack: Stack, short_limits_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(reply("as ever"))
    for running in (one_call_stack, short_limits_stack):
        assert (await request_three_ways(running, model)).stored["output_text"] == "as ever"
        assert len(running.started) == 2, "a process was started again"
        for process in running.started:
            assert SECRET not in process.log.read_text(errors="replace")
