"""Every fault of an upstream, met in all three ways: the right ending, within its limit, in words without internals (design §4.9, §8).

tests/integration/upstream/test_upstream_faults.py has the everyday ones, with the SDK's retries; here the upstream is asked once.
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
    call,
    chunk,
    delta,
    done,
    drop,
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
)

FIRST_TOKEN, TOKEN_GAP, TURN, OUTPUT = 1.0, 0.8, 4.0, 6_000_000
SHORT = {
    "BACKBURNER_UPSTREAM__MAX_RETRIES": "0",
    "BACKBURNER_LIMITS__FIRST_TOKEN": str(FIRST_TOKEN),
    "BACKBURNER_LIMITS__TOKEN_GAP": str(TOKEN_GAP),
    "BACKBURNER_LIMITS__TURN": str(TURN),
    "BACKBURNER_LIMITS__OUTPUT": str(OUTPUT),
}
MEGABYTE = 1_000_000
HELLO, STOP, END = (
    text_event("Hello."),
    b"data: " + chunk_json({}, finish_reason="stop") + b"\n\n",
    b"data: [DONE]\n\n",
)
ORDINARY = HELLO + STOP + END


@pytest.fixture(scope="module")
async def short(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
) -> AsyncIterator[Stack]:
    """A deployment with short limits that asks its upstream once."""
    async with stack(
        tmp_path_factory.mktemp("short"), database_server, suite_settings, fake, settings=SHORT
    ) as one:
        yield one
    RUNNING_STACKS.remove(one)


def cases(rows: list[FaultCase]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("fault", [pytest.param(row, id=row.name) for row in rows])


# The upstream refuses.

CREDENTIAL = "The upstream refused this server's credential."
WORDS = "The upstream refused the request: The fake upstream says {}."

NOWHERE = "The upstream has nothing at /chat/completions (HTTP {0}): its 'base_url' or its 'api' may be wrong. It said: The fake upstream says {0}."


def _refusing(code: int, shown: int, error: str, message: str, **more: Any) -> FaultCase:
    return FaultCase(str(code), [status(code)], shown, error, message.format(code), **more)


def _wordless(code: int) -> str:
    return f"The upstream answered with HTTP {code}."


LIMITED = {"envelope_code": "rate_limit_exceeded"}
REFUSALS = [
    _refusing(400, 400, "invalid_prompt", WORDS),
    _refusing(401, 401, "server_error", CREDENTIAL),
    _refusing(402, 502, "server_error", WORDS),
    _refusing(403, 403, "server_error", CREDENTIAL),
    _refusing(404, 404, "invalid_prompt", NOWHERE),
    _refusing(405, 502, "server_error", NOWHERE),
    _refusing(408, 408, "server_error", WORDS),
    _refusing(409, 502, "server_error", WORDS),
    _refusing(413, 413, "invalid_prompt", WORDS),
    _refusing(422, 422, "invalid_prompt", WORDS),
    _refusing(429, 429, "rate_limit_exceeded", WORDS, **LIMITED),
    *(_refusing(code, 502, "server_error", _wordless(code)) for code in (500, 501, 502, 503, 504, 529, 599)),
    FaultCase(
        "429 with seconds", [status(429, headers={"retry-after": "7"})], 429, "rate_limit_exceeded", WORDS.format(429),
        retry_after="7", envelope_code="rate_limit_exceeded",
    ),
    *(
        FaultCase(f"429 with {odd!r}", [status(429, headers={"retry-after": odd})], 429, "rate_limit_exceeded", WORDS.format(429), **LIMITED)
        for odd in ("soon", "-1", "1.5", "9" * 30, "Wed, 21 Oct 2099 07:28:00 GMT")
    ),
    FaultCase("429 with zero", [status(429, headers={"retry-after": "0"})], 429, "rate_limit_exceeded", WORDS.format(429), retry_after="1", **LIMITED),
    FaultCase("503 with seconds", [status(503, headers={"retry-after": "7"})], 502, "server_error", _wordless(503), retry_after="7"),
]  # fmt: skip

ABOUT_MODEL = {
    "error": {"message": "No such model.", "type": "x", "param": "model", "code": "model_not_found"}
}
REFUSING_BODIES = [
    FaultCase("a web page", [status(400, b"<html>no</html>", {"content-type": "text/html"})], 400, "invalid_prompt", _wordless(400)),
    FaultCase("nothing", [status(400, b"")], 400, "invalid_prompt", _wordless(400)),
    FaultCase("half of its JSON", [status(400, b'{"error": {"message": "x')], 400, "invalid_prompt", _wordless(400)),
    FaultCase("JSON a thousand deep", [status(400, b'{"error":' * 1000 + b"1" + b"}" * 1000)], 400, "invalid_prompt", _wordless(400)),
    FaultCase("a list", [status(422, b'[{"error": {"message": "x"}}]')], 422, "invalid_prompt", _wordless(422)),
    FaultCase("a word", [status(422, b'"no"')], 422, "invalid_prompt", _wordless(422)),
    FaultCase("an error that is a word", [status(400, {"error": "too long"})], 400, "invalid_prompt", _wordless(400)),
    FaultCase("a number for words", [status(400, {"error": {"message": 7}})], 400, "invalid_prompt", _wordless(400)),
    FaultCase("detail, as FastAPI", [status(422, {"detail": "no such field"})], 422, "invalid_prompt", "The upstream refused the request: no such field"),
    FaultCase("our credential", [status(400, {"error": {"message": f"Bad key {SECRET}!"}})], 400, "invalid_prompt", "The upstream refused the request: Bad key …!"),
    FaultCase("a megabyte of words", [status(400, {"error": {"message": "x" * MEGABYTE}})], 400, "invalid_prompt", _wordless(400)),
    FaultCase("many words", [status(400, {"error": {"message": "x" * 9000}})], 400, "invalid_prompt", f"The upstream refused the request: {'x' * 500}"),
    *(
        FaultCase(f"text in {codec}", [status(400, {"error": {"message": "no"}}, {"content-type": f"application/json; charset={codec}"})], 400,
                "invalid_prompt", "The upstream refused the request: no")
        for codec in ("hex", "zlib", "rot13", "undefined", "idna", "utf-7", "nonsense", "\xff")
    ),
    FaultCase("a model it does not have", [status(404, ABOUT_MODEL)], 400, "invalid_prompt", "The requested model '{model}' does not exist.", "model_not_found"),
    FaultCase("nothing but a status", [raw_bytes(head("content-length: 0", status="500 "))], 502, "server_error", _wordless(500)),
    FaultCase("no status that there is", [raw_bytes(head("content-length: 0", status="999 X"))], 502, "server_error", _wordless(999)),
]  # fmt: skip


@cases(REFUSALS)
async def test_a_refusal_becomes_its_class_of_error(short: Stack, fault: FaultCase) -> None:
    await assert_fails(short, fault)


@cases(REFUSING_BODIES)
async def test_whatever_a_refusal_holds_does_no_harm(
    short: Stack, fake: FakeUpstream, fault: FaultCase
) -> None:
    if "{model}" in fault.message:
        model = fake.script(fault.script)
        answer = (await request_three_ways(short, model)).answer
        assert (answer.status, answer.error["code"], answer.error["param"]) == (
            400,
            "model_not_found",
            "model",
        )
        assert answer.error["message"] == fault.message.format(model=model)
    else:
        await assert_fails(short, fault)


@pytest.mark.parametrize("code", [300, 301, 302, 303, 307, 308])
async def test_a_redirect_is_never_followed_and_our_credential_goes_nowhere(
    short: Stack, fake: FakeUpstream, code: int
) -> None:
    async with FakeUpstream() as elsewhere:
        message = f"The upstream answered with an unexpected redirect (HTTP {code})."
        for place in (
            f"{elsewhere.base_url}/chat/completions",
            f"{fake.base_url}/chat/completions",
            "/v1/chat/completions",
            "http://[",
            "",
        ):
            script = [status(code, b"", {"location": place})]
            await assert_fails(short, FaultCase(place, script, 502, "server_error", message))
        assert elsewhere.requests == []


# The upstream hangs up, or talks nonsense.

UNREACHABLE = "The upstream could not be reached, or hung up before it answered."
NO_HTTP = "The upstream sent something that is no HTTP answer."
BROKEN_OFF = "The connection to the upstream broke off."
NO_JSON = "The upstream sent a chunk that is not JSON."
NO_OBJECT = "The upstream sent a chunk that is not a JSON object."
TOO_EARLY = "The upstream ended its stream before the model had finished."
COMPRESSED = "The upstream sent a compressed stream although none was asked for."
TOO_LONG = "The upstream sent an event larger than 16777216 bytes."
SSE = "content-type: text/event-stream"
RANDOM = random.Random(3).randbytes(20_000)


def _bad(name: str, message: str, *script: Step) -> FaultCase:
    return FaultCase(name, script, 502, "server_error", message)


NONSENSE = [
    _bad("a reset before the first byte", UNREACHABLE, reset()),
    _bad("an end before the first byte", UNREACHABLE, drop()),
    _bad("a reset in the head", UNREACHABLE, raw_bytes(b"HTTP/1.1 200 OK\r\nconte"), reset()),
    _bad("an end in the head", UNREACHABLE, raw_bytes(b"HTTP/1.1 200 OK\r\nconte"), drop()),
    _bad("a reset after the head", BROKEN_OFF, raw_bytes(head(SSE, "transfer-encoding: chunked")), reset()),
    _bad("an end after the head", BROKEN_OFF, raw_bytes(head(SSE, "transfer-encoding: chunked")), drop()),
    _bad("a reset in the first frame", BROKEN_OFF, raw(b'data: {"choices":[{"del'), reset()),
    _bad("an end in the first frame", BROKEN_OFF, raw(b'data: {"choices":[{"del'), drop()),
    _bad("a body shorter than announced", BROKEN_OFF, raw_bytes(head(SSE, "content-length: 1000") + b": x\n\n"), drop()),
    _bad("no HTTP", NO_HTTP, raw_bytes(b"220 mail.example ESMTP\r\n"), drop()),
    _bad("random bytes for a head", NO_HTTP, raw_bytes(RANDOM), drop()),
    _bad("HTTP/2", NO_HTTP, raw_bytes(b"\x00\x00\x12\x04\x00\x00\x00\x00\x00"), drop()),
    _bad("a length below zero", NO_HTTP, raw_bytes(head(SSE, "content-length: -1")), drop()),
    _bad("broken chunk sizes", NO_HTTP, raw_bytes(head(SSE, "transfer-encoding: chunked") + b"5\r\n: x\n\n\r\nZZZ\r\n"), hang()),
    _bad("a header line without end", NO_HTTP, endless(b"x" * 65536, b"HTTP/1.1 200 OK\r\nx: ")),
    _bad("a reason that is no text", NO_HTTP, raw_bytes(head(SSE, f"content-length: {len(ORDINARY)}", status="200 \xff\xfe") + ORDINARY)),
    _bad("a web page", TOO_EARLY, status(200, b"<html>\n<p>hello</p>\n</html>\n", {"content-type": "text/html"})),
    _bad("a web page as a stream", TOO_EARLY, raw(b"<!doctype html>\n<html>\n\n</html>")),
    _bad("an empty answer", TOO_EARLY, status(200, b"")),
    _bad("no content", TOO_EARLY, raw_bytes(head(SSE, status="204 No Content"))),
    _bad("[DONE] at once", TOO_EARLY, done()),
    _bad("comments and an end", TOO_EARLY, raw(b": a\n\n: b\n\n")),
    _bad("a finished role and nothing else", TOO_EARLY, delta({"role": "assistant", "content": ""}), done()),
    _bad("JSON cut off instead of a stream", NO_JSON, status(200, json.dumps(completion(content="x")).encode()[:-10])),
    _bad("JSON cut off in a frame", NO_JSON, raw(b'data: {"choices":[\n\n')),
    _bad("JSON cut off at the end", TOO_EARLY, raw(b'data: {"choices":[')),
    _bad("words for JSON", NO_JSON, raw(b"data: hello\n\n")),
    _bad("a list for JSON", NO_OBJECT, raw(b"data: [1]\n\n")),
    _bad("null for JSON", NO_OBJECT, raw(b"data: null\n\n")),
    _bad("JSON without end in depth", NO_JSON, raw(b"data: " + b'{"a":' * 100_000 + b"\n\n")),
    _bad("random bytes", TOO_EARLY, raw(RANDOM.replace(b"data:", b"")), raw(b"\n\n")),
    _bad("random bytes as data", NO_JSON, raw(b"data: " + RANDOM.replace(b"\n", b"").replace(b"\r", b"") + b"\n\n")),
    _bad("a compressed stream", COMPRESSED, status(200, gzip_bomb(b"data: "), {"content-encoding": "gzip"})),
    _bad("a compression nobody knows", COMPRESSED, status(200, b"x", {"content-encoding": "zstd, br"})),
    _bad("a call without a name", "The upstream sent a function call without a name.", delta({"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": "{}"}}]}), finish("tool_calls"), done()),
    _bad("a reason that is an error", "The upstream reported an error while it was generating.", finish("error"), done()),
]  # fmt: skip

OVERLOADED = "The upstream reported an error: overloaded"
THROWN = [
    FaultCase("an error chunk", [chunk({"error": {"message": "overloaded", "code": 500}})], 502, "server_error", OVERLOADED),
    FaultCase("an error chunk of 429", [chunk({"error": {"message": "overloaded", "code": 429}})], 429, "rate_limit_exceeded", OVERLOADED),
    FaultCase("an error chunk of 400", [chunk({"error": {"message": "overloaded", "code": 400}})], 400, "invalid_prompt", OVERLOADED),
    FaultCase("an error of a word", [chunk({"error": "overloaded"})], 502, "server_error", OVERLOADED),
    FaultCase("an error in a choice", [delta({}, error={"message": "overloaded", "code": 502})], 502, "server_error", OVERLOADED),
    FaultCase("vLLM's old shape", [chunk({"object": "error", "message": "overloaded", "code": 400})], 400, "invalid_prompt", OVERLOADED),
    FaultCase("an event of its own", [raw(b'event: error\ndata: {"error": {"message": "overloaded"}}\n\n')], 502, "server_error", OVERLOADED),
    FaultCase("a bare line", [raw(b': x\n\n{"error": {"message": "overloaded"}}\n')], 502, "server_error", OVERLOADED),
    FaultCase("a body instead of a stream", [status(200, {"error": {"message": "overloaded"}})], 502, "server_error", OVERLOADED),
    FaultCase("our credential", [chunk({"error": {"message": f"key {SECRET}", "code": 400}})], 400, "invalid_prompt", "The upstream reported an error: key …"),
    FaultCase("about our credential", [chunk({"error": {"message": "Bad key sk-1", "code": 401}})], 401, "server_error", "The upstream reported an error: it refused this server's credential"),
]  # fmt: skip


@cases(NONSENSE)
async def test_nonsense_fails_the_response(short: Stack, fault: FaultCase) -> None:
    await assert_fails(short, fault)


@cases(THROWN)
async def test_an_error_under_http_200_fails_the_response(short: Stack, fault: FaultCase) -> None:
    await assert_fails(short, fault)


BREAKS: list[tuple[str, Script, str, str]] = [
    ("a reset in a frame", [raw(b'data: {"choices":[{"del'), reset()], "server_error", BROKEN_OFF),
    ("an end in a frame", [raw(b'data: {"choices":[{"del'), drop()], "server_error", BROKEN_OFF),
    ("a proper end in a frame", [raw(b'data: {"choices":[{"del')], "server_error", TOO_EARLY),
    ("no JSON", [raw(b"data: x\n\n")], "server_error", NO_JSON),
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
        "silence",
        [hang()],
        "server_error",
        f"The upstream was silent for longer than the limit of {TOKEN_GAP:g} s (token_gap).",
    ),
    (
        "a frame without end",
        [raw(b"data: "), separate_reads(*[b"x" * 65536] * 257)],
        "server_error",
        TOO_LONG,
    ),
]


@pytest.mark.parametrize(
    ("script", "code", "message"), [pytest.param(*row[1:], id=row[0]) for row in BREAKS]
)
@pytest.mark.parametrize("opened", ["text", "thought", "call"])
async def test_what_breaks_after_the_first_word_keeps_what_was_said(
    short: Stack, fake: FakeUpstream, script: Script, code: str, message: str, opened: str
) -> None:
    begun = {
        "text": text("so ", "far"),
        "thought": reasoning("so ", "far"),
        "call": call(0, "call_1", "f", "so ", "far"),
    }
    model = fake.script([begun[opened], *script])
    met = await request_three_ways(short, model)
    assert met.answer.status == 200, met.answer.raw
    for response in (met.answer.body, met.events[-1]["response"], met.stored):
        check_response(response)
        assert (response["status"], response["error"]) == (
            "failed",
            {"code": code, "message": message},
        )
        [item] = response["output"]
        assert item["status"] == "incomplete"
        assert "so far" in json.dumps(item)
    assert_no_internals(met, fake)
    await assert_all_closed(fake, model)


# The upstream is silent, or slow: our limits.


def _drip(data: bytes) -> Step:
    """The same bytes ten times a second, for ever."""

    async def step(exchange: Exchange) -> None:
        while True:
            await exchange.write(data)
            await asyncio.sleep(0.1)

    return step


FIRST = f"The upstream was silent for longer than the limit of {FIRST_TOKEN:g} s (first_token)."
STALLS = [
    FaultCase("nothing at all", [hang()], 504, "server_error", FIRST),
    FaultCase("half a head", [raw_bytes(b"HTTP/1.1 200 OK\r\nconte"), hang()], 504, "server_error", FIRST),
    FaultCase("informational answers only", [raw_bytes(b"HTTP/1.1 100 Continue\r\n\r\n" * 50), hang()], 504, "server_error", FIRST),
    FaultCase("a head and nothing else", [raw_bytes(head(SSE, "transfer-encoding: chunked")), hang()], 504, "server_error", FIRST),
    FaultCase("half a frame", [raw(b'data: {"choices":'), hang()], 504, "server_error", FIRST),
    FaultCase("keep-alive comments only", [_drip(b": keep-alive\n\n")], 504, "server_error", FIRST),
    FaultCase("a comment that never ends", [_drip(b": ")], 504, "server_error", FIRST),
    FaultCase("empty lines only", [_drip(b"\n")], 504, "server_error", FIRST),
    FaultCase("events without data only", [_drip(b"event: ping\n\n")], 504, "server_error", FIRST),
    FaultCase("chunks without a word only", [_drip(b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n')], 504, "server_error", FIRST),
    FaultCase("JSON that never ends", [raw(b'{"choices":'), _drip(b" ")], 504, "server_error", FIRST),
    FaultCase("half a refusal", [raw_bytes(head("content-length: 1000", status="500 X") + b"{"), hang()], 504, "server_error", FIRST),
]  # fmt: skip


@cases(STALLS)
async def test_an_upstream_without_a_first_word_is_left_when_its_time_is_up(
    short: Stack, fault: FaultCase
) -> None:
    began = time.monotonic()
    await assert_fails(short, fault)
    assert FIRST_TOKEN <= time.monotonic() - began < FIRST_TOKEN + 3


ALIVE = {
    "comments": b": keep-alive\n\n",
    "chunks without a word": b'data: {"choices":[{"index":0,"delta":{}}]}\n\n',
    "usage again and again": b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}\n\n',
}


@pytest.mark.parametrize("kept", ALIVE)
async def test_what_is_no_word_does_not_extend_the_gap_between_two(
    short: Stack, fake: FakeUpstream, kept: str
) -> None:
    model = fake.script([text("so far"), _drip(ALIVE[kept])])
    began = time.monotonic()
    met = await request_three_ways(short, model)
    assert TOKEN_GAP <= time.monotonic() - began < TOKEN_GAP + 3
    assert (
        met.stored["error"]["message"]
        == f"The upstream was silent for longer than the limit of {TOKEN_GAP:g} s (token_gap)."
    )
    assert met.stored["output_text"] == "so far"
    await assert_all_closed(fake, model)


async def test_a_slow_upstream_that_keeps_to_the_limits_is_heard_out(
    short: Stack, fake: FakeUpstream
) -> None:
    pause = TOKEN_GAP / 2
    model = fake.script(
        [text("one ", "two ", "three ", "four", gap=pause), finish(), usage(), done()]
    )
    assert (await request_three_ways(short, model)).stored["output_text"] == "one two three four"


async def test_a_turn_that_never_ends_is_ended(short: Stack, fake: FakeUpstream) -> None:
    model = fake.script([_drip(text_event("x"))])
    began = time.monotonic()
    met = await request_three_ways(short, model)
    assert TURN <= time.monotonic() - began < TURN + 3
    for response in (met.answer.body, met.events[-1]["response"], met.stored):
        assert response["error"] == {
            "code": "server_error",
            "message": f"The model's turn took longer than the limit of {TURN:g} s.",
        }
        assert response["output_text"].startswith("xxxx")
    await assert_all_closed(fake, model)


async def test_the_wall_clock_and_the_wait_in_the_queue_have_their_limits(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    settings = {
        **SHORT_LEASES,
        "BACKBURNER_LIMITS__WALL_CLOCK": "3",
        "BACKBURNER_LIMITS__QUEUE_WAIT": "1",
    }
    late, waited = (
        "The response did not finish within the time it is given.",
        "The response waited in the queue for longer than it may.",
    )
    async with private_stack(streams=1, settings=settings) as one:
        api = one.api()
        model, never, warm = (
            fake.script([_drip(text_event("x"))]),
            fake.script(reply("never")),
            fake.script(reply("warm")),
        )

        async def hears_its_bells() -> bool:
            return bool(
                (await api.wait_for_end(await api.create_background(warm)))["status"] == "completed"
            )

        await until(
            hears_its_bells, 20
        )  # a worker counts a moment before its consumer listens, and here a second's wait is too long
        running = await api.create_background(model)
        await until(lambda: fake.requests_for(model))
        async with api.post_stream(model) as busy:  # the slot that is kept for those who wait
            await busy.until("response.output_text.delta")
            queued = await api.create_background(never)
            refused = await api.call("POST", "/responses", {"model": never, "input": "Hi."})
            assert (refused.status, refused.error["message"]) == (504, waited)
            assert refused.headers["x-should-retry"] == "false"
            assert (await api.wait_for_end(queued))["error"] == {
                "code": "server_error",
                "message": waited,
            }
            await busy.to_end()
        for ended in (busy.final, await api.wait_for_end(running)):
            assert (ended["status"], ended["error"]) == (
                "failed",
                {"code": "server_error", "message": late},
            )
            assert ended["output_text"].startswith("xxxx")
        assert fake.requests_for(never) == []
        await assert_all_closed(fake, model, count=2)
        silent = fake.script([hang()])
        answer = await api.call("POST", "/responses", {"model": silent, "input": "Hi."})
        assert (answer.status, answer.error["message"]) == (504, late)
        await assert_all_closed(fake, silent, count=1)


# The upstream cannot be reached, or sends us elsewhere.


async def test_nobody_listens_or_only_to_send_us_elsewhere(private_stack: PrivateStack) -> None:
    port = free_port()
    settings = {
        "BACKBURNER_UPSTREAM__BASE_URL": f"http://127.0.0.1:{port}/v1",
        "BACKBURNER_UPSTREAM__MAX_RETRIES": "0",
    }
    async with private_stack(settings=settings) as one, FakeUpstream() as elsewhere:
        met = await request_three_ways(one, "any")
        assert (met.answer.status, met.answer.error["message"]) == (502, UNREACHABLE)
        assert met.answer.headers["x-should-retry"] == "false"
        assert (
            met.stored["error"]
            == met.events[-1]["response"]["error"]
            == {"code": "server_error", "message": UNREACHABLE}
        )
        assert str(port) not in "".join(met.texts())
        listing = await one.api().call("GET", "/models")
        assert (listing.status, listing.error["message"]) == (
            502,
            "The upstream's list of models could not be read.",
        )

        async def send_away(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(
                head(f"location: {elsewhere.base_url}/models", "content-length: 0", status="307 X")
            )
            writer.close()

        async with await asyncio.start_server(send_away, "127.0.0.1", port):
            listing = await one.api().call("GET", "/models")
            assert listing.status == 502
            answer = await one.api().call("POST", "/responses", {"model": "any", "input": "Hi."})
            assert (answer.status, answer.error["message"]) == (
                502,
                "The upstream answered with an unexpected redirect (HTTP 307).",
            )
        assert elsewhere.requests == []


# What is odd and right all the same.


@dataclass(frozen=True, slots=True)
class Odd:
    """An answer that breaks with custom and can be understood."""

    name: str
    script: Script
    text: str = "Hello."
    usage: tuple[int, int, int] | None = None
    """input, output and total tokens"""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """names and arguments"""
    status: str = "completed"


def counted(prompt: int, completion: int) -> JSON:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }


def piece(**fields: Any) -> Step:
    """A chunk with one piece of one call."""
    return delta({"tool_calls": [fields]})


def _named(name: str = "", arguments: str = "") -> JSON:
    return {"name": name, "arguments": arguments}


TWO = [("f", '{"a":1}'), ("g", '{"b":2}')]

FRAMING = [
    Odd("CRLF", [raw(ORDINARY.replace(b"\n", b"\r\n"))]),
    Odd("CR", [raw(ORDINARY.replace(b"\n", b"\r"))]),
    Odd("a byte at a time", [separate_reads(*(bytes([byte]) for byte in ORDINARY))]),
    Odd("CRLF a byte at a time", [separate_reads(*(bytes([byte]) for byte in ORDINARY.replace(b"\n", b"\r\n")))]),
    Odd("comments everywhere", [raw(b": a\n\n" + HELLO + b": b\n: c\n\n" + STOP + b": d\n\n" + END)]),
    Odd("data on several lines", [raw(HELLO.replace(b', "choices"', b',\ndata: "choices"') + STOP + END)]),
    Odd("no space after data", [raw(ORDINARY.replace(b"data: ", b"data:"))]),
    Odd("a byte order mark", [raw(b"\xef\xbb\xbf" + ORDINARY)]),
    Odd("other fields", [raw(b"id: 1\nevent: x\nretry: 1\n" + ORDINARY)]),
    Odd("another content type", [status(200, ORDINARY, {"content-type": "text/plain"})]),
    Odd("a content length", [status(200, ORDINARY, {"content-type": "text/event-stream"})]),
    Odd("no length and no chunks", [raw_bytes(head(SSE, "connection: close") + ORDINARY), drop()]),
    Odd("more after [DONE]", [raw(ORDINARY + text_event("more") + b"data: nonsense\n\n")]),
    Odd("no end after [DONE]", [raw(ORDINARY), hang()]),
    Odd("no [DONE]", [raw(HELLO + STOP)]),
    Odd("no [DONE] and no last line", [raw((HELLO + STOP).rstrip(b"\n"))]),
    Odd("no [DONE] and no end", [raw(HELLO + STOP), hang()]),
    Odd("no [DONE] and a reset", [raw(HELLO + STOP), reset()]),
    Odd("no [DONE] and an end in a frame", [raw(HELLO + STOP + b"data: {"), drop()]),
    Odd("no finish_reason", [raw(HELLO + END)]),
    Odd("an empty finish_reason", [raw(text_event("Hello.", finish_reason="") + END)]),
    Odd("a word of the vendor's", [raw(HELLO + STOP.replace(b'"stop"', b'"eos"') + END)]),
    Odd("the reason beside the words", [raw(text_event("Hello.", finish_reason="stop") + END)]),
    Odd("JSON instead of a stream", [status(200, completion(content="Hello."))]),
    Odd("pretty JSON instead of a stream", [status(200, json.dumps(completion(content="Hello."), indent=2).encode())]),
    Odd("JSON as a stream", [raw(json.dumps(completion(content="Hello.")).encode())]),
    Odd("a second choice", [chunk({"choices": [{"index": 1, "delta": {"content": "No."}}]}), raw(ORDINARY)]),
    Odd("content in parts", [delta({"content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}]}), raw(STOP + END)]),
    Odd("words cut in a character", [separate_reads(*(bytes([byte]) for byte in text_event("é").replace(b"\\u00e9", "é".encode()))), raw(STOP + END)], "é"),
    Odd("the length limit", [raw(HELLO), finish("length"), done()], status="incomplete"),
    Odd("the content filter", [raw(HELLO), finish("content_filter"), done()], status="incomplete"),
    Odd("an error after the end", [raw(ORDINARY), chunk({"error": {"message": "late"}})]),
]  # fmt: skip

COUNTS = [
    Odd("on a chunk of its own", [raw(HELLO), finish(), usage(5, 2), done()], usage=(5, 2, 7)),
    Odd("before the words", [usage(5, 2), raw(ORDINARY)], usage=(5, 2, 7)),
    Odd("beside the reason", [raw(HELLO), chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": counted(5, 2)}), done()], usage=(5, 2, 7)),
    Odd("on every chunk, the last counts", [*(chunk({"choices": [{"index": 0, "delta": {"content": "o"}}], "usage": counted(5, n)}) for n in (1, 2)), finish(), done()], "oo", (5, 2, 7)),
    Odd("in the choice", [raw(HELLO), chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": counted(5, 2)}]}), done()], usage=(5, 2, 7)),
    Odd("in x_groq", [raw(HELLO), chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "x_groq": {"usage": counted(5, 2)}}), done()], usage=(5, 2, 7)),
    Odd("in a body that is no stream", [status(200, {**completion(content="Hello."), "usage": counted(5, 2)})], usage=(5, 2, 7)),
    Odd("without a total", [raw(HELLO), finish(), chunk({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 2}}), done()], usage=(5, 2, 7)),
    Odd("in words", [raw(HELLO), finish(), chunk({"choices": [], "usage": {"prompt_tokens": "5", "completion_tokens": "2"}}), done()], usage=(5, 2, 7)),
    Odd("null", [raw(HELLO), finish(), chunk({"choices": [], "usage": None}), done()]),
    Odd("empty", [raw(HELLO), finish(), chunk({"choices": [], "usage": {}}), done()]),
    Odd("below zero", [raw(HELLO), finish(), chunk({"choices": [], "usage": {"prompt_tokens": -5, "completion_tokens": -2}}), done()], usage=(0, 0, 0)),
    Odd("beyond every count", [raw(HELLO), finish(), chunk({"choices": [], "usage": {"prompt_tokens": 10**400, "completion_tokens": 0}}), done()], usage=(2**53, 0, 2**53)),
    Odd("nowhere", [raw(ORDINARY)]),
]  # fmt: skip

CALLS = [
    Odd("in one piece", [piece(index=0, id="a", function=_named(*TWO[0])), piece(index=1, id="b", function=_named(*TWO[1])), finish("tool_calls")], "", calls=TWO),
    Odd("without indices", [piece(id="a", function=_named(*TWO[0])), piece(id="b", function=_named(*TWO[1])), finish("tool_calls")], "", calls=TWO),
    Odd("without ids or indices", [piece(function=_named(*TWO[0])), piece(function=_named(*TWO[1])), finish("tool_calls")], "", calls=TWO),
    Odd("all of index zero", [piece(index=0, id="a", function=_named(*TWO[0])), piece(index=0, id="b", function=_named(*TWO[1])), finish("tool_calls")], "", calls=TWO),
    Odd("one id for both", [piece(index=0, id="a", function=_named(*TWO[0])), piece(index=1, id="a", function=_named(*TWO[1])), finish("tool_calls")], "", calls=TWO),
    Odd("an id too long", [piece(index=0, id="a" * 500, function=_named(*TWO[0])), finish("tool_calls")], "", calls=TWO[:1]),
    Odd("an index too large", [piece(index=10**12, id="a", function=_named(*TWO[0])), finish("tool_calls")], "", calls=TWO[:1]),
    Odd("interleaved", [piece(index=0, id="a", function=_named("f")), piece(index=1, id="b", function=_named("g")), piece(index=0, function=_named("", '{"a":1}')), piece(index=1, function=_named("", '{"b":2}')), finish("tool_calls")], "", calls=TWO),
    Odd("a name in pieces", [piece(index=0, id="a", function=_named("lo")), piece(index=0, function=_named("ok")), piece(index=0, function=_named("", "{}")), finish("tool_calls")], "", calls=[("look", "{}")]),
    Odd("a name with every piece", [piece(index=0, id="a", function=_named("f", '{"a"')), piece(index=0, id="a", function=_named("f", ":1}")), finish("tool_calls")], "", calls=TWO[:1]),
    Odd("a name that comes late", [piece(index=0, id="a", function={}), piece(index=0, function=_named("f")), piece(index=0, function=_named("", "{}")), finish("tool_calls")], "", calls=[("f", "{}")]),
    Odd("arguments that are no JSON", [call(0, "a", "f", "no", " JSON"), finish("tool_calls")], "", calls=[("f", "no JSON")]),
    Odd("arguments that are an object", [piece(index=0, id="a", function={"name": "f", "arguments": {"a": 1}}), finish("tool_calls")], "", calls=TWO[:1]),
    Odd("no arguments", [piece(index=0, id="a", function={"name": "f"}), finish("tool_calls")], "", calls=[("f", "{}")]),
    Odd("stop instead of tool_calls", [call(0, "a", "f", "{}"), finish("stop")], "", calls=[("f", "{}")]),
    Odd("no reason at all", [call(0, "a", "f", "{}"), done()], "", calls=[("f", "{}")]),
    Odd("the old function_call", [delta({"function_call": _named("f", '{"a"')}), delta({"function_call": _named("", ":1}")}), finish("function_call")], "", calls=TWO[:1]),
    Odd("in a body that is no stream", [status(200, completion(content=None, tool_calls=[{"id": "a", "function": _named(*TWO[0])}, {"id": "b", "function": _named(*TWO[1])}]))], "", calls=TWO),
    Odd("beside words", [text("Hello."), call(0, "a", "f", "{}"), finish("tool_calls")], calls=[("f", "{}")]),
]  # fmt: skip


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(row, id=f"{kind}: {row.name}")
        for kind, rows in (("framing", FRAMING), ("usage", COUNTS), ("calls", CALLS))
        for row in rows
    ],
)
async def test_what_is_odd_is_understood(short: Stack, fake: FakeUpstream, odd: Odd) -> None:
    model = fake.script(odd.script)
    met = await request_three_ways(short, model)
    assert met.answer.status == 200, met.answer.raw
    for response in (met.answer.body, met.events[-1]["response"], met.stored):
        check_response(response)
        assert (response["status"], response["output_text"]) == (odd.status, odd.text)
        asked = [item for item in response["output"] if item["type"] == "function_call"]
        assert [(item["name"], item["arguments"]) for item in asked] == odd.calls
        assert len({item["call_id"] for item in asked}) == len(asked)
        told = response["usage"]
        assert odd.usage == (
            told and (told["input_tokens"], told["output_tokens"], told["total_tokens"])
        )
    await assert_all_closed(fake, model)


# Much of it. Bounds are generous: they tell what is kept from what passes through.


@pytest.mark.parametrize(
    ("script", "size"),
    [
        ([text("x" * 5 * MEGABYTE), finish(), done()], 5 * MEGABYTE),
        ([text(*["x" * 50_000] * 100), finish(), done()], 5 * MEGABYTE),
        ([text(*"x" * 10_000), finish(), done()], 10_000),
        ([status(200, completion(content="x" * 5 * MEGABYTE))], 5 * MEGABYTE),
        ([raw(b"".join([text_event("x")] * 10_000)), finish(), done()], 10_000),
    ],
    ids=[
        "5 MB in one delta",
        "5 MB in a hundred",
        "10 000 deltas",
        "5 MB in one body",
        "10 000 deltas in one write",
    ],
)
async def test_much_is_told_whole(
    short: Stack, fake: FakeUpstream, script: Script, size: int
) -> None:
    model = fake.script(script)
    met, grown = await memory_growth(
        [*short.workers, *short.webs], request_three_ways(short, model)
    )
    for response in (met.answer.body, met.events[-1]["response"], met.stored):
        assert (response["status"], len(response["output_text"])) == ("completed", size)
    assert grown < 600 * MEGABYTE, grown
    await assert_all_closed(fake, model)


TOO_MUCH = [
    _bad("a line without end", TOO_LONG, endless(b"data: " + b"x" * 65536)),
    _bad("a JSON body without end", TOO_LONG, endless(b" " * 65536, head("content-type: application/json") + b"{")),
    _bad("one event of endless lines", TOO_LONG, endless(b"data: x\n" * 8000)),
    _bad("a comment without end", TOO_LONG, endless(b"x" * 65536, head(SSE) + b": ")),
    FaultCase("comments without end", [endless(b": x\n\n" * 8000)], 504, "server_error", FIRST),
    FaultCase("web pages without end", [endless(b"<p>x</p>\n" * 8000)], 504, "server_error", FIRST),
    _bad("a gzip bomb", COMPRESSED, status(200, gzip_bomb(HELLO), {"content-encoding": "gzip"})),
    _bad("a refusal without end", _wordless(500), endless(b"x" * 65536, head(status="500 X"))),
    _bad("a refusal that is a gzip bomb", _wordless(500), status(500, gzip_bomb(b'{"error": {"message": "'), {"content-encoding": "gzip"})),
    _bad("headers without end", NO_HTTP, endless(b"x-a: y\r\n" * 8000, b"HTTP/1.1 200 OK\r\n")),
]  # fmt: skip


@cases(TOO_MUCH)
async def test_what_has_no_end_is_cut_off_in_bounded_memory(short: Stack, fault: FaultCase) -> None:
    began = time.monotonic()
    _, grown = await memory_growth(short.workers, assert_fails(short, fault, flood=True))
    assert grown < 200 * MEGABYTE, grown
    assert time.monotonic() - began < 15


async def test_a_model_that_says_too_much_is_cut_off_with_what_it_said(
    short: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([endless(text_event("x" * 60_000))])
    met, grown = await memory_growth(
        [*short.workers, *short.webs], request_three_ways(short, model)
    )
    assert met.answer.status == 200
    for response in (met.answer.body, met.events[-1]["response"], met.stored):
        assert response["error"] == {
            "code": "server_error",
            "message": f"The model said more than the limit of {OUTPUT} bytes in one turn.",
        }
        assert 0.9 * OUTPUT < len(response["output_text"]) <= OUTPUT
    assert grown < 600 * MEGABYTE, grown
    await assert_all_closed(fake, model)


async def test_after_all_that_the_worker_is_the_same_and_says_no_secret(
    short: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(reply("as ever"))
    assert (await request_three_ways(short, model)).stored["output_text"] == "as ever"
    assert len(short.started) == 2, "no process had to be started anew"
    for process in short.started:
        assert SECRET not in process.log.read_text(errors="replace")
