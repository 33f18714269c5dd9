"""A project moves to another cell while its clients work."""

import asyncio
import io
import json

import openai
import pytest
from websockets.exceptions import InvalidStatus

from cli.embedded.process import free_port
from models.keys import new_key
from tests.support import keys
from tests.support.api import HttpResponse, until
from tests.support.cells import SecondCell, backburner, move
from tests.support.fake_upstream import FakeUpstream, hang, reply, text, wait_for
from tests.support.stack import Stack
from tests.support.websocket_client import socket as websocket

_COUNT = """SELECT count(*) FROM responses r JOIN projects p ON p.id = r.project_id
    WHERE p.name = 'mover' AND r.background"""
_STAYED = f"{_COUNT} AND NOT EXISTS (SELECT 1 FROM moved_things m WHERE m.id = r.id)"
_IS_STORED = "SELECT 1 FROM responses WHERE replace(id::text, '-', '') = %s"


async def test_a_project_moves_under_load_and_nothing_is_lost_or_made_twice(
    shared_stack: Stack, second: SecondCell, fake: FakeUpstream
) -> None:
    """The old key works all the time. What ran ends where it is; what was stored is found and
    continued; new responses are made in the other cell, once each, and none is refused."""
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, "mover")
    client = shared_stack.openai(key=key)
    released, made = asyncio.Event(), list[str]()
    model = fake.script([text("first "), wait_for(released), *reply("second")])
    running = await client.responses.create(model=model, input="Hi.", background=True)
    ended = await client.responses.create(model=fake.script(reply("old")), input="Hi.")
    conversation = await client.conversations.create()
    file = await client.files.create(file=("a.txt", io.BytesIO(b"content")), purpose="user_data")
    once = {"Idempotency-Key": "before-the-move"}
    quick = fake.script(*[reply("quick")] * 2000)

    async def make(**more: str) -> str:
        response = await client.responses.create(
            model=quick, input="Hi.", background=True, extra_headers=more
        )
        return response.id

    repeated = await make(**once)

    async def load() -> None:
        while not released.is_set():
            made.append(await make())
            await _wait_until_completed(client, made[-1])

    loads = [asyncio.create_task(load()) for _ in range(2)]
    await until(lambda: len(made) > 10)
    assert "still in a: responses: 1" in await move(second, "mover")
    await until(lambda: _count_is_over(second.stack, 10))
    assert "0 keys are new" in await move(second, "mover")
    released.set()
    await asyncio.gather(*loads)
    await _wait_until_completed(client, running.id)
    assert "still in a" not in await move(second, "mover")
    # the repeated one, and the one that ran
    assert await shared_stack.value(_STAYED) == 0
    assert await second.stack.value(_COUNT) == len(set(made)) + 2 == len(made) + 2
    assert await make(**once) == repeated
    continued = await client.responses.create(
        model=fake.script(reply("more")), input="And?", previous_response_id=ended.id
    )
    assert await second.stack.value(_IS_STORED, continued.id.removeprefix("resp_")) == 1
    assert (await client.conversations.retrieve(conversation.id)).id == conversation.id
    assert (await client.files.content(file.id)).content == b"content"
    await _new_things_live_in_the_other_cell(client, second.stack, fake)
    stranger = shared_stack.openai(key=new_key())
    try:
        await stranger.responses.retrieve(ended.id)
    except openai.AuthenticationError:
        return
    raise AssertionError("a stranger's key was accepted")


async def test_a_client_that_leaves_ends_its_response_in_the_other_cell(
    shared_stack: Stack, second: SecondCell, fake: FakeUpstream
) -> None:
    """Through the first cell, as without it."""
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, "leaver")
    await move(second, "leaver")
    api, status = shared_stack.api(key=key), "SELECT status FROM responses WHERE id = %s"

    async def is_relayed() -> bool:
        made = await api.create(fake.script(reply("made")))
        return bool(await second.stack.value(status, made["id"].removeprefix("resp_")))

    await until(is_relayed)
    async with api.post_stream(fake.script([text("first"), hang()])) as stream:
        await stream.until("response.output_text.delta")
        left = stream.response_id.removeprefix("resp_")
        assert await second.stack.value(status, left) == "in_progress"

    async def is_cancelled() -> bool:
        return bool(await second.stack.value(status, left) == "cancelled")

    await until(is_cancelled)


async def test_a_websocket_is_one_of_the_other_cell(
    shared_stack: Stack, second: SecondCell, fake: FakeUpstream
) -> None:
    """A chain of unstored responses on it, and a stored one that the first cell has made."""
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, "socket")
    api = shared_stack.api(key=key)
    old = await api.create(fake.script(reply("old")))
    await move(second, "socket")
    async with websocket(api) as socket:
        first = await socket.create_and_read(
            fake.script(reply("one")), previous_response_id=old["id"], store=False
        )
        model = fake.script(reply("two"))
        last = await socket.create_and_read(model, previous_response_id=first["id"])
        sent = json.dumps(fake.requests_for(model)[-1].body["messages"])
        assert "old" in sent
        assert "one" in sent
        await socket.send(type="nonsense")
        assert (await socket.next())["type"] == "error"
    assert await second.stack.value(_IS_STORED, last["id"].removeprefix("resp_")) == 1
    with pytest.raises(InvalidStatus, match="401"):
        async with websocket(shared_stack.api(key=new_key())):
            pass


async def test_while_the_other_cell_is_away_what_is_here_is_served(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    """New requests get 503 with a `Retry-After`, and work again when the project is back."""
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, "stranded")
    api = shared_stack.api(key=key)
    stored = await api.create(fake.script(reply("here")))
    away = json.dumps({"moved_to": f"http://127.0.0.1:{free_port()}"})
    arguments = ("projects", "set", "stranded", "--policy")
    assert (await backburner(shared_stack, *arguments, away)).exit_code == 0
    model = fake.script(*[reply("new")] * 100)

    async def answer(status: int) -> HttpResponse | None:
        found = await api.call("POST", "/responses", {"model": model, "input": "Hi."})
        return found if found.status == status else None

    refused = await until(lambda: answer(503))
    assert refused is not None
    assert int(refused.headers["retry-after"]) >= 1
    assert "cell of this project" in refused.error["message"]
    assert (await api.get(stored["id"]))["output_text"] == "here"
    assert (await backburner(shared_stack, *arguments, '{"moved_to": null}')).exit_code == 0
    await until(lambda: answer(200))


async def _new_things_live_in_the_other_cell(
    client: openai.AsyncOpenAI, other: Stack, fake: FakeUpstream
) -> None:
    """Streams, files, and keys that name the cell."""
    file = await client.files.create(file=("b.txt", io.BytesIO(b"new")), purpose="user_data")
    stored = "SELECT 1 FROM files WHERE replace(id::text, '-', '') = %s"
    assert await other.value(stored, file.id.removeprefix("file-")) == 1
    assert (await client.files.content(file.id)).content == b"new"
    released = asyncio.Event()
    model = fake.script([text("not "), wait_for(released), *reply("held back")])
    async with client.responses.stream(model=model, input="Hi.") as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                released.set()
        answer = await stream.get_final_response()
    assert answer.output_text == "not held back"
    assert await other.value(_IS_STORED, answer.id.removeprefix("resp_")) == 1
    own = await backburner(other, "keys", "create", "--project", "mover")
    found = await other.openai(key=own.output.strip()).responses.retrieve(answer.id)
    assert own.output.startswith("bb-b-")
    assert found.output_text == "not held back"


async def _wait_until_completed(client: openai.AsyncOpenAI, identifier: str) -> None:
    async def is_completed() -> bool:
        return (await client.responses.retrieve(identifier)).status == "completed"

    await until(is_completed, 30)


async def _count_is_over(cell: Stack, least: int) -> bool:
    return bool(await cell.value(_COUNT) > least)
