"""What a project has travels with it: in the other cell all of it is there, once."""

import asyncio
import base64
import io
import json
import os
import signal
import sys
from typing import Any
from uuid import UUID, uuid4

import openai
import psycopg
import pytest

from models.ids import new_uuid
from models.keys import KeyGrant, bootstrap, new_key
from models.projects.scopes import Scope
from tests.conftest import PrivateStack
from tests.support import batches, keys
from tests.support.api import JSON, until
from tests.support.cells import SecondCell, backburner, move
from tests.support.fake_upstream import (
    FakeUpstream,
    call,
    done,
    finish,
    hang,
    reply,
    text,
    usage,
    wait_for,
)
from tests.support.images import image, png
from tests.support.stack import SHORT_LEASES, Stack
from tests.support.webhook_receiver import webhook_receiver
from tests.support.webhooks import Hooks, unwrap
from tests.support.websocket_client import socket as websocket

_IS_HERE = "SELECT 1 FROM {} WHERE id = %s"
_MOON = "The tides of the sea are made by the moon. "


async def test_chains_conversations_and_files_go_on_in_the_other_cell(
    shared_stack: Stack, second: SecondCell, fake: FakeUpstream
) -> None:
    """A chain, a conversation and files that the first cell has made are continued in the second
    one, with what is new there; what still runs ends where it is, and follows."""
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, "writer")
    client, released = shared_stack.openai(key=key), asyncio.Event()
    content = os.urandom(700_000)
    file = await client.files.create(file=("old.txt", io.BytesIO(b"old text")), purpose="user_data")
    large = await client.files.create(file=("a.bin", io.BytesIO(content)), purpose="user_data")
    first = await client.responses.create(model=fake.script(reply("one")), input="First.")
    last = await client.responses.create(
        model=fake.script(reply("two")),
        input=_asking("Second.", file.id),
        previous_response_id=first.id,
    )
    conversation = await client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "I am Ada."}], metadata={"of": "a"}
    )
    await client.responses.create(
        model=fake.script(reply("Hello Ada.")), input="Hello.", conversation=conversation.id
    )
    busy = await client.conversations.create()
    begun = await client.responses.create(
        model=fake.script(reply("begun")), input="Begin.", conversation=busy.id
    )
    fork = await client.responses.create(
        model=fake.script(reply("fork")), input="Fork.", previous_response_id=begun.id
    )
    running = await client.responses.create(
        model=fake.script([text("not "), wait_for(released), *reply("yet")]),
        input="Wait.",
        conversation=busy.id,
        background=True,
    )
    other = await asyncio.to_thread(keys.create, shared_stack.dsn, "neighbour")
    kept = await shared_stack.api(key=other).create(fake.script(reply("kept")))
    items = await _items(client, conversation.id)
    events = await shared_stack.api(key=key).get(last.id)

    printed = await move(second, "writer")

    assert "conversations: 1, responses: 2" in printed.split("still in a:")[1]
    there = second.stack.openai(key=key)
    assert (await there.files.content(large.id)).content == content
    assert [each.id for each in (await there.files.list()).data] == [large.id, file.id]
    assert await second.stack.api(key=key).get(last.id) == events
    assert await _items(there, conversation.id) == items
    assert await second.stack.value(_IS_HERE.format("responses"), _uuid(kept["id"])) is None
    assert await second.stack.value(_IS_HERE.format("responses"), _uuid(running.id)) is None

    new = await client.files.create(file=("new.txt", io.BytesIO(b"new text")), purpose="user_data")
    model = fake.script(reply("three"))
    third = await client.responses.create(
        model=model, input=_asking("Third.", file.id, new.id), previous_response_id=last.id
    )
    assert third.output_text == "three"
    sent = json.dumps(fake.requests_for(model)[-1].body["messages"])
    positions = [sent.index(each) for each in ("First.", "one", "Second.", "two", "Third.")]
    assert positions == sorted(positions)
    assert all(base64.b64encode(each).decode() in sent for each in (b"old text", b"new text"))
    model = fake.script(reply("You are Ada."))
    await client.responses.create(model=model, input="Who am I?", conversation=conversation.id)
    sent = json.dumps(fake.requests_for(model)[-1].body["messages"])
    positions = [sent.index(each) for each in ("I am Ada.", "Hello.", "Hello Ada.", "Who am I?")]
    assert positions == sorted(positions)
    await client.conversations.update(conversation.id, metadata={"of": "b"})
    assert (await there.conversations.retrieve(conversation.id)).metadata == {"of": "b"}
    await client.files.delete(file.id)
    assert [each.id for each in (await there.files.list()).data] == [new.id, large.id]

    body = {"model": model, "conversation": busy.id}
    refused = await shared_stack.api(key=key).call("POST", "/responses", {**body, "input": "?"})
    assert refused.status in (400, 409)  # its response still runs
    asked = {**body, "input": _asking("?", new.id)}
    refused = await shared_stack.api(key=key).call("POST", "/responses", asked)
    assert (refused.status, refused.headers["retry-after"]) == (503, "1")  # they are in two cells
    released.set()
    await until(lambda: _has_ended(client, running.id), 30)
    assert "still in a" not in await move(second, "writer")
    assert (await there.responses.retrieve(running.id)).output_text == "not yet"
    assert [item["content"][0]["text"] for item in await _items(there, busy.id)] == [
        *("Begin.", "begun", "Wait.", "not yet"),
    ]
    model = fake.script(reply("last"))
    await client.responses.create(model=model, input="Go on.", previous_response_id=fork.id)
    sent = json.dumps(fake.requests_for(model)[-1].body["messages"])
    assert "Begin." in sent
    assert "Wait." not in sent


async def test_a_vector_store_is_searched_as_before(tool_stack: Stack, second: SecondCell) -> None:
    """With its embeddings, which are not made again, and its attributes. It changes in the other
    cell."""
    key = await asyncio.to_thread(keys.create, tool_stack.dsn, "reader")
    client = tool_stack.openai(key=key)
    file = await client.files.create(file=("moon.txt", (_MOON * 60).encode()), purpose="assistants")
    store = await client.vector_stores.create(name="sea", file_ids=[file.id], metadata={"a": "b"})
    await until(lambda: _is_ingested(client, store.id), 30, every=0.05)
    await client.vector_stores.files.update(file.id, vector_store_id=store.id, attributes={"n": 1})
    before = await client.vector_stores.search(store.id, query="moon")
    assert before.data

    await move(second, "reader", tool_stack)

    there = second.stack.openai(key=key)
    after = await there.vector_stores.search(store.id, query="moon")
    assert [each.model_dump() for each in after.data] == [each.model_dump() for each in before.data]
    more = await client.files.create(
        file=("bread.txt", b"Bread is made of flour."), purpose="assistants"
    )
    await client.vector_stores.files.create(store.id, file_id=more.id)
    await until(lambda: _is_ingested(there, store.id), 30, every=0.05)
    assert (await there.vector_stores.retrieve(store.id)).file_counts.completed == 2
    await client.vector_stores.files.delete(file.id, vector_store_id=store.id)
    assert len((await there.vector_stores.files.list(store.id)).data) == 1


async def test_a_change_at_the_moment_of_leaving_is_made_in_the_other_cell(
    shared_stack: Stack, second: SecondCell, fake: FakeUpstream
) -> None:
    """A request has passed the look-up in the first cell, and waits for the row; then the row
    leaves. The change is made once, where the conversation is now."""
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, "racer")
    client = shared_stack.openai(key=key)
    conversation = await client.conversations.create(metadata={"of": "a"})
    lock = "SELECT 1 FROM conversations WHERE id = %s FOR UPDATE"
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ %s"
    async with await psycopg.AsyncConnection.connect(shared_stack.dsn) as connection:
        await connection.execute(lock, [_uuid(conversation.id)])
        moving = asyncio.create_task(move(second, "racer"))
        await until(lambda: shared_stack.value(waiting, "FOR UPDATE"), 30)
        said: Any = {"type": "message", "role": "user", "content": "Once."}
        adding = asyncio.create_task(
            client.conversations.items.create(conversation.id, items=[said])
        )
        await until(lambda: shared_stack.value(waiting, "UPDATE conversations"), 30)
    await adding
    await moving
    there = await _items(second.stack.openai(key=key), conversation.id)
    assert [item["content"][0]["text"] for item in there] == ["Once."]


async def test_schedules_webhooks_images_batches_and_containers_travel(
    tool_stack: Stack, second: SecondCell, fake: FakeUpstream
) -> None:
    """A schedule is due in one cell only; a webhook is delivered once for each response, signed as
    before. An ended batch and an idle container are there with their files."""
    async with webhook_receiver() as receiver:
        hooks = Hooks(tool_stack, "planner")
        _, secret = await hooks.create(receiver)
        template = {"model": fake.script(reply("planned")), "input": "Hi.", "background": True}
        made = await hooks.api.call(
            "POST", "/schedules", {"cron": "0 0 1 1 *", "template": template}
        )
        assert made.status == 200, made.raw
        fake.decide("cat-painter", lambda _: image(png()))
        paint = [call(0, "call_0", "image_generation", '{"prompt": "A cat"}'), finish("tool_calls")]
        painted = await hooks.api.create(
            fake.script([*paint, usage(), done()], reply("Here it is.")),
            tools=[{"type": "image_generation", "model": "cat-painter"}],
        )
        assert painted["output"][0]["result"]
        client = tool_stack.openai(key=hooks.api.key)
        started = await batches.start(client, [batches.line("one", fake.script(reply("lined")))])
        batch = await batches.until_status(client, started, "completed")
        written = await batches.results(client, batch.output_file_id)
        container = await client.containers.create(name="bench")
        file = await client.containers.files.create(container.id, file=("a.csv", b"1,2"))
        await until(lambda: len(receiver.hooks) == 1, 30)  # of the batch

        assert "still in a" not in await move(second, "planner", tool_stack)

        for reader in (client, second.stack.openai(key=hooks.api.key)):
            assert await reader.batches.retrieve(batch.id) == batch
            assert [each.id for each in (await reader.batches.list()).data] == [batch.id]
            assert await batches.results(reader, batch.output_file_id) == written
            assert (await reader.containers.retrieve(container.id)).name == "bench"
            assert [each.id for each in (await reader.containers.list()).data] == [container.id]
            files = reader.containers.files
            assert [each.id for each in (await files.list(container.id)).data] == [file.id]
            content = await files.content.retrieve(file.id, container_id=container.id)
            assert content.read() == b"1,2"

        due = "SELECT due_at IS NOT NULL FROM schedules WHERE id = %s"
        assert not await tool_stack.value(due, _uuid(made.body["id"]))
        assert await second.stack.value(due, _uuid(made.body["id"]))
        there = second.stack.api(key=hooks.api.key)
        assert await there.get(painted["id"]) == painted
        run = await hooks.api.call("POST", f"/schedules/{made.body['id']}/run")
        assert run.status == 200, run.raw
        await until(lambda: len(receiver.hooks) == 2, 30)
        event = unwrap(receiver.hooks[1], secret)
        assert (await there.get(event.data.id))["output_text"] == "planned"


@pytest.mark.parametrize("killed", ["command", pytest.param("cell", marks=pytest.mark.long)])
async def test_a_killed_move_is_repeated(
    shared_stack: Stack, second: SecondCell, fake: FakeUpstream, killed: str
) -> None:
    """What it has copied is the first cell's until it has left; nothing is there twice. The command
    is killed, or the web process of the second cell."""
    project = f"killed {killed}"
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, project)
    client = shared_stack.openai(key=key)
    files = [
        (await client.files.create(file=(f"{n}", os.urandom(50_000)), purpose="user_data")).id
        for n in range(12)
    ]
    stored = await client.responses.create(model=fake.script(reply("stored")), input="Hi.")
    arguments = ["cells", "move", project, "--from", "a", "--to", "b"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "cli.main",
        *arguments,
        env=second.stack.environment(),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    count = "SELECT count(*) FROM files WHERE completed_at IS NOT NULL AND id = ANY(%s::uuid[])"
    ids = [_uuid(each) for each in files]
    await until(lambda: _is_over(second.stack, count, ids, 3), 30, every=0.01)
    if killed == "command":
        process.send_signal(signal.SIGKILL)
        await process.wait()
    else:
        [web] = second.stack.webs
        second.stack.kill(web)
        assert await process.wait() == 1
        await second.stack.start_web(web.port)
    gone = files.pop()
    await client.files.delete(gone)
    await move(second, project)
    there = second.stack.openai(key=key)
    assert sorted(each.id for each in (await there.files.list()).data) == sorted(files)
    assert (await there.responses.retrieve(stored.id)).output_text == "stored"


@pytest.mark.long
async def test_the_first_cell_is_killed_while_things_leave_it(
    private_stack: PrivateStack, second: SecondCell, fake: FakeUpstream
) -> None:
    """Its web process and its worker, while the conversation has left and the files wait. What was
    open there is answered once, and follows."""
    async with private_stack(webs=1, workers=1, settings=SHORT_LEASES) as source:
        key = await asyncio.to_thread(keys.create, source.dsn, "half gone")
        client, there = source.openai(key=key), second.stack.openai(key=key)
        file = await client.files.create(file=("a", io.BytesIO(b"bytes")), purpose="user_data")
        conversation = await client.conversations.create(metadata={"of": "a"})
        stored = await client.responses.create(
            model=fake.script(reply("stored")), input="Hi.", conversation=conversation.id
        )
        model = fake.script([text("lost"), hang()], reply("once"))
        running = await client.responses.create(model=model, input="Hi.", background=True)
        await until(lambda: len(fake.requests_for(model)) == 1)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        async with await psycopg.AsyncConnection.connect(source.dsn) as lock:
            await lock.execute("SELECT 1 FROM files WHERE id = %s FOR UPDATE", [_uuid(file.id)])
            moving = asyncio.create_task(move(second, "half gone", source, exit_code=1))
            await until(lambda: source.value(f"{waiting} AND query ~ 'FOR UPDATE'"), 30)
            [web], [worker] = source.webs, source.workers
            source.kill(web)
            source.kill(worker)
        assert "does not answer" in await moving
        assert (await there.responses.retrieve(stored.id)).output_text == "stored"
        await asyncio.gather(source.start_web(web.port), source.start_worker())
        assert (await client.files.content(file.id)).content == b"bytes"
        assert (await client.conversations.retrieve(conversation.id)).metadata == {"of": "a"}
        await until(lambda: _has_ended(client, running.id), 30)
        assert "still in a" not in await move(second, "half gone", source)
        for reader in (client, there):
            assert (await reader.responses.retrieve(running.id)).output_text == "once"
            assert [each.id for each in (await reader.files.list()).data] == [file.id]
            assert (await reader.files.content(file.id)).content == b"bytes"
            said = [item["content"][0]["text"] for item in await _items(reader, conversation.id)]
            assert said == ["Hi.", "stored"]
        count = "SELECT count(*) FROM responses WHERE id = ANY(%s::uuid[])"
        assert await second.stack.value(count, [_uuid(stored.id), _uuid(running.id)]) == 2
        assert len(fake.requests_for(model)) == 2


@pytest.mark.parametrize("in_steps", [False, pytest.param(True, marks=pytest.mark.long)])
async def test_a_project_comes_back(
    tool_stack: Stack, second: SecondCell, fake: FakeUpstream, in_steps: bool
) -> None:
    """With what was made and changed meanwhile, by the same ids, once. `in_steps`: a response runs
    while it comes back, all requests work, and it leaves again."""
    name = f"wanderer {in_steps}"
    key = await asyncio.to_thread(keys.create, tool_stack.dsn, name)
    client, there = tool_stack.openai(key=key), second.stack.openai(key=key)
    old = await client.files.create(file=("old", io.BytesIO(b"old")), purpose="user_data")
    gone = await client.responses.create(model=fake.script(reply("gone")), input="Hi.")
    first = await client.responses.create(model=fake.script(reply("one")), input="First.")
    conversation = await client.conversations.create()
    talk = await client.responses.create(
        model=fake.script(reply("Hello.")), input="Hi.", conversation=conversation.id
    )
    store = await client.vector_stores.create(name="sea", file_ids=[old.id])
    container = await client.containers.create(name="bench")
    await until(lambda: _is_ingested(client, store.id), 30, every=0.05)
    assert "still in a" not in await move(second, name, tool_stack)

    await client.responses.delete(gone.id)
    new = await client.files.create(file=("new", io.BytesIO(b"new")), purpose="user_data")
    last = await client.responses.create(
        model=fake.script(reply("two")), input="Second.", previous_response_id=first.id
    )
    asked: Any = {"type": "message", "role": "user", "content": "More."}
    await client.conversations.items.create(conversation.id, items=[asked])
    await client.vector_stores.update(store.id, name="ocean")
    await client.containers.files.create(container.id, file=("a.csv", b"1,2"))
    made = {first.id: "one", last.id: "two", talk.id: "Hello."}

    async def all_is_there() -> None:
        for reader in (client, there):
            for each, said in made.items():
                assert (await reader.responses.retrieve(each)).output_text == said
            with pytest.raises(openai.NotFoundError):
                await reader.responses.retrieve(gone.id)
            assert (await reader.files.content(old.id)).content == b"old"
            assert (await reader.files.content(new.id)).content == b"new"
            items = await _items(reader, conversation.id)
            assert [each["content"][0]["text"] for each in items] == ["Hi.", "Hello.", "More."]
            assert (await reader.vector_stores.retrieve(store.id)).name == "ocean"
            assert [e.id for e in (await reader.vector_stores.files.list(store.id)).data] == [
                old.id
            ]
            listed = (await reader.containers.files.list(container.id)).data
            assert [each.path for each in listed] == ["/mnt/data/a.csv"]

    if in_steps:
        released = asyncio.Event()
        model = fake.script([text("not "), wait_for(released), *reply("yet")])
        running = await client.responses.create(model=model, input="Wait.", background=True)
        assert "still in b: responses: 1" in await move(second, name, tool_stack, back=True)
        made[running.id] = "not "
        await all_is_there()
        for made_up in ("", "-1", "soon", "9" * 5000):
            relayed = {"x-backburner-relayed": made_up}
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(running.id, extra_headers=relayed)
        more = await client.responses.create(model=fake.script(reply("more")), input="More.")
        assert await tool_stack.value(_IS_HERE.format("responses"), _uuid(more.id))
        async with websocket(tool_stack.api(key=key)) as socket:
            model = fake.script(reply("said"))
            said = await socket.create_and_read(model, previous_response_id=more.id)
        assert await tool_stack.value(_IS_HERE.format("responses"), _uuid(said["id"]))
        refused = await move(second, name, tool_stack, exit_code=1)
        assert "earlier move" in refused
        released.set()
        await until(lambda: _has_ended(client, running.id), 30)
        made |= {running.id: "not yet", more.id: "more", said["id"]: "said"}
    assert "still in b" not in await move(second, name, tool_stack, back=True)
    await all_is_there()
    assert not await tool_stack.value(
        "SELECT policy->>'moved_to' FROM projects WHERE name = %s", name
    )
    count = """SELECT count(*) FROM responses r JOIN projects p ON p.id = r.project_id
               WHERE p.name = %s AND r.delete_requested_at IS NULL"""
    assert await tool_stack.value(count, name) == len(made)
    assert await second.stack.value(count, name) == 0
    assert len((await client.files.list()).data) == 2
    assert (await client.vector_stores.search(store.id, query="old")).data
    for stranger in (tool_stack.openai(), second.stack.openai()):
        with pytest.raises(openai.NotFoundError):
            await stranger.responses.retrieve(last.id)
    third = await there.responses.create(
        model=fake.script(reply("three")), input="Third.", previous_response_id=last.id
    )
    assert await tool_stack.value(_IS_HERE.format("responses"), _uuid(third.id)) == 1
    if in_steps:
        made[third.id] = "three"
        assert "still in a" not in await move(second, name, tool_stack)
        await all_is_there()
        assert await second.stack.value(count, name) == len(made)


async def test_a_cell_that_cannot_read_what_is_sealed_takes_nothing_over(
    shared_stack: Stack, second: SecondCell
) -> None:
    """Before anything is copied, and the project stays where it is."""
    await asyncio.to_thread(keys.create, second.stack.dsn, "sealed")
    arguments = ("cells", "move", "sealed", "--from", "b", "--to", "a")
    refused = await backburner(second.stack, *arguments)
    assert refused.exit_code == 1
    assert "BACKBURNER_SECRET_KEYS" in refused.output
    count = "SELECT count(*) FROM projects WHERE name = 'sealed'"
    assert await shared_stack.value(count) == 0


async def test_strange_rows_are_refused(
    shared_stack: Stack, second: SecondCell, fake: FakeUpstream
) -> None:
    """Those of another project, those that this cell has of its own, and those of an older command.
    A key without the scope `admin` reads and writes nothing."""
    key = await asyncio.to_thread(keys.create, second.stack.dsn, "victim")
    victim = await second.stack.api(key=key).create(fake.script(reply("mine")))
    await asyncio.to_thread(keys.create, second.stack.dsn, "thief")
    find = "SELECT id FROM projects WHERE name = %s"
    project = await second.stack.value(find, "thief")
    admin = new_key("b")
    bootstrap(second.stack.dsn, admin, grant=KeyGrant(scopes=frozenset((Scope.ADMIN,))))
    run = str(uuid4())
    await second.stack.value(
        "INSERT INTO project_moves (project_id, run) VALUES (%s, %s) RETURNING run", project, run
    )
    row = await second.stack.value(
        "SELECT row_to_json(r)::text FROM responses r WHERE id = %s", _uuid(victim["id"])
    )
    fresh, mine = new_uuid(), _uuid(victim["id"])
    item = {"id": 1, "response_id": str(mine), "direction": "input", "position": 9, "size": 1}
    item |= {"item_id": "msg_1", "type": "message", "payload": {}}
    stolen = json.loads(row) | {"id": str(fresh)}
    open_one = stolen | {"project_id": str(project), "status": "queued"}

    async def put(kind: str, *lines: str, of: str = run, by: str = admin) -> int:
        return await _put(second.stack, f"{project.hex}", kind, of, "\n".join((*lines, "")), by)

    assert await put("responses", f"ids {mine}", f"responses {row}", "end") == 400
    assert await put("responses", f"ids {fresh}", f"responses {json.dumps(stolen)}", "end") == 400
    assert await put("responses", f"ids {fresh}", f"responses {json.dumps(open_one)}", "end") == 400
    assert await put("responses", f"ids {fresh}", f"items {json.dumps(item)}", "end") == 400
    assert await put("responses", f"ids {fresh}", "api_keys {}", "end") == 400
    assert await put("responses", f"ids {fresh}", "responses {", "end") == 400
    assert await put("responses", f"ids {fresh}") == 400
    assert await put("files", json.dumps({"id": 5})) == 400
    assert await put("responses", f"ids {fresh}", "end", of=str(uuid4())) == 400
    assert await put("responses", f"ids {fresh}", "end", by=key) == 403
    assert await put("responses", f"ids {fresh}", "end") == 200
    assert await second.stack.value(_IS_HERE.format("responses"), fresh) is None
    assert (await second.stack.api(key=key).get(victim["id"]))["output_text"] == "mine"


async def _put(stack: Stack, project: str, kind: str, run: str, body: str, key: str) -> int:
    url = f"http://127.0.0.1:{stack.webs[0].port}/v1/organization/cell/projects/proj_{project}"
    async with stack.session.put(
        f"{url}/things?kind={kind}&run={run}",
        data=body,
        headers={"authorization": f"Bearer {key}"},
    ) as answer:
        return answer.status


def _asking(question: str, *files: str) -> Any:
    content: list[JSON] = [{"type": "input_file", "file_id": each} for each in files]
    content.append({"type": "input_text", "text": question})
    return [{"role": "user", "content": content}]


def _uuid(public: str) -> UUID:
    return UUID(public[-32:])


async def _items(client: openai.AsyncOpenAI, conversation: str) -> list[JSON]:
    """The oldest first."""
    page = await client.conversations.items.list(conversation, order="asc", limit=100)
    return [item.model_dump() for item in page.data]


async def _has_ended(client: openai.AsyncOpenAI, response: str) -> bool:
    return (await client.responses.retrieve(response)).status == "completed"


async def _is_ingested(client: openai.AsyncOpenAI, store: str) -> bool:
    return not (await client.vector_stores.retrieve(store)).file_counts.in_progress


async def _is_over(stack: Stack, count: str, ids: list[UUID], least: int) -> bool:
    return bool(await stack.value(count, ids) >= least)
