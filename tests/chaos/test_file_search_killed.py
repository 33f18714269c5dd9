"""A worker is killed during a file search, and while it streams a marker: nothing is lost or shown
twice."""

import asyncio
import json
from functools import partial

import pytest

from tests.conftest import PrivateStack
from tests.support.api import Api, until
from tests.support.chaos.attempts import assert_one_stream
from tests.support.embeddings import EMBEDDING_MODEL, embeddings
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    UpstreamRequest,
    call,
    done,
    finish,
    hang,
    reply,
    silence_until,
    text,
    usage,
)
from tests.support.stack import SHORT_LEASES
from tests.support.tool_turns import item_statuses

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

SETTINGS = {**SHORT_LEASES, "BACKBURNER_RETRIEVAL__EMBEDDING_MODEL": EMBEDDING_MODEL}


async def _follow(api: Api, response_id: str) -> list[bytes]:
    async with api.follow(response_id) as stream:
        await stream.to_end()
        return stream.frames


async def _is_held(fake: FakeUpstream, model: str, word: str) -> bool:
    return any(word in json.dumps(each.body) for each in fake.requests_for(model))


async def test_a_search_and_its_citations_survive_a_killed_worker(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    is_killed = False

    def embed(request: UpstreamRequest) -> Script:
        held = not is_killed and "held" in json.dumps(request.body["input"])
        return [hang()] if held else embeddings(request)

    def marker_of(request: UpstreamRequest) -> str:
        content = str(request.messages[-1]["content"])
        return content.partition('marker="')[2].partition('"')[0]

    def in_search(request: UpstreamRequest) -> Script:
        if request.messages[-1]["role"] != "tool":
            return [call(0, "c", "file_search", '{"queries": ["held bread"]}'), *ending]
        return reply(f"An hour {marker_of(request)}.")

    def in_answer(request: UpstreamRequest) -> Script:
        if request.messages[-1]["role"] != "tool":
            return [call(0, "c", "file_search", '{"queries": ["bread"]}'), *ending]
        marker = marker_of(request)
        return reply(f"An hour {marker}.") if is_killed else [text("Half ", marker[:7]), hang()]

    ending = [finish("tool_calls"), usage(), done()]
    fake.decide(EMBEDDING_MODEL, embed)
    searching, answering = fake.script(), fake.script()
    fake.decide(searching, in_search)
    fake.decide(answering, in_answer)
    try:
        async with private_stack(webs=2, settings=SETTINGS) as own:
            client, api = own.openai(), own.api()
            store = await client.vector_stores.create()
            await client.vector_stores.files.upload_and_poll(
                vector_store_id=store.id, file=("bread.md", b"Bread rises in an hour.")
            )
            tools = [{"type": "file_search", "vector_store_ids": [store.id]}]
            models = (searching, answering)
            ids = [await api.create_background(model, tools=tools) for model in models]
            readers = [asyncio.create_task(_follow(own.api(1), each)) for each in ids]
            await until(partial(_is_held, fake, EMBEDDING_MODEL, "held bread"), 20)
            await until(partial(_is_held, fake, answering, "passage marker"), 20)
            own.kill(own.workers[0])
            is_killed = True
            await own.start_worker()
            ended = [await api.wait_for_end(each, within=40) for each in ids]
            frames = [await reader for reader in readers]
            for response, seen in zip(ended, frames, strict=True):
                assert await api.replay(response["id"]) == seen
                events = assert_one_stream(seen)
                assert events[-1]["response"]["output"] == response["output"]
                types = [event["type"] for event in events]
                for step in ("in_progress", "searching", "completed"):
                    assert types.count(f"response.file_search_call.{step}") == 1
                assert item_statuses(response) == [
                    "file_search_call completed",
                    "message completed",
                ]
                [part] = response["output"][-1]["content"]
                assert part["text"] == "An hour."
                assert [note["index"] for note in part["annotations"]] == [7]
                assert types.count("response.output_text.annotation.added") == 1
    finally:
        fake.decide(EMBEDDING_MODEL, embeddings)


async def test_a_search_waits_for_postgres(private_stack: PrivateStack, fake: FakeUpstream) -> None:
    is_away = asyncio.Event()

    def embed(request: UpstreamRequest) -> Script:
        held = "waiting" in json.dumps(request.body["input"])
        return [silence_until(is_away), *embeddings(request)] if held else embeddings(request)

    fake.decide(EMBEDDING_MODEL, embed)
    asked = [call(0, "c", "file_search", '{"queries": ["waiting bread"]}')]
    model = fake.script([*asked, finish("tool_calls"), usage(), done()], reply("ok"))
    settings = {"BACKBURNER_RETRIEVAL__EMBEDDING_MODEL": EMBEDDING_MODEL}
    try:
        async with private_stack(settings=settings, proxied=True) as own:
            client, api, worker = own.openai(), own.api(), own.workers[0]
            store = await client.vector_stores.create()
            await client.vector_stores.files.upload_and_poll(
                vector_store_id=store.id, file=("bread.md", b"Bread rises in an hour.")
            )
            tools = [{"type": "file_search", "vector_store_ids": [store.id]}]
            response_id = await api.create_background(
                model, tools=tools, include=["file_search_call.results"]
            )
            await until(partial(_is_held, fake, EMBEDDING_MODEL, "waiting bread"), 20)
            worker.proxies.postgres.refuse()
            is_away.set()

            async def has_met_it() -> bool:
                return "file_search_waits" in worker.tail(100_000)

            await until(has_met_it, 30)
            worker.proxies.postgres.heal()
            response = await api.wait_for_end(response_id, within=40)
            assert item_statuses(response) == ["file_search_call completed", "message completed"]
            assert len(response["output"][0]["results"]) == 1
    finally:
        fake.decide(EMBEDDING_MODEL, embeddings)
