"""Web search: requests to each provider, output for client and model, and failures of all kinds."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
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
CITING_ANSWER = (
    "It rains ([The weather](https://weather.example/today)),"
    " and [nothing](https://news.example/a_(b)) happened. See [x](https://else.example/)."
)
PATHS = {"tavily": "", "brave": "/res/v1", "searxng": ""}


@pytest.fixture(scope="module")
async def engine() -> AsyncIterator[SearchEngine]:
    async with running() as own_stack:
        yield own_stack


async def _search_deployment(
    folder: Path, provider: str, engine: SearchEngine, *fixtures: Any, **more: str
) -> AsyncIterator[Stack]:
    settings = {
        "BACKBURNER_WEB_SEARCH__PROVIDER": provider,
        "BACKBURNER_WEB_SEARCH__BASE_URL": f"{engine.url}{PATHS[provider]}",
        "BACKBURNER_WEB_SEARCH__API_KEY": KEY,
        "BACKBURNER_LOG_LEVEL": "debug",
        **more,
    }
    database_server, suite_settings, fake = fixtures
    async with stack(folder, database_server, suite_settings, fake, settings=settings) as own_stack:
        yield own_stack


@pytest.fixture(scope="module", params=["tavily", "brave", "searxng"])
async def provider_stack(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
    engine: SearchEngine,
) -> AsyncIterator[tuple[str, Stack]]:
    """A deployment with this provider."""
    async for own_stack in _search_deployment(
        tmp_path_factory.mktemp(request.param),
        request.param,
        engine,
        database_server,
        suite_settings,
        fake,
    ):
        yield request.param, own_stack


@pytest.fixture(scope="module")
async def search_stack(
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
    engine: SearchEngine,
) -> AsyncIterator[Stack]:
    """A deployment that searches with Tavily and has short limits."""
    limits = {
        "BACKBURNER_WEB_SEARCH__TIMEOUT": "2",
        "BACKBURNER_WEB_SEARCH__ANSWER_BYTES": "300000",
        "BACKBURNER_LIMITS__TURNS": "6",
    }
    async for own_stack in _search_deployment(
        tmp_path_factory.mktemp("search"),
        "tavily",
        engine,
        database_server,
        suite_settings,
        fake,
        **limits,
    ):
        yield own_stack


def search_call(query: str, index: int = 0, call_id: str = "call_s") -> Step:
    """The model's call of the search tool."""
    return call(index, call_id, "web_search", json.dumps({"query": query}))


def call_turn(*steps: Step) -> list[Step]:
    """A turn that ends with calls."""
    return [*steps, finish("tool_calls"), usage(), done()]


async def read_events(running_stack: Stack, model: str, **body: Any) -> Stream:
    """Reads a background stream to its end and checks the events, GET and replay."""
    api = running_stack.api()
    async with api.post_stream(model, background=True, **body) as stream:
        events = await stream.to_end()
    assert_stream_obeys_contract(events)
    for event in events:
        check_event(event)
    assert await api.get(stream.response_id) == stream.final
    assert [decode(frame) for frame in await api.replay(stream.response_id)] == events
    return stream


def search_result(fake: FakeUpstream, model: str, turn: int = 1) -> JSON:
    """The output of the first search that the model got."""
    message = next(
        message for message in fake.requests_for(model)[turn].messages if message["role"] == "tool"
    )
    output: JSON = json.loads(message["content"])
    return output


# Every provider.


async def test_an_answer_cites_the_results_of_a_search(
    provider_stack: tuple[str, Stack], engine: SearchEngine, fake: FakeUpstream
) -> None:
    provider, own_stack = provider_stack
    query = f"weather in Bonn by {provider}"
    engine.set_results(query, RAIN, NEWS)
    model = fake.script(call_turn(search_call(query)), reply(CITING_ANSWER))
    response = await own_stack.openai().responses.create(
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
        "type": "search",
        "query": query,
        "queries": [query],
        "sources": [{"type": "url", "url": RAIN.url}, {"type": "url", "url": NEWS.url}],
    }
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert part.text == CITING_ANSWER, "the text was changed"
    cited = [
        (annotation.url, annotation.title, part.text[annotation.start_index : annotation.end_index])
        for annotation in part.annotations
        if annotation.type == "url_citation"
    ]
    assert cited == [
        (RAIN.url, "The weather", "[The weather](https://weather.example/today)"),
        (NEWS.url, "News", "[nothing](https://news.example/a_(b))"),
    ]
    assert search_result(fake, model)["results"] == [
        {"title": page.title, "url": page.url, "content": page.content} for page in (RAIN, NEWS)
    ]
    function = fake.requests_for(model)[0].body["tools"][0]["function"]
    assert (function["name"], function["parameters"]["required"]) == ("web_search", ["query"])
    assert function["description"].endswith("The user is here: Bonn, DE.")
    [request] = engine.requests_for(query)
    assert (request.method, request.path, request.headers["accept"]) == (
        PROVIDER_REQUESTS[provider][0],
        PROVIDER_REQUESTS[provider][1],
        "application/json",
    )
    assert request.parameters == {
        name: query if value is None else value
        for name, value in PROVIDER_REQUESTS[provider][2].items()
    }
    assert request.headers[PROVIDER_REQUESTS[provider][3]] == PROVIDER_REQUESTS[provider][4]
    check_response(await own_stack.api().get(response.id))


PROVIDER_REQUESTS: dict[str, tuple[str, str, JSON, str, str]] = {
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
"""Provider -> method, path, parameters (None: the query), and the header with the key."""


async def test_a_search_without_results_is_completed(
    provider_stack: tuple[str, Stack], engine: SearchEngine, fake: FakeUpstream
) -> None:
    provider, own_stack = provider_stack
    query = f"nothing at all by {provider}"
    engine.set_results(query)
    model = fake.script(call_turn(search_call(query)), reply("I do not know."))
    stream = await read_events(own_stack, model, tools=[SEARCH])
    assert [(item["type"], item["status"]) for item in stream.final["output"]] == [
        ("web_search_call", "completed"),
        ("message", "completed"),
    ]
    assert search_result(fake, model) == {"results": [], "note": "Nothing was found."}


async def test_results_of_other_domains_never_reach_the_model(
    provider_stack: tuple[str, Stack], engine: SearchEngine, fake: FakeUpstream
) -> None:
    """Also if the provider ignores the filter and returns them."""
    provider, own_stack = provider_stack
    query = f"only some by {provider}"
    subdomain = Page("Below", "https://deep.weather.example/", "x")
    similar = Page("Alike", "https://notweather.example/", "x")
    blocked = Page("Blocked", "https://bad.weather.example/", "x")
    engine.set_results(
        query, RAIN, NEWS, subdomain, similar, blocked, Page("Script", "javascript:alert(1)", "x")
    )
    filters = {
        "allowed_domains": ["https://Weather.example/", "weather.example"],
        "blocked_domains": ["bad.weather.example"],
    }
    model = fake.script(call_turn(search_call(query)), reply("ok"))
    await own_stack.api().create(model, tools=[SEARCH | {"filters": filters}])
    assert [result["url"] for result in search_result(fake, model)["results"]] == [
        RAIN.url,
        subdomain.url,
    ]
    parameters = engine.requests_for(query)[0].parameters
    if provider == "tavily":
        assert (parameters["include_domains"], parameters["exclude_domains"]) == (
            ["weather.example"],
            ["bad.weather.example"],
        )
    else:
        assert parameters["q"] == f"{query} site:weather.example -site:bad.weather.example"


# The stream.


async def test_a_search_and_its_citations_are_streamed(
    search_stack: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_results("streamed", RAIN)
    pieces = ["It rains 🌧 ([The wea", "ther](https://weather", ".example/today", ")", "). Done."]
    model = fake.script(
        call_turn(text("Let me see. "), search_call("streamed")),
        [text(*pieces), finish(), usage(), done()],
    )
    stream = await read_events(search_stack, model, tools=[SEARCH])
    types = [event["type"].removeprefix("response.") for event in stream.events]
    search_start = types.index("web_search_call.in_progress")
    assert types[search_start - 1 : search_start + 4] == [
        "output_item.added",
        "web_search_call.in_progress",
        "web_search_call.searching",
        "web_search_call.completed",
        "output_item.done",
    ]
    assert stream.events[search_start - 1]["item"]["action"] == {"type": "search"}
    citation = types.index("output_text.annotation.added")
    assert (types[citation - 1], stream.events[citation - 1]["delta"]) == (
        "output_text.delta",
        ")",
    ), "right after the text that it is about"
    assert stream.events[citation]["annotation"] == {
        "type": "url_citation",
        "url": RAIN.url,
        "title": "The weather",
        "start_index": 12,
        "end_index": 56,
    }
    assert [item["type"] for item in stream.final["output"]] == [
        "message",
        "web_search_call",
        "message",
    ]
    assert "sources" not in stream.final["output"][1]["action"], "sources need `include`"
    whole_text = stream.final["output"][2]["content"][0]["text"]
    assert whole_text == "".join(pieces)
    assert whole_text[12:56] == "[The weather](https://weather.example/today)"


async def test_searches_in_one_turn_and_in_several_turns_keep_their_order(
    search_stack: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    for query, page in (
        ("first", RAIN),
        ("second", NEWS),
        ("third", Page("T", "https://t.example/", "x")),
    ):
        engine.set_results(query, page)
    cited = f"[a]({RAIN.url}) [b]({NEWS.url}) [c](https://t.example)"
    model = fake.script(
        call_turn(search_call("first", 0, "a"), search_call("second", 1, "b")),
        call_turn(search_call("third")),
        reply(cited),
    )
    stream = await read_events(search_stack, model, tools=[SEARCH])
    searches = [
        item["action"]["query"]
        for item in stream.final["output"]
        if item["type"] == "web_search_call"
    ]
    assert searches == ["first", "second", "third"]
    assert [
        annotation["title"]
        for annotation in stream.final["output"][-1]["content"][0]["annotations"]
    ] == [
        "The weather",
        "News",
        "T",
    ]
    roles = [message["role"] for message in fake.requests_for(model)[2].messages]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool"]
    assert stream.final["usage"]["output_tokens"] == 21, "the sum of all three turns"


async def test_a_later_response_can_cite_an_earlier_search(
    search_stack: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_results("earlier", RAIN)
    model = fake.script(
        call_turn(search_call("earlier")), reply("Rain."), reply(f"As I said: [rain]({RAIN.url}).")
    )
    first = await search_stack.api().create(model, tools=[SEARCH])
    second = await search_stack.api().create(
        model, tools=[SEARCH], previous_response_id=first["id"]
    )
    assert [
        annotation["url"] for annotation in second["output"][0]["content"][0]["annotations"]
    ] == [RAIN.url]
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
async def test_every_version_of_the_tool_can_be_chosen(
    search_stack: Stack, engine: SearchEngine, fake: FakeUpstream, kind: str, choice: str
) -> None:
    engine.set_results("chosen", RAIN)
    choices: dict[str, Any] = {
        "itself": {"type": kind},
        "allowed": {"type": "allowed_tools", "mode": "required", "tools": [{"type": kind}]},
    }
    tool_choice = choices.get(choice, choice)
    model = fake.script(call_turn(search_call("chosen")), reply("ok"))
    tools = [{"type": kind}, {"type": "function", "name": "look"}]
    response = await search_stack.api().create(model, tools=tools, tool_choice=tool_choice)
    assert [item["type"] for item in response["output"]] == ["web_search_call", "message"]
    assert (response["tool_choice"], response["tools"][0]["type"]) == (tool_choice, kind)
    first, second = (request.body for request in fake.requests_for(model))
    assert first["tool_choice"] == ("auto" if choice == "auto" else "required")
    assert [tool["function"]["name"] for tool in first["tools"]] == (
        ["web_search"] if choice in choices else ["look", "web_search"]
    )
    assert second["tool_choice"] == "auto", "a required call is required once"


async def test_the_context_size_sets_how_much_text_the_model_gets(
    search_stack: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_results(
        "much", *(Page("t" * 500, f"https://{number}.example/", "x" * 9000) for number in range(30))
    )
    sizes = {}
    for size in ("low", "medium", "high"):
        model = fake.script(call_turn(search_call("much")), reply("ok"))
        await search_stack.api().create(model, tools=[SEARCH | {"search_context_size": size}])
        results = search_result(fake, model)["results"]
        sizes[size] = (len(results), len(results[0]["content"]), len(results[0]["title"]))
    assert sizes == {"low": (4, 601, 301), "medium": (7, 1501, 301), "high": (12, 4001, 301)}
    assert [request.parameters["search_depth"] for request in engine.requests_for("much")] == [
        "basic",
        "basic",
        "advanced",
    ]


async def test_a_search_tool_can_be_added_in_the_input(
    search_stack: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_results("added", RAIN)
    model = fake.script(call_turn(search_call("added")), reply("ok"))
    added = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [SEARCH | {"external_web_access": False}],
    }
    response = await search_stack.api().create(
        model, input=[added, {"role": "user", "content": "x"}]
    )
    assert [item["type"] for item in response["output"]] == ["web_search_call", "message"]


async def test_a_search_and_a_client_call_can_be_in_one_turn(
    search_stack: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_results("mixed", RAIN)
    model = fake.script(
        call_turn(search_call("mixed"), call(1, "call_f", "look", "{}")), reply("ok")
    )
    tools = [SEARCH, {"type": "function", "name": "look"}]
    first = await search_stack.api().create(model, tools=tools)
    assert [(item["type"], item["status"]) for item in first["output"]] == [
        ("web_search_call", "completed"),
        ("function_call", "completed"),
    ]
    output = {"type": "function_call_output", "call_id": "call_f", "output": "seen"}
    await search_stack.api().create(
        model, input=[output], previous_response_id=first["id"], tools=tools
    )
    roles = [message["role"] for message in fake.requests_for(model)[1].messages]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"], "each call has its output"


# Failures of the provider.


def results(*entries: Any) -> Responder:
    """Tavily's answer with these results."""
    return http_answer(200, json.dumps({"results": list(entries)}).encode())


PROVIDER_FAULTS: list[tuple[str, Responder, str]] = [
    (
        "no key",
        http_answer(401, b'{"detail": {"error": "Unauthorized"}}'),
        "refused this server's key",
    ),
    ("forbidden", http_answer(403, b"<html>"), "refused this server's key"),
    ("rate limited", http_answer(429, b"{}", retry_after="1"), "was asked too often"),
    ("a server error", http_answer(500, b"{}"), "answered with HTTP 500"),
    ("not found", http_answer(404, b"not found", "text/plain"), "answered with HTTP 404"),
    ("no content", http_answer(204, b""), "answered with HTTP 204"),
    (
        "a redirect inside",
        http_answer(302, b"", location="http://169.254.169.254/latest/meta-data"),
        "answered with HTTP 302",
    ),
    (
        "a page",
        http_answer(200, b"<!doctype html><html><body>Sign in</body></html>", "text/html"),
        "answered something that is no JSON",
    ),
    ("nothing", http_answer(200, b""), "answered something that is no JSON"),
    (
        "half of the JSON",
        http_answer(200, b'{"results": [{"title"'),
        "answered something that is no JSON",
    ),
    ("nested too deeply", http_answer(200, b"[" * 200_000), "answered something that is no JSON"),
    ("a list", http_answer(200, b"[]"), "answered something that is no list of results"),
    ("a string", http_answer(200, b'"results"'), "answered something that is no list of results"),
    ("null", http_answer(200, b"null"), "answered something that is no list of results"),
    (
        "another object",
        http_answer(200, b'{"error": "x"}'),
        "answered something that is no list of results",
    ),
    (
        "results of a wrong type",
        http_answer(200, b'{"results": 5}'),
        "answered something that is no list of results",
    ),
    (
        "entries of a wrong type",
        results("a", 1, None),
        "answered something that is no list of results",
    ),
    (
        "entries without an address",
        results({"title": "x"}),
        "answered something that is no list of results",
    ),
    (
        "megabytes",
        http_answer(200, b'{"results": [], "x": "' + b"x" * 2_000_000 + b'"}'),
        "answered too much",
    ),
    ("an endless answer", endless(), "answered too much"),
    (
        "compressed",
        http_answer(200, gzip.compress(b'{"results": []}'), content_encoding="gzip"),
        "sent its answer compressed although it was asked not to",
    ),
    ("a broken connection", cut_short(), "could not be reached, or broke off"),
    ("no HTTP", http_answer(200, b""), "could not be reached, or broke off"),
    ("silence", silent(), "did not answer in time"),
]


@pytest.mark.parametrize(
    ("responder", "reason"),
    [row[1:] for row in PROVIDER_FAULTS],
    ids=[row[0] for row in PROVIDER_FAULTS],
)
async def test_a_failed_search_reaches_the_model_and_the_model_answers(
    search_stack: Stack,
    engine: SearchEngine,
    fake: FakeUpstream,
    request: pytest.FixtureRequest,
    responder: Responder,
    reason: str,
) -> None:
    query = f"trouble {request.node.callspec.id}"
    if query == "trouble no HTTP":

        async def responder(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")

    engine.set_responders(query, responder)
    model = fake.script(call_turn(search_call(query)), reply("I could not look it up."))
    stream = await read_events(
        search_stack, model, tools=[SEARCH], include=["web_search_call.action.sources"]
    )
    assert stream.final["status"] == "completed"
    search, message = stream.final["output"]
    assert (search["status"], search["action"]) == (
        "failed",
        {"type": "search", "query": query, "queries": [query]},
    )
    assert message["content"][0]["text"] == "I could not look it up."
    tool_message = fake.requests_for(model)[1].messages[-1]
    assert tool_message == {
        "role": "tool",
        "tool_call_id": tool_message["tool_call_id"],
        "content": f"Error: The web cannot be searched now: the search provider {reason}.",
    }
    assert len(engine.requests_for(query)) == 1


UNUSUAL_RESULTS: list[tuple[str, Any, list[JSON]]] = [
    (
        "invalid UTF-8",
        b'{"results": [{"title": "\xff", "url": "https://a.example/", "content": "b\xc3"}]}',
        [{"title": "\ufffd", "url": "https://a.example/", "content": "b\ufffd"}],
    ),
    (
        "characters that cannot be stored",
        [{"title": "a\0", "url": "https://a.example/", "content": "\ud800"}],
        [{"title": "a\ufffd", "url": "https://a.example/", "content": "\ufffd"}],
    ),
    (
        "no title, no content",
        [{"url": "https://a.example/", "title": None, "content": 5}],
        [{"title": "", "url": "https://a.example/", "content": ""}],
    ),
    (
        "some of another form",
        [None, "text", {"title": "no address"}, {"url": 5}, {"url": "https://a.example/"}],
        [{"title": "", "url": "https://a.example/", "content": ""}],
    ),
    (
        "the same twice",
        [{"url": "https://a.example/"}, {"url": "https://a.example/"}],
        [{"title": "", "url": "https://a.example/", "content": ""}],
    ),
    (
        "invalid addresses",
        [
            {"url": url}
            for url in (
                "",
                "a.example",
                "ftp://a.example/",
                "https://",
                "https://[",
                "http://a b/",
                "https://a.example/" + "x" * 3000,
            )
        ],
        [],
    ),
]


@pytest.mark.parametrize(
    ("provider_answer", "expected"),
    [row[1:] for row in UNUSUAL_RESULTS],
    ids=[row[0] for row in UNUSUAL_RESULTS],
)
async def test_unusual_results_are_cleaned_or_left_out(
    search_stack: Stack,
    engine: SearchEngine,
    fake: FakeUpstream,
    request: pytest.FixtureRequest,
    provider_answer: Any,
    expected: list[JSON],
) -> None:
    query = f"unusual {request.node.callspec.id}"
    engine.set_responders(
        query,
        http_answer(200, provider_answer)
        if isinstance(provider_answer, bytes)
        else results(*provider_answer),
    )
    model = fake.script(call_turn(search_call(query)), reply("ok"))
    stream = await read_events(
        search_stack, model, tools=[SEARCH], include=["web_search_call.action.sources"]
    )
    assert stream.final["output"][0]["status"] == "completed"
    assert search_result(fake, model)["results"] == expected
    assert [source["url"] for source in stream.final["output"][0]["action"]["sources"]] == [
        result["url"] for result in expected
    ]


async def test_an_unreachable_provider_fails_the_search(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    settings = {
        "BACKBURNER_WEB_SEARCH__PROVIDER": "searxng",
        "BACKBURNER_WEB_SEARCH__BASE_URL": "http://127.0.0.1:9",
    }
    async with private_stack(settings=settings) as own_stack:
        model = fake.script(call_turn(search_call("x")), reply("I could not."))
        stream = await read_events(own_stack, model, tools=[SEARCH])
    assert [item["status"] for item in stream.final["output"]] == ["failed", "completed"]
    assert "could not be reached" in fake.requests_for(model)[1].messages[-1]["content"]


# Failures of the model.

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
async def test_a_search_without_a_query_fails(
    search_stack: Stack, engine: SearchEngine, fake: FakeUpstream, arguments: str
) -> None:
    before = len(engine.requests)
    model = fake.script(call_turn(call(0, "c", "web_search", arguments)), reply("Sorry."))
    stream = await read_events(search_stack, model, tools=[SEARCH])
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


async def test_a_model_that_never_stops_searching_ends_at_the_limit(
    search_stack: Stack, fake: FakeUpstream
) -> None:
    model = fake.script(call_turn(call(0, "c", "web_search", "no JSON")))
    stream = await read_events(search_stack, model, tools=[SEARCH])
    assert (stream.final["status"], stream.final["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_messages"},
    )
    assert len(fake.requests_for(model)) == 6


async def test_a_search_over_the_limit_is_ignored(
    search_stack: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_results("one of two", RAIN)
    model = fake.script(
        call_turn(search_call("one of two", 0, "a"), search_call("two of two", 1, "b")), reply("ok")
    )
    stream = await read_events(search_stack, model, tools=[SEARCH], max_tool_calls=1)
    assert [item["type"] for item in stream.final["output"]] == ["web_search_call", "message"]
    assert engine.requests_for("two of two") == []
    second = fake.requests_for(model)[1]
    assert [len(message.get("tool_calls", ())) for message in second.messages] == [0, 1, 0]
    assert second.body["tool_choice"] == "none"


async def test_a_long_query_is_shortened(
    search_stack: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    model = fake.script(call_turn(search_call("long " + "x" * 100_000)), reply("ok"))
    await search_stack.api().create(model, tools=[SEARCH])
    assert max(len(request.query) for request in engine.requests_for("long")) == 2000


# Interruptions.


async def test_a_cancel_ends_a_search_at_once(
    search_stack: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_responders("cancelled", silent())
    api = search_stack.api()
    response_id = await api.create_background(
        fake.script(call_turn(search_call("cancelled"))), tools=[SEARCH]
    )
    [request] = await until(lambda: engine.requests_for("cancelled"))
    cancelled = (await api.cancel(response_id)).body
    assert cancelled["status"] == "cancelled"
    assert [(item["type"], item["status"]) for item in cancelled["output"]] == [
        ("web_search_call", "incomplete")
    ]
    async with asyncio.timeout(1.5):  # the limit of the search itself is two seconds
        await request.disconnected.wait()


@pytest.mark.long
async def test_a_search_is_repeated_after_the_death_of_its_worker(
    private_stack: PrivateStack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_results("again", RAIN)
    engine.set_responders("again", silent())
    settings = SHORT_LEASES | {
        "BACKBURNER_WEB_SEARCH__PROVIDER": "tavily",
        "BACKBURNER_WEB_SEARCH__BASE_URL": engine.url,
        "BACKBURNER_WEB_SEARCH__API_KEY": KEY,
    }
    async with private_stack(settings=settings) as own_stack:
        model = fake.script(call_turn(search_call("again")), reply(f"[Rain]({RAIN.url})."))
        response_id = await own_stack.api().create_background(model, tools=[SEARCH])
        await until(lambda: engine.requests_for("again"))
        own_stack.kill(own_stack.workers[0])
        await own_stack.start_worker()
        ended = await own_stack.api().wait_for_end(response_id)
        events = [decode(frame) for frame in await own_stack.api().replay(response_id)]
    assert_stream_obeys_contract(events)
    assert [(item["type"], item["status"]) for item in ended["output"]] == [
        ("web_search_call", "completed"),
        ("message", "completed"),
    ]
    assert ended["output"][1]["content"][0]["annotations"][0]["url"] == RAIN.url
    assert len(engine.requests_for("again")) == 2
    assert len(fake.requests_for(model)) == 2, "the turn was stored and must not run again"


# Secrets.


async def test_the_providers_key_is_stored_and_logged_nowhere(
    search_stack: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    """After all failures above, at log level debug: no log, row, event or request has it."""
    engine.set_responders("secret", http_answer(401, f'{{"error": "bad key {KEY}"}}'.encode()))
    engine.set_results("secret", RAIN)
    model = fake.script(
        call_turn(search_call("secret")), call_turn(search_call("secret")), reply("ok")
    )
    stream = await read_events(search_stack, model, tools=[SEARCH])
    assert KEY not in json.dumps(stream.events)
    assert all(KEY not in json.dumps(request.body) for request in fake.requests_for(model))
    logs = "".join(process.log.read_text(errors="replace") for process in search_stack.started)
    assert "web_search_failed" in logs
    assert KEY not in logs
    for table in ("responses", "items", "tool_calls", "event_log"):
        rows = await search_stack.value(
            f"SELECT count(*) FROM {table} WHERE {table}::text LIKE %s", f"%{KEY}%"
        )
        assert rows == 0, table


async def test_a_message_of_anthropics_api_shows_the_search(
    search_stack: Stack, engine: SearchEngine, fake: FakeUpstream
) -> None:
    engine.set_results("weather", RAIN)
    asked: dict[str, Any] = {
        "model": fake.script(call_turn(search_call("weather")), reply("Rain.")),
        "max_tokens": 99,
        "tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 2}],
        "messages": [{"role": "user", "content": "Bonn?"}],
    }
    base_url = search_stack.api().base_url.removesuffix("/v1")
    async with anthropic.AsyncAnthropic(base_url=base_url, api_key=search_stack.key) as claude:
        async with claude.messages.stream(**asked) as stream:
            message = await stream.get_final_message()
        answer = {"role": "assistant", "content": message.content}
        asked["messages"] += [answer, {"role": "user", "content": "And now?"}]
        again = await claude.messages.create(**asked)
    assert again.stop_reason == message.stop_reason == "end_turn"
    asking, found, said = message.content
    assert asking.type == "server_tool_use"
    assert asking.input == {"query": "weather"}
    assert found.type == "web_search_tool_result"
    assert isinstance(found.content, list)
    assert [result.url for result in found.content] == [RAIN.url]
    assert said.type == "text"
    assert said.text == "Rain."
