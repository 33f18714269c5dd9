"""Wrong requests over HTTP: the error names the fault, nothing is stored and nothing runs.

Each test uses a project without rows and counts its rows afterwards (docs/wire.md).
"""

import asyncio
import gzip
import io
import json
import secrets
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

import openai
import psutil
import psycopg
import pytest

from tests.support import keys
from tests.support.api import JSON, UNKNOWN_RESPONSE_ID, Api, HttpResponse, until
from tests.support.bad_bodies import BODIES, INVALID_JSON, USER, BadBody, answer, call, unpaired
from tests.support.fake_upstream import FakeUpstream, Step, done, finish, hang, reply, text, usage
from tests.support.fake_upstream import call as calling
from tests.support.stack import Stack

WAYS: list[JSON] = [{}, {"background": True}, {"stream": True}]
ROWS = "SELECT count(*) FROM responses r JOIN projects p ON p.id = r.project_id WHERE p.name = %s"
KEYS = (
    "SELECT count(*) FROM idempotency_keys k JOIN projects p ON p.id = k.project_id WHERE p.name "
    "= %s"
)


@dataclass(frozen=True, slots=True)
class EmptyProject:
    """A project in which nothing may be stored, and a model that must not receive a request."""

    api: Api
    fake: FakeUpstream
    name: str
    model: str
    connection: psycopg.AsyncConnection

    async def assert_refused(
        self,
        answered: HttpResponse,
        status: int,
        param: str | None,
        code: str | None,
        message: str | None = None,
    ) -> None:
        """Checks that the answer is this refusal and that nothing was stored."""
        assert answered.status == status, answered.raw[:2000]
        error = answered.error
        assert (error["type"], error["param"], error["code"]) == (
            "invalid_request_error",
            param,
            code,
        ), error
        assert message in (None, error["message"]), error
        assert answered.headers["content-type"] == "application/json"
        assert answered.headers["x-request-id"].startswith("req_")
        assert b"Traceback" not in answered.raw
        await self.assert_empty()

    async def assert_empty(self) -> None:
        """Checks that no row was stored, so that nothing can run, and that no model was called."""
        for question in (ROWS, KEYS):
            cursor = await self.connection.execute(question.encode(), (self.name,))
            assert await cursor.fetchone() == (0,)
        assert self.fake.requests_for(self.model) == []


@pytest.fixture(scope="module")
async def empty_project(shared_stack: Stack, fake: FakeUpstream) -> AsyncIterator[EmptyProject]:
    name = f"empty project {secrets.token_hex(4)}"
    api = shared_stack.api(key=keys.create(shared_stack.dsn, name))
    async with await psycopg.AsyncConnection.connect(
        shared_stack.dsn, autocommit=True
    ) as connection:
        empty_project = EmptyProject(api, fake, name, fake.script(reply("never")), connection)
        yield empty_project
        # The counting works: a valid request with an idempotency key is stored and runs.
        answered = await api.call(
            "POST",
            "/responses",
            {"model": empty_project.model, "input": "Hi."},
            headers={"idempotency-key": "k"},
        )
        assert answered.status == 200
        with pytest.raises(AssertionError):
            await empty_project.assert_empty()
        assert len(fake.requests_for(empty_project.model)) == 1


def valid_body(empty_project: EmptyProject, **more: object) -> JSON:
    """A body without a fault."""
    return {"model": empty_project.model, "input": "Hi.", **more}


# The body.


KINDS = (
    *("model is an integer", "input[0].content[0].text is an integer", "max_output_tokens is 15"),
    *(
        "temperature is 2.001",
        "a service tier",
        "a tool of type 'Function'",
        "an empty name",
    ),
    *("a name with half a character", "an answer before its call", "two calls, one answered"),
    *("two calls of one id", "an id with a slash", "an id of no response"),
    "a reference to nothing",
)
"""One row of each kind. tests/unit/wire/test_request_bodies.py checks all rows without HTTP."""


@pytest.mark.parametrize("way", WAYS, ids=["foreground", "background", "stream"])
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name) for case in BODIES if case.name in KINDS]
)
async def test_a_wrong_body_is_refused_with_its_place_and_code(
    empty_project: EmptyProject, case: BadBody, way: JSON
) -> None:
    body = {**valid_body(empty_project), **way, **case.body}
    await empty_project.assert_refused(
        await empty_project.api.call("POST", "/responses", body),
        400,
        case.param,
        case.code,
        case.message,
    )


def test_every_kind_is_a_row_of_the_table() -> None:
    assert {case.name for case in BODIES} >= set(KINDS)


LIMIT = 4_000_000
"""The most bytes of a body in the shared deployment."""

UNREADABLE = ("nothing", "invalid UTF-8", "150 000 levels", "5000 digits")


@pytest.mark.parametrize(
    "sent", [pytest.param(row[1], id=row[0]) for row in INVALID_JSON if row[0] in UNREADABLE]
)
async def test_a_body_that_cannot_be_read_is_invalid_json(
    empty_project: EmptyProject, sent: bytes
) -> None:
    assert len(sent) < LIMIT
    await empty_project.assert_refused(
        await empty_project.api.call("POST", "/responses", sent), 400, None, "invalid_json"
    )


@pytest.mark.parametrize(("sent", "kind"), [(b"[]", "an array"), (b"null", "null")])
async def test_a_body_must_be_an_object(
    empty_project: EmptyProject, sent: bytes, kind: str
) -> None:
    message = f"Invalid body: expected a JSON object, but got {kind} instead."
    await empty_project.assert_refused(
        await empty_project.api.call("POST", "/responses", sent), 400, None, "invalid_type", message
    )


@pytest.mark.parametrize("kind", [None, "text/plain", "\xff"])
@pytest.mark.parametrize("size", [10, 3_000_000], ids=["small", "large"])
async def test_another_content_type_is_not_read(
    empty_project: EmptyProject, kind: str | None, size: int
) -> None:
    answered = await _post_as(
        empty_project, json.dumps(valid_body(empty_project, input="x" * size)).encode(), kind
    )
    await empty_project.assert_refused(answered, 415, None, "unsupported_media_type")


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("br", bytes),
        ("gzip, identity", gzip.compress),
    ],
)
async def test_a_compressed_body_is_not_unpacked(
    empty_project: EmptyProject, name: str, packed: Callable[[bytes], bytes]
) -> None:
    bomb = packed(
        json.dumps(valid_body(empty_project, input="x" * 10_000_000)).encode()[:3_000_000]
    )
    await empty_project.assert_refused(
        await _post_as(empty_project, bomb, "application/json", {"content-encoding": name}),
        415,
        None,
        "unsupported_media_type",
    )


async def _post_as(
    empty_project: EmptyProject, sent: bytes, kind: str | None, more: JSON | None = None
) -> HttpResponse:
    headers = {
        "authorization": f"Bearer {empty_project.api.key}",
        **({} if kind is None else {"content-type": kind}),
        **(more or {}),
    }
    skipped = ("content-type",)
    url = f"{empty_project.api.base_url}/responses"
    async with empty_project.api.session.post(
        url, data=io.BytesIO(sent), headers=headers, skip_auto_headers=skipped
    ) as answered:
        return HttpResponse(answered.status, answered.headers, await answered.read())


# Bodies over the limit.


async def test_the_official_client_reads_that_its_body_is_too_large(
    empty_project: EmptyProject, shared_stack: Stack
) -> None:
    client = shared_stack.openai(key=empty_project.api.key)
    for size in (4_000_000, 40_000_000):
        with pytest.raises(openai.APIStatusError) as refusal:
            await client.responses.create(model=empty_project.model, input="x" * size)
        assert (refusal.value.status_code, refusal.value.code) == (413, "request_too_large")
        assert (
            "The request body is larger than the limit of 4000000 bytes." in refusal.value.message
        )
    await empty_project.assert_empty()


@pytest.mark.parametrize(
    "framing",
    ["content-length: 100000000000", "transfer-encoding: chunked"],
    ids=["announced", "chunked"],
)
async def test_a_body_without_end_is_refused_before_it_is_read_whole(
    empty_project: EmptyProject, shared_stack: Stack, framing: str
) -> None:
    web = shared_stack.webs[0]
    before = psutil.Process(web.pid).memory_info().rss
    reader, writer = await asyncio.open_connection("127.0.0.1", web.port)
    head = (
        "POST /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
        f"{empty_project.api.key}\r\ncontent-type: application/json\r\n{framing}\r\n\r\n"
    )
    writer.write(head.encode())
    answering = asyncio.create_task(reader.readuntil(b"\r\n"))
    piece = b"x" * 1_000_000
    sent = 0
    async with asyncio.timeout(20):
        while not answering.done():
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if "chunked" in framing else piece)
            sent += len(piece)
            try:
                await writer.drain()
            except ConnectionError:
                break
        assert (await answering).startswith(b"HTTP/1.1 413 ")
    writer.close()
    assert sent < 2_000_000_000
    assert psutil.Process(web.pid).memory_info().rss - before < 50_000_000, (
        "the body was kept in memory"
    )
    await empty_project.assert_empty()


async def test_a_body_cut_off_by_a_disconnect_stores_nothing(
    empty_project: EmptyProject, shared_stack: Stack
) -> None:
    for sent in (b"", b"{", json.dumps(valid_body(empty_project)).encode()):
        _, writer = await asyncio.open_connection("127.0.0.1", shared_stack.webs[0].port)
        head = (
            "POST /v1/responses HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
            f"{empty_project.api.key}\r\ncontent-type: application/json\r\n"
        )
        writer.write(f"{head}content-length: 1000\r\n\r\n".encode() + sent)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert (await empty_project.api.call("GET", "/responses/resp_1")).status == 404, (
        "the process still answers"
    )
    await empty_project.assert_empty()


async def test_the_process_answers_others_while_it_checks_a_large_body(
    empty_project: EmptyProject, shared_stack: Stack
) -> None:
    body = json.dumps(
        {"model": empty_project.model, "input": [USER] * 100_000 + [{"role": "king"}]}
    ).encode()
    refusing = asyncio.create_task(empty_project.api.call("POST", "/responses", body))
    answered = 0
    while not refusing.done():
        async with shared_stack.session.get(
            f"http://127.0.0.1:{shared_stack.webs[0].port}/healthz"
        ) as health:
            assert health.status == 200
        answered += 1
    assert (await refusing).status == 400
    assert answered > 3


# Requests about other responses.


async def _foreign(empty_project: EmptyProject, shared_stack: Stack) -> str:
    return str((await shared_stack.api().create(empty_project.fake.script(reply("theirs"))))["id"])


async def _deleted(empty_project: EmptyProject, shared_stack: Stack) -> str:
    other = shared_stack.api()
    ended = await other.create(empty_project.fake.script(reply("x")))
    assert (await other.call("DELETE", f"/responses/{ended['id']}")).status == 200
    return str(ended["id"])


async def _unstored(empty_project: EmptyProject, shared_stack: Stack) -> str:
    return str(
        (await shared_stack.api().create(empty_project.fake.script(reply("x")), store=False))["id"]
    )


Made = Callable[[EmptyProject, Stack], Awaitable[str]]


@pytest.mark.parametrize(
    "made", [_foreign, _deleted, _unstored], ids=["another project's", "a deleted", "an unstored"]
)
@pytest.mark.parametrize("way", WAYS, ids=["foreground", "background", "stream"])
async def test_a_response_that_does_not_exist_for_this_client_cannot_be_continued(
    empty_project: EmptyProject, shared_stack: Stack, made: Made, way: JSON
) -> None:
    named = await made(empty_project, shared_stack)
    api = empty_project.api if made is _foreign else shared_stack.api()
    answered = await api.call(
        "POST", "/responses", valid_body(empty_project, previous_response_id=named, **way)
    )
    message = f"Previous response with id '{named}' not found."
    await empty_project.assert_refused(
        answered, 400, "previous_response_id", "previous_response_not_found", message
    )


@pytest.mark.parametrize("way", WAYS, ids=["foreground", "background", "stream"])
async def test_a_running_response_cannot_be_continued(
    empty_project: EmptyProject, shared_stack: Stack, way: JSON
) -> None:
    api = shared_stack.api()
    model = empty_project.fake.script([text("x"), hang()])
    running = await api.create_background(model)
    answered = await api.call(
        "POST", "/responses", valid_body(empty_project, previous_response_id=running, **way)
    )
    message = f"Previous response with id '{running}' has not finished yet."
    await empty_project.assert_refused(
        answered, 400, "previous_response_id", "previous_response_not_ready", message
    )
    assert (await api.cancel(running)).status == 200


async def test_an_item_of_another_project_or_of_an_unstored_response_cannot_be_referred_to(
    empty_project: EmptyProject, shared_stack: Stack
) -> None:
    stored = await shared_stack.api().create(empty_project.fake.script(reply("x")))
    unstored = await shared_stack.api().create(empty_project.fake.script(reply("x")), store=False)
    for api, response in ((empty_project.api, stored), (shared_stack.api(), unstored)):
        item = response["output"][0]["id"]
        answered = await api.call(
            "POST",
            "/responses",
            valid_body(empty_project, input=[USER, {"type": "item_reference", "id": item}]),
        )
        message = (
            f"Item with id '{item}' not found. Items of responses created with 'store': false "
            "cannot be referred to."
        )
        await empty_project.assert_refused(answered, 400, "input[1]", "item_not_found", message)


OPEN: list[tuple[str, list[JSON] | str, tuple[str, None, str]]] = [
    ("words instead", "Well?", unpaired("call_a")),
    ("one of two", [answer("call_a")], unpaired("call_b")),
    ("the other of two", [answer("call_b"), USER], unpaired("call_a")),
    (
        "an unknown call's output too",
        [answer("call_a"), answer("call_b"), answer("call_z")],
        ("input", None, "No tool call found for function call output with call_id call_z."),
    ),
    ("a new call too", [answer("call_a"), answer("call_b"), call("call_c")], unpaired("call_c")),
    (
        "the first one called again",
        [answer("call_b"), answer("call_a"), call("call_a")],
        unpaired("call_a"),
    ),
]


@pytest.mark.parametrize(("given", "refusal"), [pytest.param(*row[1:], id=row[0]) for row in OPEN])
async def test_calls_that_the_last_response_left_open_must_all_be_answered(
    empty_project: EmptyProject,
    shared_stack: Stack,
    given: list[JSON] | str,
    refusal: tuple[str, None, str],
) -> None:
    tools = [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]
    script: list[Step] = [
        calling(0, "call_a", "f", "{}"),
        calling(1, "call_b", "f", "{}"),
        finish("tool_calls"),
        usage(),
        done(),
    ]
    first = await shared_stack.api().create(empty_project.fake.script(script), tools=tools)
    for way in WAYS:
        body = valid_body(empty_project, previous_response_id=first["id"], tools=tools, **way) | {
            "input": given
        }
        await empty_project.assert_refused(
            await shared_stack.api().call("POST", "/responses", body), 400, *refusal
        )


# Routes about one response.

QUERIES: list[tuple[str, str, str | None, str]] = [
    *(
        (
            f"?{name}={value}",
            name,
            "invalid_type",
            f"Invalid type for '{name}': expected a boolean, but got '{value}' instead.",
        )
        for name in ("stream", "include_obfuscation")
        for value in ("True", "1", "", "yes")
    ),
    *(
        (
            f"?stream=true&starting_after={sent}",
            "starting_after",
            "invalid_type",
            f"Invalid type for 'starting_after': expected an integer, but got '{value}' instead.",
        )
        for sent, value in (
            ("one", "one"),
            ("1.5", "1.5"),
            ("", ""),
            ("1e3", "1e3"),
            ("1_0", "1_0"),
            ("%201", " 1"),
            ("%D9%A1", "١"),
            ("%00", "\0"),
            ("9" * 31, "9" * 31),
        )
    ),
    (
        "?starting_after=-1",
        "starting_after",
        "integer_below_min_value",
        (
            "Invalid 'starting_after': integer below minimum value. Expected a value >= 0, but "
            "got -1 instead."
        ),
    ),
    (
        "?starting_after=2147483648",
        "starting_after",
        "integer_above_max_value",
        (
            "Invalid 'starting_after': integer above maximum value. Expected a value <= "
            "2147483647, but got 2147483648 instead."
        ),
    ),
    (
        "/input_items?limit=0",
        "limit",
        "integer_below_min_value",
        "Invalid 'limit': integer below minimum value. Expected a value >= 1, but got 0 instead.",
    ),
    (
        "/input_items?limit=101",
        "limit",
        "integer_above_max_value",
        (
            "Invalid 'limit': integer above maximum value. Expected a value <= 100, but got 101 "
            "instead."
        ),
    ),
    (
        "/input_items?limit=ten",
        "limit",
        "invalid_type",
        "Invalid type for 'limit': expected an integer, but got 'ten' instead.",
    ),
    (
        "/input_items?order=up",
        "order",
        "invalid_value",
        "Invalid value: 'up'. Supported values are: 'asc' and 'desc'.",
    ),
]


@pytest.mark.parametrize(("rest", "param", "code", "message"), QUERIES)
async def test_a_wrong_query_is_named(
    empty_project: EmptyProject, rest: str, param: str, code: str, message: str
) -> None:
    await empty_project.assert_refused(
        await empty_project.api.call("GET", f"/responses/{UNKNOWN_RESPONSE_ID}{rest}"),
        400,
        param,
        code,
        message,
    )


@pytest.mark.parametrize("name", ["include", "include[]"])
@pytest.mark.parametrize("rest", ["", "/input_items"])
async def test_an_unknown_include_of_a_query_is_named(
    empty_project: EmptyProject, name: str, rest: str
) -> None:
    answered = await empty_project.api.call(
        "GET",
        f"/responses/{UNKNOWN_RESPONSE_ID}{rest}",
        params=[(name, "file_search_call.results"), (name, "all\0")],
    )
    await empty_project.assert_refused(answered, 400, "include[1]", "invalid_value")


NAMES = [
    "resp_1",
    "nonsense",
    "resp_" + "0" * 33,
    "resp_" + "0" * 500,
    "resp_" + "g" * 32,
    UNKNOWN_RESPONSE_ID.upper(),
    f" {UNKNOWN_RESPONSE_ID}",
    f"{UNKNOWN_RESPONSE_ID}\n",
    "\0",
    "é" * 100,
    "'; --",
]


OF_ONE_RESPONSE = [
    ("GET", ""),
    ("GET", "?stream=true"),
    ("POST", "/cancel"),
    ("DELETE", ""),
    ("GET", "/input_items"),
]


@pytest.mark.parametrize(
    ("method", "rest", "named"),
    [
        *((*route, UNKNOWN_RESPONSE_ID) for route in OF_ONE_RESPONSE),
        *((*route, "nonsense") for route in OF_ONE_RESPONSE),
        *(("GET", "", name) for name in NAMES),
    ],
)
async def test_an_unknown_response_is_not_found_on_any_route(
    empty_project: EmptyProject, method: str, rest: str, named: str
) -> None:
    quoted = "".join(f"%{byte:02x}" for byte in named.encode())
    answered = await empty_project.api.call(
        method, f"/responses/{quoted}{rest}".replace("%25", "%")
    )
    await empty_project.assert_refused(
        answered, 404, None, None, f"Response with id '{named}' not found."
    )


@pytest.mark.parametrize("after", ["%00", "msg_none", "%ed%a0%80", "x" * 5000])
async def test_a_page_after_an_item_that_is_not_there_is_empty(
    shared_stack: Stack, empty_project: EmptyProject, after: str
) -> None:
    ended = await shared_stack.api().create(empty_project.fake.script(reply("x")))
    page = await shared_stack.api().call(
        "GET", f"/responses/{ended['id']}/input_items?after={after}"
    )
    assert page.status == 200, page.raw
    assert page.body == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.parametrize(
    "sent", [b"{", b"\xff", b"[]", b"x" * 100_000], ids=["half", "no text", "a list", "large"]
)
async def test_a_body_on_a_route_without_one_changes_nothing(
    empty_project: EmptyProject, shared_stack: Stack, sent: bytes
) -> None:
    ended = await shared_stack.api().create(empty_project.fake.script(reply("x")))
    cancelled = await shared_stack.api().call("POST", f"/responses/{ended['id']}/cancel", sent)
    await empty_project.assert_refused(
        cancelled, 400, None, None, "Cannot cancel a synchronous response."
    )
    assert (await shared_stack.api().call("GET", f"/responses/{ended['id']}", sent)).body[
        "id"
    ] == ended["id"]
    assert (await shared_stack.api().call("DELETE", f"/responses/{ended['id']}", sent)).body == {
        "id": ended["id"],
        "object": "response",
        "deleted": True,
    }


@pytest.mark.parametrize("given", ["", "k" * 256])
async def test_an_idempotency_key_of_a_wrong_length_is_refused(
    empty_project: EmptyProject, given: str
) -> None:
    answered = await empty_project.api.call(
        "POST", "/responses", valid_body(empty_project), headers={"idempotency-key": given}
    )
    message = (
        f"Invalid 'Idempotency-Key': expected 1 to 255 characters, but got {len(given)} instead."
    )
    await empty_project.assert_refused(answered, 400, "Idempotency-Key", "invalid_value", message)


async def test_a_key_of_a_refused_request_may_be_used_again(
    empty_project: EmptyProject, shared_stack: Stack
) -> None:
    name = secrets.token_hex(8)
    refused = await shared_stack.api().call(
        "POST",
        "/responses",
        valid_body(empty_project, temperature=3),
        headers={"idempotency-key": name},
    )
    await empty_project.assert_refused(refused, 400, "temperature", "decimal_above_max_value")
    model = empty_project.fake.script(reply("at last"))
    answered = await shared_stack.api().call(
        "POST", "/responses", {"model": model, "input": "Hi."}, headers={"idempotency-key": name}
    )
    assert answered.body["output_text"] == "at last"


# Requests that look wrong and are right.


async def test_of_a_repeated_json_key_the_last_value_counts(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(reply("ok"))
    for other in ('"\\ud800"', '"x"'):  # with a lone surrogate the slower decoder reads the body
        first = f'"model": {other}, "temperature": "hot", "input": []'
        sent = f'{{{first}, "model": "{model}", "input": "Hi.", "temperature": 1}}'
        answered = await shared_stack.api().call("POST", "/responses", sent.encode())
        assert (answered.status, answered.body["temperature"], answered.body["output_text"]) == (
            200,
            1,
            "ok",
        )


@pytest.mark.parametrize("items", [20_000, pytest.param(100_000, marks=pytest.mark.long)])
async def test_many_thousand_items_are_answered(
    shared_stack: Stack, fake: FakeUpstream, items: int
) -> None:
    model = fake.script(reply("that was much"))
    body = json.dumps(
        {"model": model, "input": [{"role": "user", "content": "x"}] * items, "background": True}
    ).encode()

    async def created() -> HttpResponse | None:
        answer = await shared_stack.api().call("POST", "/responses", body)
        # On a busy machine PostgreSQL may take too long for so many.
        return None if answer.status == 503 else answer

    answered = await until(created, 60)
    assert answered is not None
    assert answered.status == 200, answered.raw
    assert (await shared_stack.api().wait_for_end(answered.body["id"], 60))[
        "output_text"
    ] == "that was much"
    assert len(fake.requests_for(model)[0].messages) == items


async def test_json_of_the_greatest_allowed_depth_is_stored_and_sent_upstream(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    schema: JSON = {}
    for _ in range(180):
        schema = {"not": schema}
    model = fake.script(reply("deep"))
    tools = [{"type": "function", "name": "f", "parameters": schema}]
    ended = await shared_stack.api().wait_for_end(
        await shared_stack.api().create_background(model, tools=tools)
    )
    assert ended["output_text"] == "deep"
    assert ended["tools"][0]["parameters"] == schema
    sent = fake.requests_for(model)[0].body["tools"][0]["function"]["parameters"]
    assert sent == {**schema, "type": "object", "properties": {}}


@pytest.mark.parametrize(
    "kind",
    ["application/json; charset=utf-8", "Application/JSON", "application/json;charset=latin-1"],
)
async def test_every_spelling_of_the_json_content_type_is_read(
    shared_stack: Stack, fake: FakeUpstream, kind: str
) -> None:
    body: JSON = {"model": fake.script(reply("é")), "input": "é"}
    answered = await shared_stack.api().call(
        "POST", "/responses", body, headers={"content-type": kind, "content-encoding": "identity"}
    )
    assert answered.body["output_text"] == "é"


async def test_a_body_in_pieces_is_read_whole(shared_stack: Stack, fake: FakeUpstream) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for byte in json.dumps({"model": model, "input": "Hi."}).encode():
            yield bytes([byte])

    model = fake.script(reply("ok"))
    api = shared_stack.api()
    headers = {"authorization": f"Bearer {api.key}", "content-type": "application/json"}
    async with api.session.post(
        f"{api.base_url}/responses", data=pieces(), headers=headers
    ) as answered:
        assert (await answered.json())["output_text"] == "ok"


async def test_the_official_client_names_a_refusal_by_its_class(
    empty_project: EmptyProject, shared_stack: Stack
) -> None:
    client = shared_stack.openai(key=empty_project.api.key)
    with pytest.raises(openai.BadRequestError) as refused:
        await client.responses.create(model=empty_project.model, input="x", temperature=3)
    assert (refused.value.code, refused.value.param, refused.value.type) == (
        "decimal_above_max_value",
        "temperature",
        "invalid_request_error",
    )
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_1")
    with pytest.raises(openai.AuthenticationError) as unknown:
        await shared_stack.openai(key="bb-wrong").responses.create(
            model=empty_project.model, input="x" * 3_000_000
        )
    assert unknown.value.code == "invalid_api_key"
    await empty_project.assert_empty()
