"""Web search through the whole product: each provider's wire, what the client gets, what the model is told, and every kind of trouble."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PrivateStack
from tests.support.api import JSON, Stream, decode, until
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import FakeUpstream, Step, call, done, finish, reply, text, usage
from tests.support.search_engine import (
    Page,
    Responder,
    SearchEngine,
    cut_short,
    endless,
    http_answer,
    running,
    silent,
)
from tests.support.stack import SHORT_LEASES, Databases, Stack, SuiteSettings, stack
from tests.support.strict_types import check_event, check_response

KEY = "canary-search-key-4711"
SEARCH: JSON = {"type": "web_search"}
RAIN = Page("The weather", "https://weather.example/today", "It rains in Bonn.")
NEWS = Page("News", "https://news.example/a_(b)", "Nothing happened.")
ANSWER = "It rains ([The weather](https://weather.example/today)), and [nothing](https://news.example/a_(b)) happened. See [x](https://else.example/)."
PATHS = {"tavily": "", "brave": "/res/v1", "searxng": ""}


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[SearchEngine]:
    async with running() as one:
        yield one


async def _searching(
    folder: Path, provider: str, engine: SearchEngine, *surrounding: Any, **more: str
) -> AsyncIterator[Stack]:
    settings = {
        "BACKBURNER_WEB_SEARCH__PROVIDER": provider,
        "BACKBURNER_WEB_SEARCH__BASE_URL": f"{engine.url}{PATHS[provider]}",
        "BACKBURNER_WEB_SEARCH__API_KEY": KEY,
        "BACKBURNER_LOG_LEVEL": "debug",
        **more,
    }
    database_server, suite_settings, fake = surrounding
    async with stack(folder, database_server, suite_settings, fake, settings=settings) as one:
        yield one


@pytest.fixture(scope="module", params=["tavily", "brave", "searxng"])
async def anywhere(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
    engine: SearchEngine,
) -> AsyncIterator[tuple[str, Stack]]:
    """A deployment with this provider."""
    async for one in _searching(
        tmp_path_factory.mktemp(request.param),
        request.param,
        engine,
        database_server,
        suite_settings,
        fake,
    ):
        yield request.param, one


@pytest.fixture(scope="module")
async def searching(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
    engine: SearchEngine,
) -> AsyncIterator[Stack]:
    """A deployment that asks Tavily, with little patience."""
    impatient = {
        "BACKBURNER_WEB_SEARCH__TIMEOUT": "2",
        "BACKBURNER_WEB_SEARCH__ANSWER_BYTES": "300000",
        "BACKBURNER_LIMITS__TURNS": "6",
    }
    async for one in _searching(
        tmp_path_factory.mktemp("search"),
        "tavily",
        engine,
        database_server,
        suite_settings,
        fake,
        **impatient,
    ):
        yield one


def asks(query: str, index: int = 0, call_id: str = "call_s") -> Step:
    """The model searches."""
    return call(index, call_id, "web_search", json.dumps({"query": query}))


def calling(*steps: Step) -> list[Step]:
    """A turn that ends with calls."""
    return [*steps, finish("tool_calls"), usage(), done()]


async def heard(one: Stack, model: str, **body: Any) -> Stream:
    """A background stream read to its end, right in every respect."""
    api = one.api()
    async with api.post_stream(model, background=True, **body) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    assert await api.get(stream.response_id) == stream.final
    assert [decode(frame) for frame in await api.replay(stream.response_id)] == events
    return stream


def told(fake: FakeUpstream, model: str, turn: int = 1) -> JSON:
    """What the model was told of its first search."""
    message = next(
        message for message in fake.requests_for(model)[turn].messages if message["role"] == "tool"
    )
    found: JSON = json.loads(message["content"])
    return found


# Every provider.


async def test_a_search_and_an_answer_that_cites(
    anywhere: tuple[str, Stack], engine: SearchEngine, fake: FakeUpstream
) -> None:
    provider, one = anywhere
    query = f"weather in Bonn by {provider}"
    engine.set_results(query, RAIN, NEWS)
    model = fake.script(calling(asks(query)), reply(ANSWER))
    response = await one.openai().responses.create(
        model=model,
        input="How is the weather?",
        tools=[
            {
                "type": "web_search",
                "search_context_size": "low",
                "user_location": {"type": "approximate", "country": "DE", "city": "Bonn"},
            }
        ],
        include=["web_search_call.action.sources"],
    )
    search, message = response.output
    assert search.type == "web_search_call"
    assert (search.status, search.id[:3]) == ("completed", "ws_")
    assert search.action.to_dict() == {
        "type": "search", "query": query, "queries": [query], "sources": [{"type": "url", "url": RAIN.url}, {"type": "url", "url": NEWS.url}]
    }  # fmt: skip
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert part.text == ANSWER, "not a character of it is changed"
    cited = [
        (note.url, note.title, part.text[note.start_index : note.end_index])
        for note in part.annotations
        if note.type == "url_citation"
    ]
    assert cited == [
        (RAIN.url, "The weather", "[The weather](https://weather.example/today)"),
        (NEWS.url, "News", "[nothing](https://news.example/a_(b))"),
    ]
    assert told(fake, model)["results"] == [
        {"title": page.title, "url": page.url, "content": page.content} for page in (RAIN, NEWS)
    ]
    offered = fake.requests_for(model)[0].body["tools"][0]["function"]
    assert (offered["name"], offered["parameters"]["required"]) == ("web_search", ["query"])
    assert offered["description"].endswith("The user is here: Bonn, DE.")
    [asked] = engine.requests_for(query)
    assert (asked.method, asked.path, asked.headers["accept"]) == (
        WIRES[provider][0],
        WIRES[provider][1],
        "application/json",
    )
    assert asked.parameters == {
        name: query if value is None else value for name, value in WIRES[provider][2].items()
    }
    assert asked.headers[WIRES[provider][3]] == WIRES[provider][4]
    check_response(await one.api().get(response.id))


WIRES: dict[str, tuple[str, str, JSON, str, str]] = {
    "tavily": (
        "POST",
        "/search",
        {"query": None, "max_results": 4, "search_depth": "basic"},
        "authorization",
        f"Bearer {KEY}",
    ),
    "brave": (
        "GET",
        "/res/v1/web/search",
        {"q": None, "count": "4", "country": "DE", "text_decorations": "false"},
        "x-subscription-token",
        KEY,
    ),
    "searxng": ("GET", "/search", {"q": None, "format": "json"}, "authorization", f"Bearer {KEY}"),
}
"""provider -> method, path, parameters (None: the query), and where the key goes, as each documents it"""


async def test_a_search_that_finds_nothing(
    anywhere: tuple[str, Stack], engine: SearchEngine, fake: FakeUpstream
) -> None:
    provider, one = anywhere
    query = f"nothing at all by {provider}"
    engine.set_results(query)
    model = fake.script(calling(asks(query)), reply("I do not know."))
    stream = await heard(one, model, tools=[SEARCH])
    assert [(item["type"], item["status"]) for item in stream.final["output"]] == [
        ("web_search_call", "completed"),
        ("message", "completed"),
    ]
    assert told(fake, model) == {"results": [], "note": "Nothing was found."}


async def test_domains_are_kept_to(
    anywhere: tuple[str, Stack], engine: SearchEngine, fake: FakeUpstream
) -> None:
    """Whatever the provider makes of them: what it gives back besides never reaches the model."""
    provider, one = anywhere
    query = f"only some by {provider}"
    below = Page("Below", "https://deep.weather.example/", "x")
    alike = Page("Alike", "https://notweather.example/", "x")
    blocked = Page("Blocked", "https://bad.weather.example/", "x")
    engine.set_results(
        query, RAIN, NEWS, below, alike, blocked, Page("Script", "javascript:alert(1)", "x")
    )
    filters = {
        "allowed_domains": ["https://Weather.example/", "weather.example"],
        "blocked_domains": ["bad.weather.example"],
    }
    model = fake.script(calling(asks(query)), reply("ok"))
    await one.api().create(model, tools=[SEARCH | {"filters": filters}])
    assert [result["url"] for result in told(fake, model)["results"]] == [RAIN.url, below.url]
    asked = engine.requests_for(query)[0].parameters
    if provider == "tavily":
        assert (asked["include_domains"], asked["exclude_domains"]) == (
            ["weather.example"],
            ["bad.weather.example"],
        )
    else:
        assert asked["q"] == f"{query} site:weather.example -site:bad.weather.example"


# The stream.


async def test_the_stream_tells_a_search_and_its_citations(
    searching: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_results("streamed", RAIN)
    pieces = ["It rains 🌧 ([The wea", "ther](https://weather", ".example/today", ")", "). Done."]
    model = fake.script(
        calling(text("Let me see. "), asks("streamed")), [text(*pieces), finish(), usage(), done()]
    )
    stream = await heard(searching, model, tools=[SEARCH])
    kinds = [event["type"].removeprefix("response.") for event in stream.events]
    begun = kinds.index("web_search_call.in_progress")
    assert kinds[begun - 1 : begun + 4] == [
        "output_item.added", "web_search_call.in_progress", "web_search_call.searching", "web_search_call.completed", "output_item.done",
    ]  # fmt: skip
    assert stream.events[begun - 1]["item"]["action"] == {"type": "search"}
    noted = kinds.index("output_text.annotation.added")
    assert (kinds[noted - 1], stream.events[noted - 1]["delta"]) == ("output_text.delta", ")"), (
        "as soon as it is said in full"
    )
    assert stream.events[noted]["annotation"] == {
        "type": "url_citation", "url": RAIN.url, "title": "The weather", "start_index": 12, "end_index": 56
    }  # fmt: skip
    assert [item["type"] for item in stream.final["output"]] == [
        "message",
        "web_search_call",
        "message",
    ]
    assert "sources" not in stream.final["output"][1]["action"], "only for those who ask for them"
    whole_text = stream.final["output"][2]["content"][0]["text"]
    assert whole_text == "".join(pieces)
    assert whole_text[12:56] == "[The weather](https://weather.example/today)"


async def test_several_searches_side_by_side_and_one_after_the_other(
    searching: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    for query, page in (
        ("first", RAIN),
        ("second", NEWS),
        ("third", Page("T", "https://t.example/", "x")),
    ):
        engine.set_results(query, page)
    cited = f"[a]({RAIN.url}) [b]({NEWS.url}) [c](https://t.example)"
    model = fake.script(
        calling(asks("first", 0, "a"), asks("second", 1, "b")), calling(asks("third")), reply(cited)
    )
    stream = await heard(searching, model, tools=[SEARCH])
    searches = [
        item["action"]["query"]
        for item in stream.final["output"]
        if item["type"] == "web_search_call"
    ]
    assert searches == ["first", "second", "third"]
    assert [note["title"] for note in stream.final["output"][-1]["content"][0]["annotations"]] == [
        "The weather",
        "News",
        "T",
    ]
    roles = [message["role"] for message in fake.requests_for(model)[2].messages]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool"]
    assert stream.final["usage"]["output_tokens"] == 21, "of all three turns"


async def test_a_later_response_may_cite_what_an_earlier_one_found(
    searching: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_results("earlier", RAIN)
    model = fake.script(
        calling(asks("earlier")), reply("Rain."), reply(f"As I said: [rain]({RAIN.url}).")
    )
    first = await searching.api().create(model, tools=[SEARCH])
    second = await searching.api().create(model, tools=[SEARCH], previous_response_id=first["id"])
    assert [note["url"] for note in second["output"][0]["content"][0]["annotations"]] == [RAIN.url]
    assert [message["role"] for message in fake.requests_for(model)[2].messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
    ]


@pytest.mark.parametrize(
    "kind",
    ["web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"],
)
@pytest.mark.parametrize("choice", ["auto", "required", "itself", "allowed"])
async def test_every_variant_can_be_chosen(
    searching: Stack, engine: SearchEngine, fake: FakeUpstream, kind: str, choice: str
) -> None:
    engine.set_results("chosen", RAIN)
    demands: dict[str, Any] = {
        "itself": {"type": kind},
        "allowed": {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}]},
    }
    chosen = demands.get(choice, choice)
    model = fake.script(calling(asks("chosen")), reply("ok"))
    tools = [{"type": kind}, {"type": "function", "name": "look"}]
    response = await searching.api().create(model, tools=tools, tool_choice=chosen)
    assert [item["type"] for item in response["output"]] == ["web_search_call", "message"]
    assert (response["tool_choice"], response["tools"][0]["type"]) == (chosen, kind)
    first, second = (asked.body for asked in fake.requests_for(model))
    assert first["tool_choice"] == ("auto" if choice == "auto" else "required")
    assert [tool["function"]["name"] for tool in first["tools"]] == (
        ["web_search"] if choice in demands else ["look", "web_search"]
    )
    assert second["tool_choice"] == "auto", "a demand that was met is not made again"


async def test_how_much_the_model_is_told_follows_the_context_size(
    searching: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_results(
        "much", *(Page("t" * 500, f"https://{number}.example/", "x" * 9000) for number in range(30))
    )
    sizes = {}
    for size in ("low", "medium", "high"):
        model = fake.script(calling(asks("much")), reply("ok"))
        await searching.api().create(model, tools=[SEARCH | {"search_context_size": size}])
        results = told(fake, model)["results"]
        sizes[size] = (len(results), len(results[0]["content"]), len(results[0]["title"]))
    assert sizes == {"low": (4, 601, 301), "medium": (7, 1501, 301), "high": (12, 4001, 301)}
    assert [asked.parameters["search_depth"] for asked in engine.requests_for("much")] == [
        "basic",
        "basic",
        "advanced",
    ]


async def test_a_search_among_tools_that_are_added_later(
    searching: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_results("added", RAIN)
    model = fake.script(calling(asks("added")), reply("ok"))
    added = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [SEARCH | {"external_web_access": False}],
    }
    response = await searching.api().create(model, input=[added, {"role": "user", "content": "x"}])
    assert [item["type"] for item in response["output"]] == ["web_search_call", "message"]


async def test_a_search_and_a_call_for_the_client_in_one_turn(
    searching: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_results("mixed", RAIN)
    model = fake.script(calling(asks("mixed"), call(1, "call_f", "look", "{}")), reply("ok"))
    tools = [SEARCH, {"type": "function", "name": "look"}]
    first = await searching.api().create(model, tools=tools)
    assert [(item["type"], item["status"]) for item in first["output"]] == [
        ("web_search_call", "completed"),
        ("function_call", "completed"),
    ]
    output = {"type": "function_call_output", "call_id": "call_f", "output": "seen"}
    await searching.api().create(
        model, input=[output], previous_response_id=first["id"], tools=tools
    )
    roles = [message["role"] for message in fake.requests_for(model)[1].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"], "each call with its answer"


# Trouble with the provider.


def results(*found: Any) -> Responder:
    """Tavily's answer with these results."""
    return http_answer(200, json.dumps({"results": list(found)}).encode())


TROUBLE: list[tuple[str, Responder, str]] = [
    ("no key", http_answer(401, b'{"detail": {"error": "Unauthorized"}}'), "refused this server's key"),
    ("no right", http_answer(403, b"<html>"), "refused this server's key"),
    ("too often", http_answer(429, b"{}", retry_after="1"), "was asked too often"),
    ("a server error", http_answer(500, b"{}"), "answered with HTTP 500"),
    ("no such thing", http_answer(404, b"not found", "text/plain"), "answered with HTTP 404"),
    ("no content", http_answer(204, b""), "answered with HTTP 204"),
    ("a redirect inside", http_answer(302, b"", location="http://169.254.169.254/latest/meta-data"), "answered with HTTP 302"),
    ("a page", http_answer(200, b"<!doctype html><html><body>Sign in</body></html>", "text/html"), "answered something that is no JSON"),
    ("nothing", http_answer(200, b""), "answered something that is no JSON"),
    ("half of it", http_answer(200, b'{"results": [{"title"'), "answered something that is no JSON"),
    ("nested too deeply", http_answer(200, b"[" * 200_000), "answered something that is no JSON"),
    ("a list", http_answer(200, b"[]"), "answered something that is no list of results"),
    ("a string", http_answer(200, b'"results"'), "answered something that is no list of results"),
    ("null", http_answer(200, b"null"), "answered something that is no list of results"),
    ("another object", http_answer(200, b'{"error": "x"}'), "answered something that is no list of results"),
    ("results that are none", http_answer(200, b'{"results": 5}'), "answered something that is no list of results"),
    ("results of another kind", results("a", 1, None), "answered something that is no list of results"),
    ("results without a place", results({"title": "x"}), "answered something that is no list of results"),
    ("megabytes", http_answer(200, b'{"results": [], "x": "' + b"x" * 2_000_000 + b'"}'), "answered too much"),
    ("no end", endless(), "answered too much"),
    ("compressed", http_answer(200, gzip.compress(b'{"results": []}'), content_encoding="gzip"), "sent its answer compressed although it was asked not to"),
    ("an end in the middle", cut_short(), "could not be reached, or broke off"),
    ("no HTTP", http_answer(200, b""), "could not be reached, or broke off"),
    ("silence", silent(), "did not answer in time"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "why"), [row[1:] for row in TROUBLE], ids=[row[0] for row in TROUBLE]
)
async def test_a_search_that_fails_leaves_an_answer_without_it(
    searching: Stack,
    engine: SearchEngine,
    fake: FakeUpstream,
    request: pytest.FixtureRequest,
    answer: Responder,
    why: str,
) -> None:
    query = f"trouble {request.node.callspec.id}"
    if query == "trouble no HTTP":

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    engine.set_responders(query, answer)
    model = fake.script(calling(asks(query)), reply("I could not look it up."))
    stream = await heard(
        searching, model, tools=[SEARCH], include=["web_search_call.action.sources"]
    )
    assert stream.final["status"] == "completed"
    search, message = stream.final["output"]
    assert (search["status"], search["action"]) == (
        "failed",
        {"type": "search", "query": query, "queries": [query]},
    )
    assert message["content"][0]["text"] == "I could not look it up."
    tool = fake.requests_for(model)[1].messages[-1]
    assert tool == {
        "role": "tool",
        "tool_call_id": tool["tool_call_id"],
        "content": f"Error: The web cannot be searched now: the search provider {why}.",
    }
    assert len(engine.requests_for(query)) == 1


ODD: list[tuple[str, Any, list[JSON]]] = [
    ("invalid UTF-8", b'{"results": [{"title": "\xff", "url": "https://a.example/", "content": "b\xc3"}]}', [{"title": "\ufffd", "url": "https://a.example/", "content": "b\ufffd"}]),
    ("what cannot be stored", [{"title": "a\0", "url": "https://a.example/", "content": "\ud800"}], [{"title": "a\ufffd", "url": "https://a.example/", "content": "\ufffd"}]),
    ("no title, no content", [{"url": "https://a.example/", "title": None, "content": 5}], [{"title": "", "url": "https://a.example/", "content": ""}]),
    ("the same twice", [{"url": "https://a.example/"}, {"url": "https://a.example/"}], [{"title": "", "url": "https://a.example/", "content": ""}]),
    ("addresses that are none", [{"url": url} for url in ("", "a.example", "ftp://a.example/", "https://", "https://[", "http://a b/", "https://a.example/" + "x" * 3000)], []),
]  # fmt: skip


@pytest.mark.parametrize(("found", "shown"), [row[1:] for row in ODD], ids=[row[0] for row in ODD])
async def test_odd_results_do_no_harm(
    searching: Stack,
    engine: SearchEngine,
    fake: FakeUpstream,
    request: pytest.FixtureRequest,
    found: Any,
    shown: list[JSON],
) -> None:
    query = f"odd {request.node.callspec.id}"
    engine.set_responders(
        query, http_answer(200, found) if isinstance(found, bytes) else results(*found)
    )
    model = fake.script(calling(asks(query)), reply("ok"))
    stream = await heard(
        searching, model, tools=[SEARCH], include=["web_search_call.action.sources"]
    )
    assert stream.final["output"][0]["status"] == "completed"
    assert told(fake, model)["results"] == shown
    assert [source["url"] for source in stream.final["output"][0]["action"]["sources"]] == [
        result["url"] for result in shown
    ]


async def test_a_provider_that_is_not_there(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    nowhere = {
        "BACKBURNER_WEB_SEARCH__PROVIDER": "searxng",
        "BACKBURNER_WEB_SEARCH__BASE_URL": "http://127.0.0.1:9",
    }
    async with private_stack(settings=nowhere) as one:
        model = fake.script(calling(asks("x")), reply("I could not."))
        stream = await heard(one, model, tools=[SEARCH])
    assert [item["status"] for item in stream.final["output"]] == ["failed", "completed"]
    assert "could not be reached" in fake.requests_for(model)[1].messages[-1]["content"]


# Trouble with the model.

NO_QUERY = [
    "",
    "{}",
    "no JSON",
    "[]",
    '{"query": 5}',
    '{"query": "  "}',
    '{"query": null}',
    '{"q": "x"}',
    '{"query": "x"',
    '"x"',
]


@pytest.mark.parametrize("arguments", NO_QUERY)
async def test_a_search_for_nothing_fails(
    searching: Stack, engine: SearchEngine, fake: FakeUpstream, arguments: str
) -> None:
    before = len(engine.requests)
    model = fake.script(calling(call(0, "c", "web_search", arguments)), reply("Sorry."))
    stream = await heard(searching, model, tools=[SEARCH])
    search, message = stream.final["output"]
    assert (search["status"], search["action"], message["content"][0]["text"]) == (
        "failed",
        {"type": "search"},
        "Sorry.",
    )
    assert (
        fake.requests_for(model)[1].messages[-1]["content"]
        == "Error: A web search needs a 'query' that says what to search for."
    )
    assert len(engine.requests) == before


async def test_a_model_that_never_stops_searching_is_stopped(
    searching: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(calling(call(0, "c", "web_search", "no JSON")))
    stream = await heard(searching, model, tools=[SEARCH])
    assert (stream.final["status"], stream.final["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_messages"},
    )
    assert len(fake.requests_for(model)) == 6


async def test_a_search_too_many_is_refused_to_the_model(
    searching: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_results("one of two", RAIN)
    model = fake.script(
        calling(asks("one of two", 0, "a"), asks("two of two", 1, "b")), reply("ok")
    )
    stream = await heard(searching, model, tools=[SEARCH], max_tool_calls=1)
    assert [item["status"] for item in stream.final["output"]] == [
        "completed",
        "failed",
        "completed",
    ]
    assert engine.requests_for("two of two") == []


async def test_a_long_query_is_shortened(
    searching: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    model = fake.script(calling(asks("long " + "x" * 100_000)), reply("ok"))
    await searching.api().create(model, tools=[SEARCH])
    assert max(len(asked.query) for asked in engine.requests_for("long")) == 2000


# Interruptions.


async def test_a_cancel_ends_a_search_at_once(
    searching: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_responders("cancelled", silent())
    api = searching.api()
    response_id = await api.create_background(
        fake.script(calling(asks("cancelled"))), tools=[SEARCH]
    )
    [asked] = await until(lambda: engine.requests_for("cancelled"))
    cancelled = (await api.cancel(response_id)).body
    assert cancelled["status"] == "cancelled"
    assert [(item["type"], item["status"]) for item in cancelled["output"]] == [
        ("web_search_call", "incomplete")
    ]
    async with asyncio.timeout(1.5):  # the search itself is given two seconds
        await asked.disconnected.wait()


async def test_a_search_is_made_again_after_the_death_of_its_worker(
    private_stack: PrivateStack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_results("again", RAIN)
    engine.set_responders("again", silent())
    settings = SHORT_LEASES | {
        "BACKBURNER_WEB_SEARCH__PROVIDER": "tavily", "BACKBURNER_WEB_SEARCH__BASE_URL": engine.url, "BACKBURNER_WEB_SEARCH__API_KEY": KEY,
    }  # fmt: skip
    async with private_stack(settings=settings) as one:
        model = fake.script(calling(asks("again")), reply(f"[Rain]({RAIN.url})."))
        response_id = await one.api().create_background(model, tools=[SEARCH])
        await until(lambda: engine.requests_for("again"))
        one.kill(one.workers[0])
        await one.start_worker()
        ended = await one.api().wait_for_end(response_id)
        events = [decode(frame) for frame in await one.api().replay(response_id)]
    assert_stream_obeys_contract(events)
    assert [(item["type"], item["status"]) for item in ended["output"]] == [
        ("web_search_call", "completed"),
        ("message", "completed"),
    ]
    assert ended["output"][1]["content"][0]["annotations"][0]["url"] == RAIN.url
    assert len(engine.requests_for("again")) == 2
    assert len(fake.requests_for(model)) == 2, (
        "the turn that asked for it was stored, and is not said anew"
    )


# Secrets.


async def test_the_key_is_nowhere(
    searching: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    """After all the trouble above, at log level debug: not in a log, a row, or anything that a client or a model was told."""
    engine.set_responders("secret", http_answer(401, f'{{"error": "bad key {KEY}"}}'.encode()))
    engine.set_results("secret", RAIN)
    model = fake.script(calling(asks("secret")), calling(asks("secret")), reply("ok"))
    stream = await heard(searching, model, tools=[SEARCH])
    assert KEY not in json.dumps(stream.events)
    assert all(KEY not in json.dumps(asked.body) for asked in fake.requests_for(model))
    logs = "".join(process.log.read_text(errors="replace") for process in searching.started)
    assert "web_search_failed" in logs
    assert KEY not in logs
    for table in ("responses", "items", "tool_calls", "event_log"):
        rows = await searching.value(
            f"SELECT count(*) FROM {table} WHERE {table}::text LIKE %s", f"%{KEY}%"
        )
        assert rows == 0, table
