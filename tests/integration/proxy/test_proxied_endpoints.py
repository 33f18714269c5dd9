"""The endpoints beside chat completions that are forwarded to the model's upstream.

What they share with chat completions is proved in test_chat_proxy.py (docs/proxied-endpoints.md).
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from models.ids import PROJECT, admin_id
from models.keys import KeyGrant
from models.projects.scopes import Scope
from tests.support import keys
from tests.support.api import JSON, Api, HttpResponse, until
from tests.support.fake_upstream import (
    FakeUpstream,
    begin_body,
    hang,
    ignore,
    raw,
    reply,
    status,
    wait_for,
)
from tests.support.projects import limited_project
from tests.support.stack import Stack

AUDIO = bytes(range(256)) * 1000
BOUNDARY = "b0undary"
FORM_TYPE = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
EMBEDDING: JSON = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}],
    "model": "m",
    "usage": {"prompt_tokens": 4, "total_tokens": 4},
}
IMAGES: JSON = {"created": 1, "data": [{"b64_json": "aGk="}]}
MODERATION: JSON = {"id": "modr-1", "model": "m", "results": []}
JSON_PATHS = (
    "/completions",
    "/embeddings",
    "/rerank",
    "/moderations",
    "/audio/speech",
    "/images/generations",
)
FORM_PATHS = (
    "/audio/transcriptions",
    "/audio/translations",
    "/images/edits",
    "/images/variations",
)


def field(name: str, value: str, more: str = "") -> bytes:
    """A part of a form."""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return f"{head}{value}\r\n".encode()


def file(name: str, content: bytes) -> bytes:
    """A part of a form with a file."""
    head = (
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="a.mp3"\r\n'
        "Content-Type: audio/mpeg\r\n\r\n"
    )
    return b"".join((head.encode(), content, b"\r\n"))


END = f"--{BOUNDARY}--\r\n".encode()


async def send_form(api: Api, path: str, *parts: bytes, end: bytes = END) -> HttpResponse:
    """Sends a form."""
    return await api.call("POST", path, b"".join((*parts, end)), headers=FORM_TYPE)


async def stream_form(
    stack: Stack, path: str, pieces: AsyncIterator[bytes], size: int | None = None
) -> HttpResponse:
    """Sends a form piece by piece: in chunks, or with this length."""
    length = {} if size is None else {"content-length": str(size)}
    headers = {**FORM_TYPE, **length, "authorization": f"Bearer {stack.key}"}
    url = f"{stack.api().base_url}{path}"
    async with stack.session.post(url, data=pieces, headers=headers) as answer:
        return HttpResponse(answer.status, answer.headers, await answer.read())


# --- each endpoint, with the official client ---

Call = Callable[[openai.AsyncOpenAI, str], Any]
JSON_CALLS: list[tuple[str, Call, JSON]] = [
    (
        "/embeddings",
        lambda client, model: client.embeddings.create(
            model=model, input=["a", "b"], encoding_format="float"
        ),
        EMBEDDING,
    ),
    (
        "/moderations",
        lambda client, model: client.moderations.create(model=model, input="a"),
        MODERATION,
    ),
    (
        "/completions",
        lambda client, model: client.completions.create(model=model, prompt="a"),
        {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": []},
    ),
    (
        "/images/generations",
        lambda client, model: client.images.generate(model=model, prompt="a"),
        IMAGES,
    ),
    (
        "/images/edits",
        lambda client, model: client.post(
            "/images/edits", cast_to=object, body={"model": model, "prompt": "a"}
        ),
        IMAGES,
    ),
    (
        "/rerank",
        lambda client, model: client.post(
            "/rerank", cast_to=object, body={"model": model, "query": "a", "documents": ["b"]}
        ),
        {"results": [{"index": 0, "relevance_score": 0.5}]},
    ),
]


@pytest.mark.parametrize(
    ("path", "call", "answer"), [pytest.param(*row, id=row[0]) for row in JSON_CALLS]
)
async def test_a_json_request_and_its_answer_arrive_unchanged(
    client: openai.AsyncOpenAI, fake: FakeUpstream, path: str, call: Call, answer: JSON
) -> None:
    model = fake.script([status(200, answer)])
    answered = await call(client, model)
    shown = answered if isinstance(answered, dict) else answered.model_dump(exclude_unset=True)
    assert shown == answer
    request = fake.requests_for(model)[0]
    assert request.path == f"/v1{path}"
    assert request.body["model"] == model


FORM_CALLS: list[tuple[str, Call, JSON, dict[str, bytes]]] = [
    (
        "/audio/transcriptions",
        lambda client, model: client.audio.transcriptions.create(
            model=model, file=("a.mp3", AUDIO), language="en"
        ),
        {"language": "en"},
        {"file": AUDIO},
    ),
    (
        "/audio/translations",
        lambda client, model: client.post(
            "/audio/translations",
            cast_to=object,
            body={"model": model, "prompt": "é\r\n"},
            files={"file": ("a.mp3", AUDIO)},
            options={"headers": {"content-type": "multipart/form-data"}},
        ),
        {"prompt": "é\r\n"},
        {"file": AUDIO},
    ),
    (
        "/images/edits",
        lambda client, model: client.images.edit(
            model=model, image=("a.png", AUDIO), mask=("m.png", b"mask"), prompt="a"
        ),
        {"prompt": "a"},
        {"image": AUDIO, "mask": b"mask"},
    ),
    (
        "/images/variations",
        lambda client, model: client.post(
            "/images/variations",
            cast_to=object,
            body={"model": model, "n": 2},
            files={"image": ("a.png", AUDIO)},
            options={"headers": {"content-type": "multipart/form-data"}},
        ),
        {"n": "2"},
        {"image": AUDIO},
    ),
]


@pytest.mark.parametrize(
    ("path", "call", "fields", "files"), [pytest.param(*row, id=row[0]) for row in FORM_CALLS]
)
async def test_a_form_arrives_with_its_fields_and_files(
    client: openai.AsyncOpenAI,
    fake: FakeUpstream,
    path: str,
    call: Call,
    fields: JSON,
    files: dict[str, bytes],
) -> None:
    model = fake.script([status(200, {"text": "said", "created": 1, "data": []})])
    await call(client, model)
    request = fake.requests_for(model)[0]
    assert request.path == f"/v1{path}"
    assert request.files == files
    assert request.body == {"model": model, **fields}


async def test_a_streamed_transcription_arrives_event_by_event(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    released = asyncio.Event()
    events = [
        {"type": "transcript.text.delta", "delta": "Hel"},
        {"type": "transcript.text.done", "text": "Hello"},
    ]
    frames = [b"data: %b\n\n" % json.dumps(event).encode() for event in events]
    model = fake.script([raw(frames[0]), wait_for(released), raw(frames[1])])
    stream = await client.audio.transcriptions.create(
        model=model, file=("a.mp3", AUDIO), stream=True
    )
    assert (await anext(stream)).type == "transcript.text.delta"
    released.set()
    assert [event.type async for event in stream] == ["transcript.text.done"]
    assert fake.requests_for(model)[0].body["stream"] == "true"


@pytest.mark.parametrize("kind", ["audio/mpeg", "application/octet-stream"])
async def test_speech_arrives_as_it_is_spoken_with_its_content_type(
    client: openai.AsyncOpenAI, fake: FakeUpstream, kind: str
) -> None:
    released = asyncio.Event()
    model = fake.script([begin_body(kind), raw(b"\xff\xfb"), wait_for(released), raw(AUDIO)])
    speech = client.audio.speech.with_streaming_response
    async with speech.create(model=model, voice="alloy", input="Hello.") as answer:
        assert answer.headers["content-type"] == kind
        pieces = answer.iter_bytes()
        assert await anext(pieces) == b"\xff\xfb"
        released.set()
        assert b"".join([piece async for piece in pieces]) == AUDIO


@pytest.mark.parametrize("kind", ["text/html", "image/svg+xml"])
async def test_a_page_of_an_upstream_is_no_page_of_this_server(
    api: Api, fake: FakeUpstream, kind: str
) -> None:
    model = fake.script([status(200, b"<script>", {"content-type": kind})])
    answer = await api.call("POST", "/audio/speech", {"model": model})
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"


async def test_a_moderation_without_a_model_uses_openais_default(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    fake.script([status(200, MODERATION)], name="omni-moderation-latest")
    assert (await client.moderations.create(input="a")).id == "modr-1"
    assert fake.requests_for("omni-moderation-latest")[0].body["input"] == "a"


# --- uploads ---


@pytest.mark.parametrize("size", [10, 3_000_000], ids=["small", "spooled"])
async def test_the_model_may_come_behind_the_file(api: Api, fake: FakeUpstream, size: int) -> None:
    model = fake.script([status(200, {"text": "said"})])
    content = AUDIO[:7] * (size // 7)
    parts = (field("language", "en"), file("file", content), field("model", model))
    answer = await send_form(api, "/audio/transcriptions", *parts, field("prompt", "p"))
    assert answer.status == 200
    request = fake.requests_for(model)[0]
    assert request.files == {"file": content}
    assert request.body == {"model": model, "language": "en", "prompt": "p"}


BIG = 48 * 1024 * 1024
PIECE = b"\xff\x00\r\n" * 64 * 1024


async def big_form(model: str, *, model_first: bool) -> AsyncIterator[bytes]:
    """A form with a file of 48 MiB."""
    if model_first:
        yield field("model", model)
    head, tail = file("file", b"|").split(b"|")
    yield head
    for _ in range(BIG // len(PIECE)):
        yield PIECE
    yield tail
    if not model_first:
        yield field("model", model)
    yield END


def reset_peak(pid: int) -> int:
    """Lets the kernel forget the peak of a process's memory; returns what it has now, in bytes."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    return peak(pid)


def peak(pid: int) -> int:
    """The largest resident memory of a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


class Unchanged:
    """True when a number was the same five times in a row."""

    def __init__(self, number: Callable[[], int]) -> None:
        self._number = number
        self._last, self._times = -1, 0

    def __call__(self) -> bool:
        number = self._number()
        self._times = self._times + 1 if number == self._last else 0
        self._last = number
        return self._times == 5


@pytest.mark.parametrize("model_first", [True, False], ids=["model first", "model last"])
async def test_an_upload_needs_little_memory_however_large_it_is(
    tool_stack: Stack, fake: FakeUpstream, model_first: bool
) -> None:
    model = fake.script([status(200, {"text": "said"})])
    web = tool_stack.webs[0].pid
    before = reset_peak(web)
    form = big_form(model, model_first=model_first)
    answer = await stream_form(tool_stack, "/audio/transcriptions", form)
    assert answer.status == 200
    assert peak(web) - before < BIG // 3
    assert len(fake.requests_for(model)[0].files["file"]) == BIG


async def test_an_upload_goes_on_while_it_arrives_and_waits_for_a_slow_upstream(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([status(200, {"text": "said"})])
    sent = 0
    connections: set[Any] = set()

    def hold(connection: Any) -> None:
        if not connections:
            connection.pause_reading()
        connections.add(connection)

    async def counted() -> AsyncIterator[bytes]:
        nonlocal sent
        async for piece in big_form(model, model_first=True):
            yield piece
            sent += len(piece)

    fake.on_upload = hold
    try:
        upload = asyncio.create_task(stream_form(tool_stack, "/audio/transcriptions", counted()))
        await until(lambda: connections)
        await until(Unchanged(lambda: sent), every=0.1)
        assert sent < BIG
        for connection in connections:
            connection.resume_reading()
        assert (await upload).status == 200
    finally:
        fake.on_upload = ignore
    assert len(fake.requests_for(model)[0].files["file"]) == BIG


@pytest.mark.parametrize("fault", ["left", "broken", "too large", "second model", "private URL"])
async def test_an_upload_that_goes_wrong_in_the_middle_ends_at_the_upstream(
    shared_stack: Stack, fake: FakeUpstream, fault: str
) -> None:
    model = fake.script([hang()])
    begun: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    held = asyncio.Event()

    def note(connection: Any) -> None:
        if not begun.done():
            begun.set_result(connection)

    async def pieces() -> AsyncIterator[bytes]:
        yield field("model", model)
        yield file("file", b"x" * 200_000)[:-2]
        await begun
        if fault == "left":
            await held.wait()
        elif fault == "broken":
            yield b"\r\n"
        elif fault == "too large":
            for _ in range(20):
                yield PIECE
        elif fault == "second model":
            yield b"\r\n" + field("model", "other") + END
        else:
            yield b"\r\n" + field("image[]", "http://127.0.0.1:9/a.png") + END

    fake.on_upload = note
    try:
        upload = asyncio.create_task(stream_form(shared_stack, "/audio/transcriptions", pieces()))
        connection = await begun
        if fault == "left":
            upload.cancel()
        else:
            answer = await upload
            assert (answer.status, answer.error["param"], answer.error["code"]) == {
                "broken": (400, None, "invalid_form"),
                "too large": (413, None, "request_too_large"),
                "second model": (400, "model", "invalid_value"),
                "private URL": (400, "image", "invalid_value"),
            }[fault]
        await until(connection.closed.is_set)
    finally:
        fake.on_upload = ignore
    assert fake.requests_for(model) == [], "the upstream never got a complete request"


async def test_an_answer_may_begin_before_the_upload_has_ended(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script([hang()])
    heard = asyncio.Event()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
    upstream: list[Any] = []

    def answer_early(connection: Any) -> None:
        if not upstream:
            upstream.append(connection)
            upstream.append(asyncio.ensure_future(connection.send(head + b"data: 1\n\n")))

    async def pieces() -> AsyncIterator[bytes]:
        yield field("model", model) + file("file", b"x" * 100_000)[:-2]
        await heard.wait()
        yield b"the rest\r\n" + END

    fake.on_upload = answer_early
    try:
        headers = {**FORM_TYPE, "authorization": f"Bearer {shared_stack.key}"}
        url = f"{shared_stack.api().base_url}/audio/transcriptions"
        async with shared_stack.session.post(url, data=pieces(), headers=headers) as answer:
            assert await answer.content.readany() == b"data: 1\n\n"
            heard.set()
            await until(lambda: fake.requests_for(model))
            upstream[0].drop()
            assert await answer.content.read() == b""
    finally:
        fake.on_upload = ignore
    assert fake.requests_for(model)[0].files["file"].endswith(b"xthe rest")


async def test_an_upstream_that_refuses_early_is_heard_before_the_upload_ends(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    """The answer arrives, and the connection to the upstream is closed."""
    model = "early"
    closed: list[Any] = []

    def refuse(connection: Any) -> None:
        if not closed:
            closed.append(connection)
            asyncio.get_running_loop().create_task(
                connection.send(
                    b"HTTP/1.1 413 Too Large\r\ncontent-type: application/json\r\n"
                    b"content-length: 30\r\n\r\n" + b'{"error": {"message": "large"}}'[:30]
                )
            )

    fake.on_upload = refuse
    try:
        form = big_form(model, model_first=True)
        answer = await stream_form(tool_stack, "/audio/transcriptions", form)
        assert answer.status == 413
        await until(closed[0].closed.is_set)
    finally:
        fake.on_upload = ignore


# --- refusals ---

WRONG_JSON: list[tuple[str, bytes, int, str | None, str]] = [
    ("no json", b"{", 400, None, "invalid_json"),
    ("nothing", b"", 400, None, "invalid_json"),
    ("an array", b"[]", 400, None, "invalid_type"),
    ("model is a number", b'{"model": 7}', 400, "model", "invalid_type"),
    ("model is an object", b'{"model": {}}', 400, "model", "invalid_type"),
    ("too large", b'{"model": "' + b"x" * 4_000_000 + b'"}', 413, None, "request_too_large"),
    (
        "a private address",
        b'{"model": "m", "input": [{"image_url": {"url": "http://10.0.0.1/a.png"}}]}',
        400,
        "input[0].image_url.url",
        "invalid_value",
    ),
    (
        "private addresses in a list",
        b'{"model": "m", "images": ["http://127.0.0.1/a.png"]}',
        400,
        "images[0]",
        "invalid_value",
    ),
    (
        "a private address as an input",
        b'{"model": "m", "modality": "image", "input": "http://localhost/a.png"}',
        400,
        "image",
        "invalid_value",
    ),
]


@pytest.mark.parametrize("path", [*JSON_PATHS, *FORM_PATHS])
async def test_wrong_json_is_refused_at_every_endpoint(
    api: Api, fake: FakeUpstream, path: str
) -> None:
    before = len(fake.requests)
    for name, body, code, param, kind in WRONG_JSON:
        answer = await api.call("POST", path, body)
        found = (answer.status, answer.error["param"], answer.error["code"])
        assert found == (code, param, kind), name
    if path != "/moderations":
        answer = await api.call("POST", path, b'{"input": "x"}')
        assert (answer.status, answer.error["code"]) == (400, "missing_required_parameter")
    for kind in ("text/plain", "multipart/form-data; boundary=x"):
        if path in FORM_PATHS and kind != "text/plain":
            continue
        answer = await api.call("POST", path, b"{}", headers={"content-type": kind})
        assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")
    assert len(fake.requests) == before


WRONG_FORMS: list[tuple[str, bytes, int, str | None, str]] = [
    ("nothing", b"", 400, None, "invalid_form"),
    ("no form", b'{"model": "m"}', 400, None, "invalid_form"),
    ("only an end", END, 400, "model", "missing_required_parameter"),
    ("no model", file("file", b"x") + END, 400, "model", "missing_required_parameter"),
    ("an empty model", field("model", "") + END, 400, "model", "missing_required_parameter"),
    ("a file as the model", file("model", b"x") + END, 400, "model", "invalid_value"),
    ("two models", field("model", "a") * 2 + END, 400, "model", "invalid_value"),
    ("a list of models", field("model[]", "a") + END, 400, "model", "invalid_value"),
    ("a long model", field("model", "a" * 5000) + END, 400, "model", "invalid_value"),
    ("a model of two lines", field("model", "a\nb") + END, 400, "model", "invalid_value"),
    ("no end", field("language", "a"), 400, None, "invalid_form"),
    ("many parts", field("a", "b") * 300 + END, 400, None, "invalid_form"),
    ("too large", file("file", b"x" * 4_000_000), 413, None, "request_too_large"),
    (
        "a private address",
        field("url", "http://10.0.0.1/a.mp3") + field("model", "m") + END,
        400,
        "url",
        "invalid_value",
    ),
    (
        "a private address as a file",
        field("file", "http://10.0.0.1/a.mp3") + field("model", "m") + END,
        400,
        "file",
        "invalid_value",
    ),
]


@pytest.mark.parametrize("path", FORM_PATHS)
async def test_a_wrong_form_is_refused_at_every_endpoint(
    api: Api, fake: FakeUpstream, path: str
) -> None:
    before = len(fake.requests)
    for name, body, code, param, kind in WRONG_FORMS:
        answer = await api.call("POST", path, body, headers=FORM_TYPE)
        found = (answer.status, answer.error["param"], answer.error["code"])
        assert found == (code, param, kind), name
    for headers, code in (
        ({"content-type": "multipart/form-data"}, 400),
        ({**FORM_TYPE, "content-encoding": "gzip"}, 415),
    ):
        answer = await api.call("POST", path, END, headers=headers)
        assert answer.status == code
    assert len(fake.requests) == before


# --- what an upstream does not have ---


@pytest.mark.parametrize("code", [404, 405])
@pytest.mark.parametrize(
    "body", [{"detail": "Not Found"}, {"error": {"message": "Invalid URL (POST /v1/…)"}}, b"<h1>"]
)
async def test_an_endpoint_that_the_upstream_lacks_is_named(
    api: Api, fake: FakeUpstream, code: int, body: JSON | bytes
) -> None:
    for path in ("/embeddings", "/audio/speech"):
        model = fake.script([status(code, body)])
        answer = await api.call("POST", path, {"model": model})
        assert answer.status == 404
        assert (answer.error["param"], answer.error["code"]) == ("model", "endpoint_not_offered")
        message = answer.error["message"]
        assert f"'{model}' does not offer /v1{path}" in message
        assert ("Invalid URL" in message) == (isinstance(body, dict) and "error" in body)
    form = (field("model", fake.script([status(code, body)])), file("file", b"x"))
    lacking = await send_form(api, "/audio/transcriptions", *form)
    assert (lacking.status, lacking.error["code"]) == (404, "endpoint_not_offered")


async def test_a_model_that_the_upstream_lacks_keeps_the_upstreams_words(
    api: Api, fake: FakeUpstream
) -> None:
    answer = await api.call("POST", "/embeddings", {"model": "nobody"})
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


# --- quotas and usage ---


async def test_the_requests_of_a_minute_and_open_streams_count_here_too(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack, requests_per_minute=1)
    model = fake.script([status(200, EMBEDDING)])
    form = (field("model", model), file("file", b"x"))
    assert (await project.api().call("POST", "/embeddings", {"model": model})).status == 200
    for path in JSON_PATHS:
        refused = await project.api().call("POST", path, {"model": model})
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
    for path in FORM_PATHS:
        assert (await send_form(project.api(), path, *form)).status == 429
    project = await limited_project(shared_stack, open_streams=1)
    speaking = fake.script([begin_body("audio/mpeg"), raw(b"x"), hang()])
    body = json.dumps({"model": speaking}).encode()
    url = f"{project.api().base_url}/audio/speech"
    headers = {
        "authorization": f"Bearer {project.api().key}",
        "content-type": "application/json",
    }
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, data=body, headers=headers) as speech,
    ):
        assert await speech.content.readany() == b"x"
        assert (await send_form(project.api(), FORM_PATHS[0], *form)).status == 429
    await until(lambda: fake.requests_for(speaking)[0].closed_by_client)


async def test_tokens_are_reserved_without_an_output_where_there_is_none(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack, tokens_per_minute=2000)
    model = fake.script([status(200, EMBEDDING)])
    answer = await project.api().call("POST", "/embeddings", {"model": model, "input": "x"})
    assert answer.status == 200
    assert 1900 < int(answer.headers["x-ratelimit-remaining-tokens"]) < 2000
    large = await project.api().call("POST", "/embeddings", {"model": model, "input": "x" * 9000})
    assert (large.status, large.headers["x-should-retry"]) == (429, "false")


USED: list[tuple[str, bytes, tuple[int, int]]] = [
    ("/embeddings", json.dumps(EMBEDDING).encode(), (4, 0)),
    (
        "/embeddings",
        b'{"usage": {"prompt_tokens": 5, "total_tokens": 5}, "data": ["%b"]}' % (b"x" * 20_000),
        (5, 0),
    ),
    (
        "/images/generations",
        b'{"data": ["%b"], "usage": {"input_tokens": 3, "output_tokens": 7}}' % (b"x" * 20_000),
        (3, 7),
    ),
    ("/rerank", b'{"results": [], "usage": {"total_tokens": 9}}', (9, 0)),
]


async def test_what_an_upstream_reports_is_usage_of_the_project(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    api, expected = shared_stack.api(), {}
    for path, body, counts in USED:
        model = fake.script([status(200, body)])
        assert (await api.call("POST", path, {"model": model})).status == 200
        expected[model] = counts
    events = (
        b'data: {"type": "transcript.text.done", "text": "x", "usage": {"type": "tokens", '
        b'"input_tokens": 14, "output_tokens": 2, "total_tokens": 16}}\n\n'
    )
    streamed = fake.script([raw(events)])
    form = (field("model", streamed), field("stream", "true"), file("file", b"x"))
    assert (await send_form(api, "/audio/transcriptions", *form)).status == 200
    expected[streamed] = (14, 2)
    audio = fake.script([status(200, b'"usage": {"total_tokens": 1}', {"content-type": "audio/x"})])
    assert (await api.call("POST", "/audio/speech", {"model": audio})).status == 200
    expected[audio] = (0, 0)
    failing = fake.script([status(400, b'{"error": {}, "usage": {"total_tokens": 1}}')])
    assert (await api.call("POST", "/embeddings", {"model": failing})).status == 400
    query = (
        "SELECT jsonb_object_agg(model, jsonb_build_array(input_tokens, output_tokens)) "
        "FROM usage_entries WHERE model = ANY(%s)"
    )

    async def stored() -> bool:
        found = await shared_stack.value(query, [*expected, failing])
        return {name: tuple(each) for name, each in (found or {}).items()} == expected

    await until(stored)


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        ({"n": 2**63}, {}),
        ({"n": 2**63 - 1}, {}),
        ({}, {"prompt_tokens": 2**63, "completion_tokens": 1e300}),
        ({}, {"prompt_tokens": float("nan"), "total_tokens": float("inf")}),
        ({}, {"prompt_tokens": -1, "prompt_tokens_details": {"cached_tokens": 10**30}}),
    ],
)
async def test_no_count_ends_a_process_or_hides_the_usage_of_others(
    shared_stack: Stack, fake: FakeUpstream, body: JSON, usage: JSON
) -> None:
    odd = fake.script([status(200, json.dumps({"data": [], "usage": usage}).encode())])
    plain = fake.script([status(200, b'{"usage": {"total_tokens": 5}}')])
    project = await limited_project(shared_stack)
    for model, fields in ((odd, body), (plain, {})):
        answer = await project.api().call(
            "POST", "/images/generations", {"model": model, "prompt": "x", **fields}
        )
        assert answer.status == 200
    stored = "SELECT count(*) = 2 FROM usage_entries WHERE project_id = %s"
    await until(lambda: shared_stack.value(stored, project.id))
    grant = KeyGrant(frozenset((Scope.ADMIN,)), "operations")
    admin = shared_stack.api(key=keys.create(shared_stack.dsn, "default", grant=grant))
    for kind in ("images", "completions"):
        page = await admin.call(
            "GET", f"/organization/usage/{kind}?start_time={int(time.time()) - 60}&bucket_width=1d"
        )
        assert page.status == 200, page.raw


async def test_a_name_of_a_model_is_bounded(shared_stack: Stack) -> None:
    answer = await shared_stack.api().call("POST", "/embeddings", {"model": "x" * 513})
    assert (answer.status, answer.error["code"]) == (400, "string_above_max_length")


async def test_usage_has_a_path_for_each_kind(shared_stack: Stack, fake: FakeUpstream) -> None:
    project = await limited_project(shared_stack)
    api = project.api()
    model = fake.script([status(200, b'{"usage": {"total_tokens": 5}}')])
    seconds = fake.script([status(200, b'{"text": "x", "usage": {"seconds": 2.5}}')])
    for path, body in (
        ("/embeddings", {"input": "x"}),
        ("/moderations", {"input": "x"}),
        ("/images/generations", {"prompt": "x", "n": 3}),
        ("/audio/speech", {"input": "twelve chars"}),
        ("/completions", {"prompt": "x"}),
    ):
        assert (await api.call("POST", path, {"model": model, **body})).status == 200
    picture = (field("model", model), field("n", "2"), file("image", b"x"))
    assert (await send_form(api, "/images/edits", *picture)).status == 200
    spoken = (field("model", seconds), file("file", b"x"))
    assert (await send_form(api, "/audio/transcriptions", *spoken)).status == 200
    await api.create(fake.script(reply("not proxied")))
    client = shared_stack.openai()
    grant = KeyGrant(frozenset((Scope.ADMIN,)), "operations")
    client.admin_api_key = keys.create(shared_stack.dsn, "default", grant=grant)
    usage = client.admin.organization.usage
    start = int(time.time()) - 60

    async def result(kind: str) -> Any:
        """The sum of all buckets, as the official client has it."""
        page = await getattr(usage, kind)(
            start_time=start,
            bucket_width="1d",
            project_ids=[admin_id(PROJECT, project.id)],
            group_by=["project_id"],
        )
        results = [found for bucket in page.data for found in bucket.results]
        return results[0] if results else None

    async def are_written() -> bool:
        return bool(
            await shared_stack.value(
                "SELECT count(*) = 8 FROM usage_entries WHERE project_id = %s", project.id
            )
        )

    await until(are_written)
    embedded = await result("embeddings")
    assert type(embedded).__name__ == "DataResultOrganizationUsageEmbeddingsResult"
    assert (embedded.input_tokens, embedded.num_model_requests) == (5, 1)
    assert embedded.project_id == admin_id(PROJECT, project.id)
    assert (await result("moderations")).input_tokens == 5
    images = await result("images")
    assert (images.images, images.num_model_requests) == (5, 2)
    assert (await result("audio_speeches")).characters == len("twelve chars")
    assert (await result("audio_transcriptions")).seconds == 3
    assert (await result("completions")).num_model_requests == 2
    admin = shared_stack.api(key=client.admin_api_key)
    wrong = await admin.call("GET", "/organization/usage/images?start_time=0&group_by=size")
    assert (wrong.status, wrong.error["param"]) == (400, "group_by")
    wrong = await admin.call("GET", "/organization/usage/images?start_time=0&sources=x")
    assert (wrong.status, wrong.error["code"]) == (400, "unsupported_parameter")


async def test_a_key_may_only_use_its_models(shared_stack: Stack, fake: FakeUpstream) -> None:
    key = keys.create(shared_stack.dsn, "default", grant=KeyGrant(allowed_models=("allowed-*",)))
    api = shared_stack.api(key=key)
    allowed = fake.script([status(200, EMBEDDING)], name="allowed-embedder")
    form = (field("model", fake.script(reply("x"))), file("file", b"x"))
    assert (await api.call("POST", "/embeddings", {"model": allowed})).status == 200
    refused = await send_form(api, FORM_PATHS[0], *form)
    assert (refused.status, refused.error["code"]) == (403, "model_not_found")
