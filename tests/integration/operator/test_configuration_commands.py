"""`config check` and `upstream check`, and processes that refuse to start when misconfigured."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.embedded.process import free_port
from tests.integration.operator.test_operations import CommandResult, as_process, in_thread
from tests.support.fake_upstream import (
    Exchange,
    FakeUpstream,
    Script,
    call,
    chunk,
    done,
    finish,
    hang,
    raw,
    reasoning,
    reply,
    reset,
    silence_until,
    status,
    text,
    usage,
)
from tests.support.native_script import (
    begin,
    end,
    message_item,
    native_call,
    native_reply,
    reasoning_item,
)
from tests.support.stack import ROOT, _child_environment
from tests.support.strict_upstream import STRICT_UPSTREAMS, strict

OK, UNUSABLE, UNCONFIGURED, INCOMPLETE = 0, 1, 2, 4
BROKEN = """
[upstreams.local]
base_url = "nowhere"
[routes]
"*" = "locale"
"""
MESSAGES = [
    (
        "line 3: upstreams.local.base_url: must be an http:// or https:// address"
        " without user name, query or fragment"
    ),
    "line 5: routes.*: there is no upstream 'locale' (configured: local)",
]


def environment(file: Path | None = None, **more: str) -> dict[str, str]:
    return {**_child_environment(), "BACKBURNER_CONFIG": str(file or ""), **more}


def write_file(folder: Path, text: str) -> Path:
    file = folder / "backburner.toml"
    file.write_text(text)
    return file


# --- refusing to start ---


@pytest.mark.parametrize("module", ["web", "worker"])
async def test_a_process_refuses_a_file_with_mistakes_and_names_them_all(
    tmp_path: Path, module: str
) -> None:
    file = write_file(tmp_path, BROKEN)
    environ = environment(file, DATABASE_URL="postgresql://unused", REDIS_URL="redis://unused")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        cwd=ROOT,
        env=environ,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert (process.returncode, out) == (UNCONFIGURED, b"")
    mistakes = [json.loads(line) for line in err.decode().splitlines()]
    assert {(each["event"], each["process"]) for each in mistakes} == {
        ("configuration_mistake", module)
    }
    assert [
        f"line {each['line']}: {each['setting']}: {each['reason']}" for each in mistakes
    ] == MESSAGES


async def test_up_refuses_a_file_with_mistakes_before_anything_is_started(tmp_path: Path) -> None:
    file = write_file(tmp_path, BROKEN)
    result = await as_process(
        ("up", "--port", "0", "--data", str(tmp_path / "data")), environment(file)
    )
    assert (result.code, result.out) == (UNCONFIGURED, "")
    assert result.err.splitlines() == [f"backburner: {file}, {line}" for line in MESSAGES]
    assert not (tmp_path / "data").exists()


# --- config check ---


async def test_config_check_names_each_mistake_with_its_source(tmp_path: Path) -> None:
    file = write_file(tmp_path, BROKEN)
    result = await in_thread(("config", "check"), environment(file))
    assert (result.code, result.out.splitlines()) == (
        UNCONFIGURED,
        [f"{file}, {line}" for line in MESSAGES],
    )
    environ = environment(
        file, BACKBURNER_LIMITS__TURNS="many", DATABASE_URL="mysql://root:verysecret@db"
    )
    result = await in_thread(("config", "check", "--json"), environ)
    assert result.code == UNCONFIGURED
    assert result.facts["ok"] is False
    sources = {
        (mistake["source"], mistake["key"], mistake["line"]) for mistake in result.facts["mistakes"]
    }
    assert sources == {
        ("file", "upstreams.local.base_url", 3), ("file", "routes.*", 5),
        ("environment", "BACKBURNER_LIMITS__TURNS", None), ("environment", "DATABASE_URL", None),
    }  # fmt: skip
    assert "verysecret" not in result.out + result.err


async def test_config_check_shows_the_effective_values_and_no_secret(tmp_path: Path) -> None:
    file = write_file(
        tmp_path,
        """
        [upstreams.cloud]
        base_url = "https://cloud.example/v1"
        api_key_env = "CLOUD_KEY"
        headers = { x-org = "secret-1" }
        query = { key = "secret-5" }
        [upstreams.local]
        base_url = "http://127.0.0.1:8001/v1"
        api_key = "secret-2"
        passthrough = ["top_k"]
        [routes]
        "*" = ["local", "cloud"]
        "alias" = { upstream = "cloud", model = "gpt-5" }
        """,
    )
    environ = environment(
        file,
        CLOUD_KEY="secret-3",
        BACKBURNER_UPSTREAMS__LOCAL__BASE_URL="http://127.0.0.1:9/v1",
        DATABASE_URL="postgresql://u:secret-4@h/d",
    )
    result = await in_thread(("config", "check", "--json"), environ)
    assert result.code == OK
    facts = result.facts["effective"]
    assert facts["file"] == str(file)
    cloud, local = facts["upstreams"]
    assert (cloud["api_key"], local["api_key"], local["base_url"]) == (
        "environment CLOUD_KEY",
        "file, line 9",
        "http://127.0.0.1:9/v1",
    )
    assert cloud["settings"] == [
        {"key": "headers", "value": ["x-org"], "text": "x-org", "source": "file, line 5"},
        {"key": "query", "value": ["key"], "text": "key", "source": "file, line 6"},
    ]
    assert local["settings"] == [
        {"key": "passthrough", "value": ["top_k"], "text": "top_k", "source": "file, line 10"}
    ]
    assert [route["pattern"] for route in facts["routes"]] == ["alias", "*"]
    text_result = await in_thread(("config", "check"), environ)
    assert text_result.code == OK
    for phrase in ("cloud as gpt-5", "local, then cloud", "environment DATABASE_URL"):
        assert phrase in text_result.out
    assert not any(
        f"secret-{number}" in result.out + text_result.out + result.err + text_result.err
        for number in range(1, 6)
    )


async def test_config_check_shows_what_comes_from_a_preset(tmp_path: Path) -> None:
    file = write_file(
        tmp_path,
        '[upstreams.one]\nbase_url = "http://one/v1"\npreset = "mistral"\ncall_content = "null"\n',
    )
    environ = environment(file, DATABASE_URL="postgresql://u@h/d")
    result = await in_thread(("config", "check", "--json"), environ)
    [one] = result.facts["effective"]["upstreams"]
    assert {setting["key"]: setting["source"] for setting in one["settings"]} == {
        "preset": "file, line 3",
        "call_content": "file, line 4",
        "max_tokens_field": "preset mistral",
        "single_system_message": "preset mistral",
        "alternate_roles": "preset mistral",
        "call_id_form": "preset mistral",
    }


async def test_config_check_accepts_a_missing_file(tmp_path: Path) -> None:
    result = await in_thread(("config", "check"), environment())
    assert (result.code, result.out.splitlines()[0]) == (OK, "file: none")


# --- upstream check ---


def capable_model() -> list[Script]:
    """Scripts of a model with every feature, in the order of the checks."""
    weather = [
        call(0, "call_1", "get_weather", '{"city":', '"Paris"}'),
        finish("tool_calls"),
        usage(),
        done(),
    ]
    both = [
        call(0, "call_1", "get_weather", '{"city":"Paris"}'),
        call(1, "call_2", "get_weather", '{"city":"Rome"}'),
        finish("tool_calls"),
        usage(),
        done(),
    ]
    return [
        reply("one, ", "two, ", "three"),
        weather,
        both,
        weather,
        weather,
        reply("I do not know."),
        reply('{"name":"Ada",', '"age":36}'),
        reply("Red."),
        [reasoning("Let me count."), *reply("3")],
        [text("one two three"), finish("length"), usage(), done()],
        reply("Hello."),
    ]


def native_capable_model() -> list[Script]:
    """The same scripts as events of the Responses API."""
    weather = [begin(), native_call("call_1", "get_weather", '{"city":', '"Paris"}'), end()]
    both = [
        begin(),
        native_call("call_1", "get_weather", '{"city":"Paris"}'),
        native_call("call_2", "get_weather", '{"city":"Rome"}'),
        end(),
    ]
    return [
        native_reply("one, ", "two, ", "three"),
        weather,
        both,
        weather,
        weather,
        native_reply("I do not know."),
        native_reply('{"name":"Ada",', '"age":36}'),
        native_reply("Red."),
        [begin(), reasoning_item("sealed", "Let me count."), message_item("3"), end()],
        [
            begin(),
            message_item("one two"),
            end("incomplete", incomplete_details={"reason": "max_output_tokens"}),
        ],
    ]


async def check(
    upstream: FakeUpstream | str, model: str, *arguments: str, api: str = "chat"
) -> CommandResult:
    address = upstream if isinstance(upstream, str) else upstream.base_url
    key = "key-of-the-tests"
    environ = environment(
        BACKBURNER_UPSTREAM__BASE_URL=address,
        BACKBURNER_UPSTREAM__MAX_RETRIES="0",
        BACKBURNER_UPSTREAM__API_KEY=key,
        BACKBURNER_UPSTREAM__API=api,
    )
    result = await in_thread(
        ("upstream", "check", "default", "--model", model, *arguments), environ
    )
    assert key not in result.out + result.err
    return result


def verdicts(result: CommandResult) -> dict[str, Any]:
    return {finding["feature"]: finding["verdict"] for finding in result.facts["findings"]}


async def test_upstream_check_passes_an_upstream_with_every_feature(fake: FakeUpstream) -> None:
    model = fake.script(*capable_model())
    result = await check(fake, model, "--json")
    assert result.code == OK
    assert list(verdicts(result)) == [
        "text",
        "stream",
        "usage",
        "tools",
        "parallel tools",
        "tool_choice",
        "structured output",
        "images",
        "reasoning",
        "length limit",
    ]
    assert set(verdicts(result).values()) == {"works"}
    bodies = [request.body for request in fake.requests_for(model)]
    assert [body.get("tool_choice") for body in bodies[3:6]] == [
        {"type": "function", "function": {"name": "get_weather"}},
        "required",
        "none",
    ]
    assert bodies[6]["response_format"]["type"] == "json_schema"
    assert bodies[8]["reasoning_effort"] == "low"


async def test_upstream_check_uses_the_responses_api_for_a_native_upstream(
    fake: FakeUpstream,
) -> None:
    model = fake.script(*native_capable_model())
    result = await check(fake, model, "--json", api="responses")
    assert (result.code, set(verdicts(result).values())) == (OK, {"works"}), result.out
    assert {request.path for request in fake.requests_for(model)} == {"/v1/responses"}
    misconfigured = await check(
        fake, fake.script([status(404, {"detail": "Not Found"})]), "--json", api="responses"
    )
    assert misconfigured.code == UNUSABLE
    assert "'api' may be wrong" in misconfigured.facts["findings"][0]["said"]


async def test_upstream_check_reports_features_that_an_upstream_accepts_and_ignores(
    fake: FakeUpstream,
) -> None:
    model = fake.script([text("Hello."), finish(), done()])
    result = await check(fake, model, "--json")
    assert result.code == INCOMPLETE
    verdict_of = verdicts(result)
    assert verdict_of.pop("text") == "works"
    assert set(verdict_of.values()) == {"unused"}
    text_result = await check(fake, fake.script([text("Hello."), finish(), done()]))
    assert "parallel tools     unused   calls in one turn: 0" in text_result.out


async def test_upstream_check_reports_features_that_an_upstream_refuses(fake: FakeUpstream) -> None:
    scripts = capable_model()
    scripts[1] = [status(400, {"error": {"message": "tools are not supported"}})]
    scripts[7] = [status(500)]
    result = await check(fake, fake.script(*scripts), "--json")
    assert result.code == INCOMPLETE
    assert {feature for feature, verdict in verdicts(result).items() if verdict == "fails"} == {
        "tools",
        "images",
    }
    messages = {finding["feature"]: finding["said"] for finding in result.facts["findings"]}
    assert messages["tools"] == "The upstream refused the request: tools are not supported"


NO_API: dict[str, Script] = {
    "HTML": [status(200, b"<html>It works!</html>", {"content-type": "text/html"})],
    "another JSON": [status(200, {"hello": "world"})],
    "404": [status(404, b"<html>Not Found</html>", {"content-type": "text/html"})],
    "405": [status(405, {"detail": "Method Not Allowed"})],
    "a redirect": [status(301, b"", {"location": "/login"})],
    "no stream": [raw(b"data: hello\n\n")],
    "events of another kind": [chunk({"type": "hello"}), done()],
    "a silent connection": [silence_until(asyncio.Event())],
    "a reset": [reset()],
    "nothing after the head": [raw(b": hi\n\n"), hang()],
}


@pytest.mark.parametrize("answer", NO_API)
async def test_upstream_check_fails_a_server_that_speaks_neither_api(
    fake: FakeUpstream, answer: str
) -> None:
    result = await check(fake, fake.script(NO_API[answer]), "--json", "--seconds", "1")
    assert result.code == UNUSABLE
    verdict_of = verdicts(result)
    assert verdict_of.pop("text") in ("fails", "unused")
    assert set(verdict_of.values()) == {"untried"}
    assert result.facts["findings"][0]["said"]


def environment_of_one(fake: FakeUpstream, folder: Path, *lines: str) -> dict[str, str]:
    file = write_file(
        folder,
        f'[upstreams.one]\nbase_url = "{fake.base_url}"\nmax_retries = 0\n' + "\n".join(lines),
    )
    return environment(file)


async def check_one(environ: dict[str, str], model: str) -> CommandResult:
    return await in_thread(
        ("upstream", "check", "one", "--model", model, "--seconds", "20", "--json"), environ
    )


async def test_upstream_check_ends_and_shows_what_it_knows_of_a_model_that_does_not_stop(
    fake: FakeUpstream,
) -> None:
    model = fake.script([text("one, ", "two"), hang()], [text("three"), finish("length"), done()])
    result = await check(fake, model, "--seconds", "1", "--tokens", "32")
    lines = result.out.splitlines()
    assert (
        "text               works    “one, two”, cut off after the limit of 1 s (--seconds)"
        in lines
    )
    untried = "tools              untried  not found out: the answer reached the limit of 32 tokens"
    assert any(line.startswith(untried) for line in lines)
    assert lines[-1].startswith("Not found out: usage, tools, parallel tools")
    limits = {request.body.get("max_completion_tokens") for request in fake.requests_for(model)}
    assert limits == {32, 16, None}, "the last one asks for the Responses API"


async def test_upstream_check_tries_the_other_api_and_the_count_of_tokens() -> None:
    async def both(exchange: Exchange) -> None:
        is_native = exchange.request.path == "/v1/responses"
        for step in native_reply("x") if is_native else [strict([])]:
            await step(exchange)

    async with FakeUpstream() as own:
        own.count_answers["/tokenize"] = [status(200, {"count": 5})]
        result = await check(own, own.script([both]), "--json")
    assert (result.code, result.facts["toml"]) == (OK, ['count = "vllm"'])
    lacking = "tool_choice, structured output, length limit"
    assert result.facts["advice"] == [f'Its Responses API lacks: {lacking}. api = "chat" is right.']


@pytest.mark.parametrize("preset", ["mistral", "perplexity", "deepseek", "zhipu", "lm-studio"])
async def test_upstream_check_finds_the_settings_that_a_strict_upstream_needs(
    fake: FakeUpstream, tmp_path: Path, preset: str
) -> None:
    """With the proposed lines a second run is clean."""
    model = fake.script([strict(STRICT_UPSTREAMS[preset])])
    first = await check_one(environment_of_one(fake, tmp_path), model)
    assert first.code == INCOMPLETE
    assert first.facts["toml"]
    assert first.facts["findings"][0]["verdict"] == "works", "with the settings that were found"
    clean = await check_one(environment_of_one(fake, tmp_path, *first.facts["toml"]), model)
    refused = [
        finding
        for finding in [*clean.facts["findings"], *clean.facts["settings"]]
        if finding["verdict"] in ("fails", "refused", "needs", "untried")
    ]
    assert (clean.facts["toml"], refused) == ([], [])


async def test_upstream_check_explains_an_unreachable_and_an_unknown_upstream(
    tmp_path: Path, fake: FakeUpstream
) -> None:
    unreachable = f"http://127.0.0.1:{free_port()}/v1"
    assert (await check(unreachable, "any", "--json")).code == UNUSABLE
    result = await in_thread(
        ("upstream", "check"), environment(BACKBURNER_UPSTREAM__BASE_URL=unreachable)
    )
    assert (result.code, result.err) == (
        UNUSABLE,
        (
            f"backburner: the upstream {unreachable} refuses the connection: "
            "start it, or correct host and port\n"
        ),
    )
    file = write_file(
        tmp_path,
        f'[upstreams.one]\nbase_url = "{fake.base_url}"\n'
        '[routes]\n"alias" = { upstream = "one", model = "its-name" }\n',
    )
    result = await in_thread(("upstream", "check", "two"), environment(file))
    assert (result.code, result.err) == (
        UNUSABLE,
        "backburner: there is no upstream 'two'; configured: one\n",
    )
    result = await in_thread(("upstream", "check", "one", "--json"), environment(file))
    assert json.loads(result.out)["model"] == "its-name", "the routed model is checked"
    file = write_file(tmp_path, BROKEN)
    result = await in_thread(("upstream", "check", "local"), environment(file))
    assert (result.code, result.err.splitlines()) == (
        UNCONFIGURED,
        [f"backburner: {file}, {line}" for line in MESSAGES],
    )
