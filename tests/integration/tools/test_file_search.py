"""File search: what the model gets, what the client sees, and what cannot be searched."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import openai
import psycopg
import pytest

from models.projects.policy import ProjectPolicy
from tests.support import keys
from tests.support.api import JSON, Api, Stream, decode, until
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.embeddings import EMBEDDING_MODEL, embeddings
from tests.support.fake_upstream import (
    Exchange,
    FakeUpstream,
    Script,
    Step,
    UpstreamRequest,
    call,
    done,
    finish,
    hang,
    reply,
    status,
    text,
    usage,
    wait_for,
)
from tests.support.files_to_read import pages_with_text
from tests.support.mcp_servers import McpServers
from tests.support.projects import limited_project
from tests.support.stack import Stack
from tests.support.strict_types import check_event, check_response
from tests.support.tool_turns import counting_server

TIDES = "The tides of the sea are made by the moon. Spring tides come twice a month."
BREAD = "Bread is made of flour and water. Yeast makes it rise in an hour."
WITH_RESULTS = ["file_search_call.results"]


@dataclass(frozen=True)
class Library:
    """Vector stores that all tests search, and none changes."""

    stack: Stack
    client: openai.AsyncOpenAI
    texts: str
    """with a text file"""
    pdf: str
    """with a PDF"""
    empty: str
    files: dict[str, str]
    """name -> id"""

    @property
    def api(self) -> Api:
        return self.stack.api()

    def tool(self, *stores: str, **more: Any) -> JSON:
        """The tool with these stores, or with those that have files."""
        return {
            "type": "file_search",
            "vector_store_ids": list(stores) or [self.texts, self.pdf],
            **more,
        }


@pytest.fixture(scope="module")
async def library(tool_stack: Stack) -> Library:
    client = tool_stack.openai()
    stores, files = [], {}
    given: list[tuple[str, bytes, dict[str, Any]]] = [
        ("bread.md", BREAD.encode(), {"topic": "baking"}),
        ("tides.pdf", pages_with_text([TIDES]), {"topic": "sea"}),
    ]
    for name, content, attributes in given:
        store = await client.vector_stores.create(name=name)
        file = await client.files.create(file=(name, content), purpose="assistants")
        added = await client.vector_stores.files.create_and_poll(
            file.id, vector_store_id=store.id, attributes=attributes, poll_interval_ms=50
        )
        assert (added.status, added.last_error) == ("completed", None)
        stores.append(store.id)
        files[name] = file.id
    empty = await client.vector_stores.create()
    return Library(tool_stack, client, stores[0], stores[1], empty.id, files)


def search(*queries: str, index: int = 0) -> Step:
    """The model's call of the tool."""
    arguments = json.dumps({"queries": queries})
    return call(index, f"call_{index}", "file_search", arguments)


def calling(*steps: Step) -> Script:
    """A turn that ends with calls."""
    return [*steps, finish("tool_calls"), usage(), done()]


def markers_in(request: UpstreamRequest) -> dict[str, str]:
    """name of a file -> its marker, in all that the model got."""
    found = re.findall(r'marker=\\"(\[cite:\w+\])\\" filename=\\"([^"\\]+)', request.body_text)
    return {name: marker for marker, name in found}


def citing(
    fake: FakeUpstream, answer: Callable[[dict[str, str]], list[str]], *turns: Script
) -> str:
    """A model with these turns; then it answers with these pieces, made of the markers that it
    got."""
    name = fake.script()
    turn = iter(turns)

    def decide(request: UpstreamRequest) -> Script:
        return next(turn, None) or [text(*answer(markers_in(request))), finish(), usage(), done()]

    fake.decide(name, decide)
    return name


async def read(library: Library, model: str, **body: Any) -> Stream:
    """Reads a background stream to its end and checks the events, GET and replay."""
    api = library.api
    async with api.post_stream(model, background=True, **body) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    assert await api.get(stream.response_id) == stream.final
    assert [decode(frame) for frame in await api.replay(stream.response_id)] == events
    return stream


def tool_message(fake: FakeUpstream, model: str, turn: int = 1) -> str:
    """The first output of a tool that the model got in this turn."""
    messages = fake.requests_for(model)[turn].messages
    return str(next(each["content"] for each in messages if each["role"] == "tool"))


# The reference's cases.


@pytest.mark.parametrize("name", ["bread.md", "tides.pdf"])
async def test_an_answer_cites_the_file_that_it_is_from(
    library: Library, fake: FakeUpstream, name: str
) -> None:
    question, fact = {
        "bread.md": ("How long does bread rise?", "in an hour"),
        "tides.pdf": ("What makes the tides?", "by the moon"),
    }[name]
    model = citing(
        fake, lambda markers: [f"It is {fact} {markers[name]}."], calling(search(question))
    )
    response = await library.client.responses.create(
        model=model,
        input=question,
        tools=[{"type": "file_search", "vector_store_ids": [library.texts, library.pdf]}],
        include=["file_search_call.results"],
    )
    found, message = response.output
    assert found.type == "file_search_call"
    assert (found.id[:3], found.status, found.queries) == ("fs_", "completed", [question])
    assert found.results is not None
    best = found.results[0]
    assert (best.file_id, best.filename) == (library.files[name], name)
    assert fact in (best.text or "")
    assert (best.score or 0) > 0
    assert best.attributes == {"topic": "baking" if name == "bread.md" else "sea"}
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert part.text == f"It is {fact}."
    assert [each.to_dict() for each in part.annotations] == [
        {
            "type": "file_citation",
            "file_id": library.files[name],
            "filename": name,
            "index": len(part.text) - 1,
        }
    ]
    check_response(await library.api.get(response.id))
    function = fake.requests_for(model)[0].body["tools"][0]["function"]
    assert (function["name"], function["parameters"]["required"]) == ("file_search", ["queries"])
    shown = tool_message(fake, model)
    assert f'file_id="{library.files[name]}" score="' in shown
    assert fact in shown


async def test_a_search_and_its_citations_are_streamed(
    library: Library, fake: FakeUpstream
) -> None:
    def pieces(markers: dict[str, str]) -> list[str]:
        bread, tides = markers["bread.md"], markers["tides.pdf"]
        cut = [bread[:3], bread[3:9], bread[9:]]
        return ["An hour ", *cut, ". The moon", tides, " [and] ", "[cite:00000000]", " ", bread]

    question = "How long does bread rise, and what makes the tides?"
    model = citing(fake, pieces, calling(text("Let me see."), search(question, "bread", "moon")))
    stream = await read(library, model, tools=[library.tool()])
    types = [event["type"].removeprefix("response.") for event in stream.events]
    start = types.index("file_search_call.in_progress")
    assert types[start - 1 : start + 4] == [
        "output_item.added",
        "file_search_call.in_progress",
        "file_search_call.searching",
        "file_search_call.completed",
        "output_item.done",
    ]
    opened, closed = stream.events[start - 1]["item"], stream.events[start + 3]["item"]
    assert opened == {
        "id": opened["id"],
        "type": "file_search_call",
        "status": "in_progress",
        "queries": [],
    }
    queries = [question, "bread", "moon"]
    assert closed == {**opened, "status": "completed", "queries": queries}
    for event in stream.events[start : start + 3]:
        assert event.keys() == {"type", "item_id", "output_index", "sequence_number"}
        assert (event["item_id"], event["output_index"]) == (opened["id"], 1)
    [part] = stream.final["output"][2]["content"]
    assert part["text"] == "An hour. The moon [and] [cite:00000000]"
    cited = [(note["filename"], note["index"]) for note in part["annotations"]]
    assert cited == [("bread.md", 7), ("tides.pdf", 17), ("bread.md", 39)]
    deltas = [e["delta"] for e in stream.events if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "Let me see." + part["text"]
    added = [e for e in stream.events if e["type"] == "response.output_text.annotation.added"]
    assert [(e["annotation_index"], e["annotation"]) for e in added] == list(
        enumerate(part["annotations"])
    )
    later = await library.api.call(
        "GET", f"/responses/{stream.response_id}", params={"include[]": "file_search_call.results"}
    )
    results = later.body["output"][1]["results"]
    assert {each["filename"] for each in results} == {"bread.md", "tides.pdf"}
    with_results = await read(
        library,
        citing(fake, pieces, calling(search("bread", "moon"))),
        tools=[library.tool()],
        include=WITH_RESULTS,
    )
    item = with_results.final["output"][0]
    for result in item["results"]:
        assert result.keys() == {"file_id", "filename", "score", "attributes", "text"}


async def test_an_empty_store_gives_a_completed_call_without_results_and_an_answer(
    library: Library, fake: FakeUpstream
) -> None:
    model = fake.script(calling(search("anything")), reply("I do not know."))
    stream = await read(library, model, tools=[library.tool(library.empty)], include=WITH_RESULTS)
    found, message = stream.final["output"]
    assert (found["status"], found["results"]) == ("completed", [])
    assert message["content"][0]["text"] == "I do not know."
    assert tool_message(fake, model) == "No passage was found."


async def test_searches_follow_each_other_beside_other_tools(
    library: Library, fake: FakeUpstream, mcp_servers: McpServers
) -> None:
    counted = call(1, "call_m", "count_read_only", json.dumps({"key": "beside a file search"}))
    model = citing(
        fake,
        lambda markers: [f"An hour{markers['bread.md']}, the moon{markers['tides.pdf']}."],
        calling(search("bread"), counted),
        calling(search("flour"), search("tides", index=1)),
    )
    tools = [library.tool(), counting_server(mcp_servers), {"type": "function", "name": "look"}]
    stream = await read(library, model, tools=tools)
    assert [f"{item['type']} {item['status']}" for item in stream.final["output"]] == [
        "mcp_list_tools completed",
        "file_search_call completed",
        "mcp_call completed",
        "file_search_call completed",
        "file_search_call completed",
        "message completed",
    ]
    assert len(stream.final["output"][-1]["content"][0]["annotations"]) == 2
    roles = [message["role"] for message in fake.requests_for(model)[2].messages]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool", "tool"]
    # A call of the client's tool ends the response; the search before it has its result.
    mixed = fake.script(calling(search("bread"), call(1, "call_f", "look", "{}")))
    response = await library.api.create(mixed, tools=tools[:1] + tools[2:])
    assert [item["type"] for item in response["output"]] == ["file_search_call", "function_call"]


async def test_a_later_response_knows_an_earlier_search(
    library: Library, fake: FakeUpstream
) -> None:
    """By `previous_response_id`, in a conversation, and from the client's own copy of the items."""

    def cited(response: JSON) -> list[str]:
        return [note["filename"] for note in response["output"][0]["content"][0]["annotations"]]

    tools, api = [library.tool()], library.api
    conversation = (await api.call("POST", "/conversations", {})).body["id"]
    model = citing(fake, lambda m: [f"An hour{m['bread.md']}."], calling(search("bread rise")))
    first = await api.create(model, tools=tools, conversation=conversation, include=WITH_RESULTS)
    assert first["output"][0]["results"]
    listed = await api.call("GET", f"/conversations/{conversation}/items")
    assert "file_search_call" in [item["type"] for item in listed.body["data"]]
    items = [{"role": "user", "content": "Hi."}, *first["output"], {"role": "user", "content": "?"}]
    plain = [
        {name: value for name, value in item.items() if name not in ("id", "results")}
        if item.get("type") == "file_search_call"
        else item
        for item in items
    ]
    for continued in (
        {"conversation": conversation},
        {"previous_response_id": first["id"], "tools": []},
        {"input": items, "store": False},
    ):
        assert cited(await api.create(model, **{"tools": tools, **continued})) == ["bread.md"]
        roles = [message["role"] for message in fake.requests_for(model)[-1].messages]
        assert roles[:4] == ["user", "assistant", "tool", "assistant"], continued
    # Without its results nothing is known of the search, and the answer stands for it.
    answering = fake.script(reply("ok"))
    await api.create(answering, input=plain, tools=tools)
    roles = [message["role"] for message in fake.requests_for(answering)[0].messages]
    assert roles == ["user", "assistant", "user"]


async def test_the_tool_is_chosen_limited_and_run_one_call_at_a_time(
    library: Library, fake: FakeUpstream
) -> None:
    tools = [{"type": "function", "name": "look"}, library.tool()]
    choices: list[tuple[JSON, str]] = [
        ({"type": "file_search"}, "auto"),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "file_search"}]}, "none"),
    ]
    for choice, later in choices:
        model = fake.script(calling(search("bread"), search("moon", index=1)), reply("ok"))
        response = await library.api.create(
            model, tools=tools, tool_choice=choice, max_tool_calls=1, parallel_tool_calls=False
        )
        assert [item["type"] for item in response["output"]] == ["file_search_call", "message"]
        first, second = (request.body for request in fake.requests_for(model))
        assert [tool["function"]["name"] for tool in first["tools"]] == ["file_search"]
        assert (first["tool_choice"], second["tool_choice"]) == ("required", later)
    own: JSON = {"type": "function", "name": "file_search"}
    model = fake.script(calling(call(0, "c", "file_search", "{}")))
    response = await library.api.create(model, tools=[own, library.tool()])
    assert [item["type"] for item in response["output"]] == ["function_call"]
    names = [tool["function"]["name"] for tool in fake.requests_for(model)[0].body["tools"]]
    assert names == ["file_search", "file_search__file_search"]


async def test_the_options_of_the_tool_decide_what_is_found(
    library: Library, fake: FakeUpstream
) -> None:
    async def found(**options: Any) -> list[str]:
        model = fake.script(calling(search("bread", "tides of the sea")), reply("ok"))
        tools = [library.tool(**options)]
        response = await library.api.create(model, tools=tools, include=WITH_RESULTS)
        assert response["tools"] == tools
        return [each["filename"] for each in response["output"][0]["results"]]

    assert sorted(await found()) == ["bread.md", "tides.pdf"]
    assert len(await found(max_num_results=1)) == 1
    sea = {"type": "eq", "key": "topic", "value": "sea"}
    assert await found(filters=sea) == ["tides.pdf"]
    ranking: JSON = {"ranker": "none", "score_threshold": 1.0}
    assert await found(ranking_options=ranking) == []
    ranking = {"hybrid_search": {"embedding_weight": 0, "text_weight": 1}}
    assert sorted(await found(ranking_options=ranking)) == ["bread.md", "tides.pdf"]


# What cannot be searched.


async def test_a_search_that_cannot_be_done_is_refused_at_the_door(
    library: Library, fake: FakeUpstream
) -> None:
    stack = library.stack
    other = stack.openai(key=await asyncio.to_thread(keys.create, stack.dsn, "other-library"))
    theirs = (await other.vector_stores.create()).id
    gone = (await library.client.vector_stores.create()).id
    await library.client.vector_stores.delete(gone)
    expired = (
        await library.client.vector_stores.create(
            expires_after={"anchor": "last_active_at", "days": 1}
        )
    ).id
    await stack.value(
        "UPDATE vector_stores SET expires_at = now() WHERE id = %s::uuid RETURNING 1",
        expired.removeprefix("vs_"),
    )
    ids, tool = "tools[0].vector_store_ids", library.tool
    bad_filter = {"type": "like", "key": "a", "value": "b"}
    no_weight = {"hybrid_search": {"embedding_weight": 0, "text_weight": 0}}
    cases: list[tuple[list[JSON], int, str | None, str]] = [
        ([tool(theirs)], 404, None, ids),
        ([tool(gone)], 404, None, ids),
        ([tool("vs_" + "0" * 32)], 404, None, ids),
        ([tool(library.texts, "vs_1")], 404, None, ids),
        ([tool(expired)], 400, "vector_store_expired", ids),
        ([tool(*[library.texts] * 9)], 400, "array_above_max_length", ids),
        ([{"type": "file_search", "vector_store_ids": []}], 400, "empty_array", ids),
        ([{"type": "file_search"}], 400, "missing_required_parameter", ids),
        ([tool(max_num_results=51)], 400, "integer_above_max_value", "tools[0].max_num_results"),
        ([tool(filters=bad_filter)], 400, "invalid_value", "tools[0].filters.type"),
        (
            [tool(ranking_options={"score_threshold": 2})],
            400,
            "decimal_above_max_value",
            "tools[0].ranking_options.score_threshold",
        ),
        (
            [tool(ranking_options=no_weight)],
            400,
            "invalid_value",
            "tools[0].ranking_options.hybrid_search",
        ),
        ([tool(), tool()], 400, "invalid_value", "tools[1]"),
    ]
    model = fake.script(reply("never"))
    for tools, code, error, param in cases:
        body = {"model": model, "input": "Hi.", "tools": tools}
        answer = await library.api.call("POST", "/responses", body)
        assert (answer.status, answer.error["code"], answer.error["param"]) == (
            code,
            error,
            param,
        ), answer.raw
    messages = set()
    for store in (theirs, gone):
        body = {"model": model, "input": "Hi.", "tools": [tool(store)]}
        answer = await library.api.call("POST", "/responses", body)
        messages.add(answer.error["message"].replace(store, "…"))
    assert len(messages) == 1, "another project's store is not told from one that never was"
    kept_nothing = await limited_project(stack)
    await stack.value(
        "UPDATE projects SET policy = %s::jsonb WHERE id = %s RETURNING 1",
        ProjectPolicy(zero_retention=True).model_dump_json(exclude_defaults=True),
        kept_nothing.id,
    )
    body = {"model": model, "input": "Hi.", "tools": [tool()]}

    async def is_refused() -> bool:
        answer = await kept_nothing.api().call("POST", "/responses", body)
        return bool(answer.error["code"] == "unsupported_parameter")

    await until(is_refused)
    assert not fake.requests_for(model)


@pytest.fixture
async def held_queries(fake: FakeUpstream) -> AsyncIterator[dict[str, Script]]:
    """word -> how the upstream answers requests for embeddings of texts with it."""
    answers: dict[str, Script] = {}

    def decide(request: UpstreamRequest) -> Script:
        texts = json.dumps(request.body["input"])
        held = next((script for word, script in answers.items() if word in texts), None)
        return held or embeddings(request)

    fake.decide(EMBEDDING_MODEL, decide)
    yield answers
    fake.decide(EMBEDDING_MODEL, embeddings)


async def test_a_search_that_fails_is_told_to_the_model_which_answers(
    library: Library, fake: FakeUpstream, held_queries: dict[str, Script]
) -> None:
    held_queries |= {"broken": [status(503)], "refused": [status(400)]}
    embedded = "The files cannot be searched now: the queries could not be embedded."
    bad_json = call(0, "c", "file_search", '{"queries": [')
    for step, error in (
        (search("broken"), embedded),
        (search("refused"), embedded),
        (bad_json, "A file search needs 'queries': a list of texts to search for."),
    ):
        model = fake.script(calling(step), reply("I could not look."))
        stream = await read(library, model, tools=[library.tool()])
        found, message = stream.final["output"]
        assert (found["status"], "results" in found) == ("failed", False)
        assert message["content"][0]["text"] == "I could not look."
        assert tool_message(fake, model).startswith(f"Error: {error}")


@pytest.mark.parametrize("end", ["deleted", "expired"])
async def test_a_store_that_ends_while_the_response_runs_is_searched_no_more(
    library: Library, fake: FakeUpstream, end: str
) -> None:
    store = (await library.client.vector_stores.create(name="short-lived")).id
    ended = asyncio.Event()
    found = {}
    for name, tool in (
        ("both", library.tool(store, library.texts)),
        ("alone", library.tool(store)),
    ):
        model = fake.script([wait_for(ended), *calling(search("bread"))], reply("ok"))
        found[name] = await library.api.create_background(model, tools=[tool])
        await until(partial(_is_called, fake, model))
    if end == "deleted":
        await library.client.vector_stores.delete(store)
    else:
        await library.stack.value(
            "UPDATE vector_stores SET expires_at = now() WHERE id = %s RETURNING 1",
            store.removeprefix("vs_"),
        )
    ended.set()
    outputs = {
        name: (await library.api.wait_for_end(each))["output"] for name, each in found.items()
    }
    assert [item["status"] for item in outputs["both"]] == ["completed", "completed"]
    assert [item["status"] for item in outputs["alone"]] == ["failed", "completed"]


async def _is_called(fake: FakeUpstream, model: str) -> bool:
    return bool(fake.requests_for(model))


async def test_a_store_is_searched_while_another_of_its_files_is_ingested(
    library: Library, fake: FakeUpstream, held_queries: dict[str, Script]
) -> None:
    client, ingested = library.client, asyncio.Event()

    async def embed_later(exchange: Exchange) -> None:
        await ingested.wait()
        for step in embeddings(exchange.request):
            await step(exchange)

    held_queries["Stars"] = [embed_later]
    store = await client.vector_stores.create()
    later = await client.vector_stores.files.upload(
        vector_store_id=store.id, file=("stars.txt", b"Stars shine at night.")
    )
    await client.vector_stores.files.create_and_poll(
        library.files["bread.md"], vector_store_id=store.id, poll_interval_ms=50
    )
    assert (await client.vector_stores.retrieve(store.id)).status == "in_progress"
    names = []
    for _ in range(2):
        model = citing(fake, lambda m: [f"Found {'; '.join(m)}."], calling(search("bread stars")))
        stream = await read(library, model, tools=[library.tool(store.id)])
        names.append(stream.final["output"][1]["content"][0]["text"])
        ingested.set()
        await client.vector_stores.files.poll(
            later.id, vector_store_id=store.id, poll_interval_ms=50
        )
    assert names[0] == "Found bread.md."
    assert "stars.txt" in names[1]


@pytest.mark.long
async def test_a_search_that_takes_too_long_fails_alone(
    library: Library, fake: FakeUpstream
) -> None:
    """PostgreSQL ends a statement after 15 s: here it waits for a lock."""
    model = fake.script(calling(search("bread")), reply("I could not look."))
    async with (
        await psycopg.AsyncConnection.connect(library.stack.dsn) as connection,
        connection.transaction(),
    ):
        await connection.execute("LOCK TABLE vector_store_chunks")
        created = await library.api.create_background(model, tools=[library.tool()])
        with pytest.raises(openai.InternalServerError, match="The search took too long") as slow:
            await library.client.vector_stores.search(library.texts, query="bread")
        ended = await library.api.wait_for_end(created)
    assert slow.value.response.headers["x-should-retry"] == "false"
    assert [item["status"] for item in ended["output"]] == ["failed", "completed"]


async def test_a_search_that_was_interrupted_is_made_again(
    library: Library, fake: FakeUpstream, held_queries: dict[str, Script]
) -> None:
    """An operator hands the response over between the begin of the call and its answer. The next
    attempt goes on with the stored call."""
    held_queries["interrupted"] = [hang()]
    model = citing(
        fake, lambda m: [f"An hour {m['bread.md']}."], calling(search("interrupted bread"))
    )
    api = library.api
    async with api.post_stream(model, background=True, tools=[library.tool()]) as stream:
        await stream.until("response.file_search_call.searching")

        async def is_held() -> bool:
            asked = fake.requests_for(EMBEDDING_MODEL)
            return "interrupted bread" in asked[-1].body["input"]

        await until(is_held)
        del held_queries["interrupted"]
        await library.stack.value(
            "UPDATE responses SET requeue_requested_at = now() WHERE id = %s::uuid RETURNING 1",
            stream.response_id.removeprefix("resp_"),
        )
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    assert [item["type"] for item in stream.final["output"]] == ["file_search_call", "message"]
    assert [e["type"] for e in events].count("response.file_search_call.searching") == 1
    assert stream.final["output"][1]["content"][0]["annotations"][0]["filename"] == "bread.md"
    assert len(fake.requests_for(model)) == 2, "no turn of the model is repeated"
    assert await api.get(stream.response_id) == stream.final


async def test_what_searches_use_is_counted(library: Library, fake: FakeUpstream) -> None:
    project = await limited_project(library.stack)
    client = library.stack.openai(key=project.key)
    store = await client.vector_stores.create()
    await client.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("a.txt", BREAD.encode()), poll_interval_ms=50
    )
    used = (
        "SELECT count(*) FROM usage_entries"
        " WHERE project_id = %s AND model = %s AND kind = 'embeddings'"
    )
    before = await library.stack.value(used, project.id, EMBEDDING_MODEL)
    assert before == 1, "the chunks of the file"
    used += " AND api_key_id IS NOT NULL"
    model = fake.script(calling(search("bread")), reply("ok"))
    await project.api().create(model, tools=[library.tool(store.id)])
    assert await library.stack.value(used, project.id, EMBEDDING_MODEL) == 1
    await client.vector_stores.search(store.id, query="bread")
    assert await library.stack.value(used, project.id, EMBEDDING_MODEL) == 2
