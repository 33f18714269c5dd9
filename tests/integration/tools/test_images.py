"""Image generation: what the upstream of images gets, what the client sees, and what fails."""

import asyncio
import base64
import json
from functools import partial
from typing import Any

import openai
import psycopg
import pytest

from models.keys import KeyGrant
from tests.conftest import PrivateStack
from tests.support import keys
from tests.support.api import JSON, Api, Stream, decode, until
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    Step,
    call,
    done,
    drop,
    finish,
    raw,
    reply,
    usage,
    wait_for,
)
from tests.support.images import IMAGE_MODEL, answered, b64, image, png, streamed
from tests.support.stack import SHORT_LEASES, Stack
from tests.support.strict_types import check_event, check_response


def painting(prompt: str = "A cat", **arguments: Any) -> Script:
    """A turn with a call of the tool."""
    return [_paint(prompt, **arguments), finish("tool_calls"), usage(), done()]


def _paint(prompt: str, index: int = 0, **arguments: Any) -> Step:
    body = json.dumps({"prompt": prompt, **arguments})
    return call(index, f"call_{index}", "image_generation", body)


def tool(fake: FakeUpstream, *scripts: Script, **options: Any) -> JSON:
    """The tool, whose image model answers so."""
    return {"type": "image_generation", "model": fake.script(*scripts), **options}


async def read(api: Api, model: str, **body: Any) -> Stream:
    """Reads a background stream to its end and checks the events, GET and replay."""
    async with api.post_stream(model, background=True, **body) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    assert await api.get(stream.response_id) == stream.final
    assert [decode(frame) for frame in await api.replay(stream.response_id)] == events
    return stream


async def ask(stack: Stack, model: str, **body: Any) -> JSON:
    """The response of a foreground request, checked."""
    response = await stack.api().create(model, **body)
    check_response(response)
    return response


async def refuse(api: Api, model: str, **body: Any) -> JSON:
    """The error of a create that must be refused."""
    answer = await api.call("POST", "/responses", {"model": model, "input": "x", **body})
    assert answer.status in (400, 404), answer.raw
    error: JSON = answer.body["error"]
    return error


async def test_the_official_client_gets_an_image_with_the_options_of_its_tool(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    fake.decide(IMAGE_MODEL, lambda _: image(png(), size="1536x1024", quality="low"))
    model = fake.script(painting("A grey cat"), reply("Here it is."))
    before = len(fake.requests_for(IMAGE_MODEL))
    response = await tool_stack.openai().responses.create(
        model=model,
        input="Paint a cat",
        tools=[
            {
                "type": "image_generation",
                "size": "1536x1024",
                "quality": "low",
                "output_format": "png",
                "moderation": "low",
                "input_fidelity": "high",
            }
        ],
    )
    made, message = response.output
    assert made.type == "image_generation_call"
    assert (made.status, made.action, made.revised_prompt) == (
        "completed",
        "generate",
        "A revised cat",
    )
    assert (made.size, made.quality, made.output_format) == ("1536x1024", "low", "png")
    assert base64.b64decode(made.result or "") == png()
    assert message.type == "message"
    assert response.output_text == "Here it is."
    check_response(await tool_stack.api().get(response.id))
    [request] = fake.requests_for(IMAGE_MODEL)[before:]
    assert (request.path, request.headers["idempotency-key"]) == ("/v1/images/generations", made.id)
    assert request.body == {
        "model": IMAGE_MODEL,
        "prompt": "A grey cat",
        "size": "1536x1024",
        "quality": "low",
        "output_format": "png",
        "moderation": "low",
    }
    first, second = fake.requests_for(model)
    function = first.body["tools"][0]["function"]
    assert (function["name"], [*function["parameters"]["properties"]]) == (
        "image_generation",
        ["prompt"],
    )
    arguments = second.messages[-2]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"prompt": "A revised cat", "action": "generate"}
    assert "the user sees it" in second.messages[-1]["content"]
    assert b64(png()) not in second.body_text


async def test_a_key_with_a_list_of_models_needs_the_image_model_in_it(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    """Also the server's own, which the request does not name."""
    fake.decide(IMAGE_MODEL, lambda _: image(png()))
    for models, status in ((("painting-text",), 403), (("painting-text", IMAGE_MODEL), 200)):
        fake.script(painting(), reply("Done"), name="painting-text")
        grant = KeyGrant(allowed_models=models)
        key = keys.create(tool_stack.dsn, "default", grant=grant)
        body = {"model": "painting-text", "input": "A cat", "tools": [{"type": "image_generation"}]}
        answer = await tool_stack.api(key=key).call("POST", "/responses", body)
        assert answer.status == status, answer.raw


async def test_polls_of_a_response_that_runs_do_not_repeat_its_images(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    api, may_answer = tool_stack.api(), asyncio.Event()
    model = fake.script(painting(), [wait_for(may_answer), *reply("Done")])
    response_id = await api.create_background(model, tools=[tool(fake, image(png()))])
    async with api.follow(response_id) as stream:
        item = (await stream.until("response.output_item.done"))["item"]
    [shown] = (await api.get(response_id))["output"]
    assert (shown["status"], shown["result"]) == ("completed", None)
    may_answer.set()
    ended = await api.wait_for_end(response_id)
    assert ended["output"][0]["result"] == item["result"] == b64(png())


async def test_partial_images_are_streamed_and_usage_is_counted_once(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    partial_images = [png(1), png(2)]
    big = png(3, 300)
    painter = tool(fake, streamed(partial_images, big), partial_images=2)
    stream = await read(tool_stack.api(), fake.script(painting(), reply("Done")), tools=[painter])
    events = [e for e in stream.events if e["type"].startswith("response.image_generation_call")]
    assert [event["type"].rpartition(".")[2] for event in events] == [
        "in_progress",
        "generating",
        "partial_image",
        "partial_image",
        "completed",
    ]
    shown = [(event["partial_image_index"], event["partial_image_b64"]) for event in events[2:4]]
    assert shown == [(n, b64(content)) for n, content in enumerate(partial_images)]
    done_item = next(
        event["item"]
        for event in stream.events
        if event["type"] == "response.output_item.done" and "result" in event["item"]
    )
    assert done_item == stream.final["output"][0]
    assert done_item["result"] == b64(big)
    [request] = fake.requests_for(painter["model"])
    assert (request.body["stream"], request.body["partial_images"]) == (True, 2)
    used = await tool_stack.value(
        "SELECT concat_ws(' ', count(*), sum(input_tokens), sum(output_tokens), sum(units))"
        " FROM usage_entries WHERE kind = 'images' AND model = %s",
        painter["model"],
    )
    assert used == "1 11 22 1"


async def test_a_later_response_edits_the_image_of_an_earlier_one(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    painter = tool(fake, image(png(1)), image(png(2)), image(png(3)), image(png(4)))
    first = await ask(tool_stack, fake.script(painting(), reply("Done")), tools=[painter])
    model = fake.script(painting("Darker", action="edit"), reply("Done"))
    second = await ask(
        tool_stack, model, previous_response_id=first["id"], tools=[painter], input="Darker"
    )
    function = fake.requests_for(model)[0].body["tools"][0]["function"]
    assert [*function["parameters"]["properties"]] == ["prompt", "action"]
    edited = second["output"][0]
    assert (edited["action"], edited["result"]) == ("edit", b64(png(2)))
    request = fake.requests_for(painter["model"])[1]
    assert (request.path, request.files) == ("/v1/images/edits", {"image": png(1)})
    # By its id alone, as OpenAI's guide has it, and sent back with its content.
    given = [
        {"type": "image_generation_call", "id": first["output"][0]["id"]},
        {k: edited[k] for k in ("type", "id", "status", "result")},
    ]
    for item, expected in zip(given, (png(1), png(2)), strict=True):
        words = {"type": "message", "role": "user", "content": "Darker"}
        later = await ask(
            tool_stack,
            fake.script(painting("Darker"), reply("Done")),
            tools=[{**painter, "action": "edit"}],
            input=[words, item],
        )
        assert later["output"][0]["status"] == "completed", later["output"]
        assert fake.requests_for(painter["model"])[-1].files == {"image": expected}


async def test_input_images_and_a_mask_are_edited(tool_stack: Stack, fake: FakeUpstream) -> None:
    client = tool_stack.openai()
    picture = await client.files.create(file=("a.png", png(5)), purpose="vision")
    mask = await client.files.create(file=("m.png", png(6)), purpose="vision")
    painter = tool(
        fake,
        image(png(7)),
        action="edit",
        input_image_mask={"file_id": mask.id},
        input_fidelity="high",
    )
    content = [{"type": "input_image", "file_id": picture.id}]
    response = await ask(
        tool_stack,
        fake.script(painting(), reply("Done")),
        tools=[painter],
        input=[{"type": "message", "role": "user", "content": content}],
    )
    assert response["output"][0]["result"] == b64(png(7))
    [request] = fake.requests_for(painter["model"])
    assert request.files == {"image": png(5), "mask": png(6)}
    assert request.body["input_fidelity"] == "high"
    other = tool_stack.api(key=keys.create(tool_stack.dsn, "painters"))
    refused = await refuse(other, fake.script(reply("no")), tools=[painter])
    assert refused["code"] == "file_not_found"
    assert refused["param"] == "tools[0].input_image_mask.file_id"
    item = {"type": "image_generation_call", "id": response["output"][0]["id"]}
    await refuse(other, fake.script(reply("no")), input=[item])


BLOCKED = {
    "error": {
        "message": "Your request was rejected by the safety system.",
        "type": "image_generation_user_error",
        "code": "moderation_blocked",
    }
}


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (answered(BLOCKED, 400), "moderation_blocked", "rejected by the safety system"),
        (answered({"data": [{"b64_json": b64(b"<svg/>")}]}), None, "no image of a supported"),
        (answered({"data": [{"b64_json": "%%%"}]}), None, "no valid base64"),
        (answered({"data": [{"b64_json": b64(png(0, 1000))}]}), None, "larger than 1000000 bytes"),
        (answered({"data": [{"b64_json": b64(png(0, 3000))}]}), None, "larger than"),
        (answered(b"x" * 3_000_000), None, "larger than"),
        (answered({"data": []}), None, "no image"),
        (answered({"data": [], **BLOCKED}), "moderation_blocked", "rejected by the safety system"),
        (answered({"data": [{"url": "http://169.254.169.254/a.png"}]}), None, "downloaded"),
        (answered(b"<html>Bad gateway</html>", 502), None, "Bad gateway"),
        (drop(), None, "may or may not have been made"),
    ],
)
async def test_an_answer_without_an_image_is_told_to_the_model_and_the_client(
    tool_stack: Stack, fake: FakeUpstream, answer: Step, code: str | None, words: str
) -> None:
    painter = tool(fake, [answer])
    model = fake.script(painting(), reply("Sorry"))
    response = await ask(tool_stack, model, tools=[painter])
    failed, message = response["output"]
    assert (response["status"], failed["status"]) == ("completed", "failed")
    assert words in failed["error"]["message"]
    assert failed["error"]["code"] == code or code is None
    assert words in fake.requests_for(model)[1].messages[-1]["content"]
    assert message["content"][0]["text"] == "Sorry"
    assert len(fake.requests_for(painter["model"])) == 1


def events(*values: JSON) -> Script:
    """A stream of these events."""
    return [raw(f"data: {json.dumps(value)}\n\n".encode()) for value in values]


def divided(content: bytes) -> str:
    """Base64 in lines, as some encoders write it."""
    return base64.encodebytes(content).decode()


PARTIAL = {"type": "image_generation.partial_image", "b64_json": b64(png(1))}
LAST = {"type": "image_edit.completed", "b64_json": b64(png(2))}
FAULT = {"error": {"message": "Blocked.", "code": "moderation_blocked"}}


@pytest.mark.parametrize(
    ("script", "previews", "words"),
    [
        (events({"type": "ping"}, PARTIAL, LAST), 1, None),
        (events({"b64_json": b64(png(1)), "partial_image_index": 0}, LAST), 1, None),
        (events(LAST, FAULT), 0, None),
        (image(png(2)), 0, None),
        ([answered({"data": [{"b64_json": divided(png(2)).rstrip("=\n")}]})], 0, None),
        (events(PARTIAL, FAULT), 1, "Blocked."),
        (events({"type": "error", **FAULT}), 0, "Blocked."),
        (events(PARTIAL), 1, "no image"),
        (events({**PARTIAL, "b64_json": "%"}, LAST), 0, None),
    ],
)
async def test_streams_of_other_servers_are_understood(
    tool_stack: Stack, fake: FakeUpstream, script: Script, previews: int, words: str | None
) -> None:
    """Half an image is never taken for a whole one, and an error behind the image is no error."""
    painter = tool(fake, script, partial_images=1)
    stream = await read(tool_stack.api(), fake.script(painting(), reply("Done")), tools=[painter])
    kinds = [event["type"] for event in stream.events]
    assert kinds.count("response.image_generation_call.partial_image") == previews
    made = stream.final["output"][0]
    if words is None:
        assert made["result"] == b64(png(2))
    else:
        assert words in made["error"]["message"]


async def test_an_upstream_that_refuses_a_stream_is_asked_without_one(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    refusal = answered({"error": {"message": "Unknown parameter: 'partial_images'."}}, 400)
    painter = tool(fake, [refusal], image(png(8)), partial_images=1)
    response = await ask(tool_stack, fake.script(painting(), reply("Done")), tools=[painter])
    assert response["output"][0]["result"] == b64(png(8))
    assert "stream" not in fake.requests_for(painter["model"])[1].body


async def test_an_image_by_its_address_is_downloaded_through_the_guard(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        body = png(9)
        head = f"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        painter = tool(fake, [answered({"data": [{"url": f"http://127.0.0.1:{port}/a.png"}]})])
        response = await ask(tool_stack, fake.script(painting(), reply("Done")), tools=[painter])
    assert response["output"][0]["result"] == b64(png(9))


async def test_a_choice_of_the_tool_and_a_call_without_a_prompt(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    painter = tool(fake, image(png()))
    model = fake.script(painting(" "), reply("Done"))
    choice = {"type": "image_generation"}
    response = await ask(tool_stack, model, tools=[painter], tool_choice=choice)
    first, second = fake.requests_for(model)
    assert first.body["tool_choice"] == "required"
    assert second.body.get("tool_choice", "auto") == "auto"
    assert "needs a 'prompt'" in response["output"][0]["error"]["message"]
    assert not fake.requests_for(painter["model"])


async def test_without_a_model_for_images_the_tool_is_refused(
    client: openai.AsyncOpenAI, fake: FakeUpstream
) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        await client.responses.create(
            model=fake.script(reply("no")), input="x", tools=[{"type": "image_generation"}]
        )
    assert (refusal.value.code, refusal.value.param) == ("unsupported_parameter", "tools[0]")
    assert "BACKBURNER_IMAGES__MODEL" in str(refusal.value)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"partial_images": 4}, "tools[0].partial_images"),
        ({"size": "big"}, "tools[0].size"),
        ({"output_format": "svg"}, "tools[0].output_format"),
        ({"input_image_mask": {"image_url": "http://10.0.0.1/a.png"}}, "tools[0]"),
    ],
)
async def test_options_are_checked(
    tool_stack: Stack, fake: FakeUpstream, options: JSON, param: str
) -> None:
    painter = {"type": "image_generation", **options}
    refused = await refuse(tool_stack.api(), fake.script(reply("no")), tools=[painter])
    assert refused["param"].startswith(param)


async def test_two_images_of_one_turn_are_shown_one_after_the_other(
    tool_stack: Stack, fake: FakeUpstream
) -> None:
    painter = tool(fake, streamed([png(1)], png(2)), partial_images=1)
    turn = [_paint("A cat"), _paint("A dog", 1), finish("tool_calls"), usage(), done()]
    stream = await read(tool_stack.api(), fake.script(turn, reply("Done")), tools=[painter])
    assert [item.get("result") for item in stream.final["output"]] == [b64(png(2))] * 2 + [None]


@pytest.mark.long
@pytest.mark.timeout(90)
async def test_after_a_kill_the_image_is_not_paid_for_twice(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """Two workers are killed: one before the upstream answers, one when it has answered, and
    before that is stored. Nobody knows then whether the image was made."""
    settings = {**SHORT_LEASES, "BACKBURNER_IMAGES__MODEL": IMAGE_MODEL}
    never = asyncio.Event()
    async with private_stack(settings=settings) as running:
        api = running.api()
        for answers in (False, True):
            painter = tool(fake, image(png()) if answers else [wait_for(never)])
            model = fake.script(painting(), reply("Done"))
            async with await psycopg.AsyncConnection.connect(running.dsn) as held:
                await held.execute("LOCK TABLE usage_entries IN SHARE MODE")
                response_id = await api.create_background(model, tools=[painter])
                await until(partial(_is_reached, running, fake, painter, answers), 20)
                running.kill(running.workers[-1])
                await running.start_worker()
            ended = await api.wait_for_end(response_id, within=40)
            assert len(fake.requests_for(painter["model"])) == 1
            failed = ended["output"][0]
            assert (ended["status"], failed["status"]) == ("completed", "failed")
            assert "may or may not have happened" in failed["error"]["message"]
        never.set()


async def _is_reached(running: Stack, fake: FakeUpstream, painter: JSON, answers: bool) -> bool:
    """The upstream has the request; if it answers, its usage waits for the lock."""
    waits = (
        "SELECT count(*) > 0 FROM pg_locks"
        " WHERE relation = 'usage_entries'::regclass AND NOT granted"
    )
    is_sent = bool(fake.requests_for(painter["model"]))
    return is_sent and (not answers or await running.value(waits))
