"""Two cells behind each router of deploy/router. One of them dies."""

import asyncio
import json
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import openai
import pytest

from features.cells.commands import EXIT_CELL_DOWN
from features.cells.views import COLUMNS
from models.keys import new_key
from tests.support.api import UNKNOWN_RESPONSE_ID, Api, until
from tests.support.cell_routers import ROUTERS, CellRouter
from tests.support.cells import SecondCell, backburner
from tests.support.console import OPERATOR_TOKEN, ConsoleUser
from tests.support.fake_upstream import FakeUpstream, reply, text, wait_for
from tests.support.stack import Stack


async def _started(router: CellRouter, running: AsyncExitStack) -> CellRouter:
    await asyncio.to_thread(router.start)
    running.push_async_callback(asyncio.to_thread, router.stop)
    return router


def _client(router: CellRouter, key: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=router.base_url, api_key=key, max_retries=0, timeout=60)


async def _completed(client: openai.AsyncOpenAI, identifier: str) -> str:
    async def ended() -> str | None:
        found = await client.responses.retrieve(identifier)
        return found.output_text if found.status == "completed" else None

    return await until(ended) or ""


@pytest.mark.parametrize("kind", ROUTERS)
async def test_requests_go_to_the_cell_of_their_key(
    kind: type[CellRouter],
    tmp_path: Path,
    shared_stack: Stack,
    second: SecondCell,
    fake: FakeUpstream,
) -> None:
    """A stream that is not held back, background, a WebSocket, and the key in another header."""
    async with AsyncExitStack() as running:
        made = kind(tmp_path, shared_stack.webs[0].port or 0, second.stack.webs[0].port or 0)
        router = await _started(made, running)
        for cell in (shared_stack, second.stack):
            client = await running.enter_async_context(_client(router, cell.key))
            await _all_ways_work(client, fake)
            made_here = await client.responses.create(model=fake.script(reply("x")), input="Hi.")
            row = "SELECT 1 FROM responses WHERE replace(id::text, '-', '') = %s"
            assert await cell.value(row, made_here.id.removeprefix("resp_")) == 1
        headers = {"x-api-key": second.stack.key}
        body = {"model": fake.script(reply("fine")), "input": "Hi."}
        url = f"{router.base_url}/responses"
        async with second.stack.session.post(url, json=body, headers=headers) as answer:
            assert (await answer.json())["output_text"] == "fine"
        with pytest.raises(openai.NotFoundError, match="This is the cell 'b': ids of other cells"):
            await client.responses.retrieve(UNKNOWN_RESPONSE_ID)
        stranger = await running.enter_async_context(_client(router, new_key("zz")))
        with pytest.raises(openai.AuthenticationError, match="it is one of the cell 'zz'"):
            await stranger.models.list()


async def _all_ways_work(client: openai.AsyncOpenAI, fake: FakeUpstream) -> None:
    released = asyncio.Event()
    model = fake.script([text("first "), wait_for(released), *reply("second")])
    async with client.responses.stream(model=model, input="Hi.") as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                released.set()
        assert (await stream.get_final_response()).output_text == "first second"
    queued = await client.responses.create(
        model=fake.script(reply("later")), input="Hi.", background=True
    )
    assert await _completed(client, queued.id) == "later"
    async with client.responses.connect() as connection:
        await connection.response.create(model=fake.script(reply("socket")), input="Hi.")
        async for frame in connection:
            if frame.type == "response.completed":
                assert frame.response.output_text == "socket"
                break


async def test_all_cells_are_seen_at_once(shared_stack: Stack, second: SecondCell) -> None:
    """In the command line and in the console: projects, keys, usage, audit. A new key of `b` names
    its cell, also one that a command makes without the setting."""
    made = await backburner(second.stack, "keys", "create", "--name", "made-in-b", cell="")
    assert made.output.startswith("bb-b-")
    listed = await backburner(second.stack, "cells", "list", "--json")
    assert [(row["cell"], row["state"]) for row in json.loads(listed.output)] == [
        ("a", "answers"),
        ("b", "answers"),
    ]
    found = json.loads((await backburner(second.stack, "cells", "keys", "--json")).output)
    [key] = [row for row in found if row["name"] == "made-in-b"]
    assert (key["cell"], key["key"]) == ("b", f"{made.output[:10]}…")
    assert shared_stack.key[:8] in {row["key"][:8] for row in found if row["cell"] == "a"}
    revoked = await backburner(second.stack, "keys", "revoke", made.output[:10])
    assert (revoked.exit_code, made.output[:10] in revoked.output) == (0, True)
    console = ConsoleUser(f"http://127.0.0.1:{second.stack.webs[0].port}", second.stack.session)
    await console.log_in(OPERATOR_TOKEN)
    for view in COLUMNS:
        printed = await backburner(second.stack, "cells", view)
        page = await console.get(f"/console/cells?view={view}")
        assert (printed.exit_code, page.status) == (0, 200)
        assert "a b" not in page.text or "default" in page.text


async def test_clients_of_a_cell_do_not_notice_the_death_of_another(
    tmp_path: Path, shared_stack: Stack, second: SecondCell, fake: FakeUpstream
) -> None:
    """Everything of `b` is killed while both have streams through each router: those of `a` go on,
    and its next requests are served. Clients of `b` get 503 with a `Retry-After`."""
    ports = shared_stack.webs[0].port or 0, second.stack.webs[0].port or 0
    async with AsyncExitStack() as running:
        routers = [
            await _started(kind(tmp_path / kind.package, *ports), running)
            for kind in ROUTERS
            if kind.installed()
        ]
        if not routers:
            pytest.skip("none of nginx, Caddy and Envoy is installed")
        released, began = asyncio.Event(), asyncio.Queue[None]()

        async def stream(client: openai.AsyncOpenAI) -> str:
            model = fake.script([text("first "), wait_for(released), *reply("second")])
            async with client.responses.stream(model=model, input="Hi.") as events:
                async for event in events:
                    if event.type == "response.output_text.delta":
                        began.put_nowait(None)
                return (await events.get_final_response()).output_text

        async def cut_off(api: Api) -> str:
            async with api.post_stream(fake.script([text("first "), wait_for(released)])) as events:
                await events.until("response.output_text.delta")
                began.put_nowait(None)
                ended = await events.to_end()
            return str(ended[-1]["type"])

        of_a = [await running.enter_async_context(_client(r, shared_stack.key)) for r in routers]
        of_b = [await running.enter_async_context(_client(r, second.stack.key)) for r in routers]
        streams = [asyncio.create_task(stream(client)) for client in of_a]
        raw = [replace(second.stack.api(), base_url=router.base_url) for router in routers]
        streams += [asyncio.create_task(cut_off(api)) for api in raw]
        for _ in streams:
            await began.get()
        second.kill()
        for client in of_a:
            made = await client.responses.create(
                model=fake.script(reply("fine")), input="Hi.", background=True
            )
            assert await _completed(client, made.id) == "fine"
        for client in of_b:
            with pytest.raises(openai.InternalServerError) as refused:
                await client.responses.create(model="any", input="Hi.")
            assert (refused.value.status_code, refused.value.code) == (503, "cell_unavailable")
            assert refused.value.response.headers["retry-after"] == "2"
        listed = await backburner(second.stack, "cells", "list")
        assert listed.exit_code == EXIT_CELL_DOWN
        assert "b does not answer" in " ".join(listed.output.split()).replace(
            f"http://127.0.0.1:{ports[1]} ", ""
        )
        released.set()
        ends = await asyncio.gather(*streams, return_exceptions=True)
        assert ends[: len(of_a)] == ["first second"] * len(of_a)
        assert "response.completed" not in ends
