"""`config check`, `upstream check`, and processes that refuse to start with a configuration that makes no sense."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.embedded.process import free_port
from tests.integration.operator.test_operations import Ended, as_process, in_thread
from tests.support.fake_upstream import (
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

SOUND, UNUSABLE, UNCONFIGURED, INCOMPLETE = 0, 1, 2, 4
BROKEN = """
[upstreams.local]
base_url = "nowhere"
[routes]
"*" = "locale"
"""
TOLD = [
    "line 3: upstreams.local.base_url: must be an http:// or https:// address without user name, query or fragment",
    "line 5: routes.*: there is no upstream 'locale' (configured: local)",
]


def environment(file: Path | None = None, **more: str) -> dict[str, str]:
    return {**_child_environment(), "BACKBURNER_CONFIG": str(file or ""), **more}


def written(folder: Path, text: str) -> Path:
    file = folder / "backburner.toml"
    file.write_text(text)
    return file


# --- refusing to start ---


@pytest.mark.parametrize("module", ["web", "worker"])
async def test_a_process_refuses_a_file_with_mistakes_and_names_them_all(
    tmp_path: Path, module: str
) -> None:
    file = written(tmp_path, BROKEN)
    told = environment(file, DATABASE_URL="postgresql://unused", REDIS_URL="redis://unused")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module),
        cwd=ROOT,
        env=told,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert (process.returncode, out) == (UNCONFIGURED, b"")
    assert err.decode().splitlines() == [f"configuration: {file}, {line}" for line in TOLD]


async def test_up_refuses_it_before_anything_is_started(tmp_path: Path) -> None:
    file = written(tmp_path, BROKEN)
    ended = await as_process(
        ("up", "--port", "0", "--data", str(tmp_path / "data")), environment(file)
    )
    assert (ended.code, ended.out) == (UNCONFIGURED, "")
    assert ended.err.splitlines() == [f"backburner: {file}, {line}" for line in TOLD]
    assert not (tmp_path / "data").exists()


# --- config check ---


async def test_config_check_names_each_mistake_with_its_source(tmp_path: Path) -> None:
    file = written(tmp_path, BROKEN)
    ended = await in_thread(("config", "check"), environment(file))
    assert (ended.code, ended.out.splitlines()) == (
        UNCONFIGURED,
        [f"{file}, {line}" for line in TOLD],
    )
    told = environment(
        file, BACKBURNER_LIMITS__TURNS="many", DATABASE_URL="mysql://root:verysecret@db"
    )
    ended = await in_thread(("config", "check", "--json"), told)
    assert ended.code == UNCONFIGURED
    assert ended.facts["ok"] is False
    sources = {(each["source"], each["key"], each["line"]) for each in ended.facts["mistakes"]}
    assert sources == {
        ("file", "upstreams.local.base_url", 3), ("file", "routes.*", 5),
        ("environment", "BACKBURNER_LIMITS__TURNS", None), ("environment", "DATABASE_URL", None),
    }  # fmt: skip
    assert "verysecret" not in ended.out + ended.err


async def test_config_check_shows_what_counts_and_no_secret(tmp_path: Path) -> None:
    file = written(
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
        "house" = { upstream = "cloud", model = "gpt-5" }
        """,
    )
    told = environment(
        file,
        CLOUD_KEY="secret-3",
        BACKBURNER_UPSTREAMS__LOCAL__BASE_URL="http://127.0.0.1:9/v1",
        DATABASE_URL="postgresql://u:secret-4@h/d",
    )
    ended = await in_thread(("config", "check", "--json"), told)
    assert ended.code == SOUND
    facts = ended.facts["effective"]
    assert facts["file"] == str(file)
    cloud, local = facts["upstreams"]
    assert (cloud["api_key"], local["api_key"], local["base_url"]) == (
        "environment CLOUD_KEY",
        "file, line 9",
        "http://127.0.0.1:9/v1",
    )
    assert cloud["settings"] == [
        {"key": "headers", "value": ["x-org"], "source": "file, line 5"}, {"key": "query", "value": ["key"], "source": "file, line 6"},
    ]  # fmt: skip
    assert local["settings"] == [
        {"key": "passthrough", "value": ["top_k"], "source": "file, line 10"}
    ]
    assert [route["pattern"] for route in facts["routes"]] == ["house", "*"]
    shown = await in_thread(("config", "check"), told)
    assert shown.code == SOUND
    for words in ("cloud as gpt-5", "local, then cloud", "environment DATABASE_URL"):
        assert words in shown.out
    assert not any(
        f"secret-{number}" in ended.out + shown.out + ended.err + shown.err
        for number in range(1, 6)
    )


async def test_config_check_of_nothing_at_all(tmp_path: Path) -> None:
    ended = await in_thread(("config", "check"), environment())
    assert (ended.code, ended.out.splitlines()[0]) == (SOUND, "file: none")


# --- upstream check ---


def talented() -> list[Script]:
    """A model that can do everything, in the order in which it is asked."""
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
        reply("one, ", "two, ", "three"), weather, both, weather, weather, reply("I do not know."),
        reply('{"name":"Ada",', '"age":36}'), reply("Red."), [reasoning("Let me count."), *reply("3")],
    ]  # fmt: skip


def native_talents() -> list[Script]:
    """The same in the words of the Responses API."""
    weather = [begin(), native_call("call_1", "get_weather", '{"city":', '"Paris"}'), end()]
    both = [
        begin(), native_call("call_1", "get_weather", '{"city":"Paris"}'), native_call("call_2", "get_weather", '{"city":"Rome"}'), end(),
    ]  # fmt: skip
    return [
        native_reply("one, ", "two, ", "three"), weather, both, weather, weather, native_reply("I do not know."),
        native_reply('{"name":"Ada",', '"age":36}'), native_reply("Red."), [begin(), reasoning_item("sealed", "Let me count."), message_item("3"), end()],
    ]  # fmt: skip


async def check(
    upstream: FakeUpstream | str, model: str, *arguments: str, api: str = "chat"
) -> Ended:
    address = upstream if isinstance(upstream, str) else upstream.base_url
    key = "key-of-the-tests"
    told = environment(
        BACKBURNER_UPSTREAM__BASE_URL=address,
        BACKBURNER_UPSTREAM__MAX_RETRIES="0",
        BACKBURNER_UPSTREAM__API_KEY=key,
        BACKBURNER_UPSTREAM__API=api,
    )
    ended = await in_thread(("upstream", "check", "default", "--model", model, *arguments), told)
    assert key not in ended.out + ended.err
    return ended


def verdicts(ended: Ended) -> dict[str, Any]:
    return {finding["feature"]: finding["verdict"] for finding in ended.facts["findings"]}


async def test_an_upstream_that_can_do_everything(fake: FakeUpstream) -> None:
    model = fake.script(*talented())
    ended = await check(fake, model, "--json")
    assert ended.code == SOUND
    assert list(verdicts(ended)) == [
        "text", "stream", "usage", "tools", "parallel tools", "tool_choice", "structured output", "images", "reasoning",
    ]  # fmt: skip
    assert set(verdicts(ended).values()) == {"works"}
    asked = [request.body for request in fake.requests_for(model)]
    assert [body.get("tool_choice") for body in asked[3:6]] == [
        {"type": "function", "function": {"name": "get_weather"}}, "required", "none",
    ]  # fmt: skip
    assert asked[6]["response_format"]["type"] == "json_schema"
    assert asked[8]["reasoning_effort"] == "low"


async def test_a_native_upstream_is_asked_in_its_own_words(fake: FakeUpstream) -> None:
    model = fake.script(*native_talents())
    ended = await check(fake, model, "--json", api="responses")
    assert (ended.code, set(verdicts(ended).values())) == (SOUND, {"works"}), ended.out
    assert {request.path for request in fake.requests_for(model)} == {"/v1/responses"}
    wrong = await check(
        fake, fake.script([status(404, {"detail": "Not Found"})]), "--json", api="responses"
    )
    assert wrong.code == UNUSABLE
    assert "'api' may be wrong" in wrong.facts["findings"][0]["said"]


async def test_one_that_takes_everything_and_makes_nothing_of_it(fake: FakeUpstream) -> None:
    model = fake.script([text("Hello."), finish(), done()])
    ended = await check(fake, model, "--json")
    assert ended.code == INCOMPLETE
    found = verdicts(ended)
    assert found.pop("text") == "works"
    assert set(found.values()) == {"unused"}
    shown = await check(fake, fake.script([text("Hello."), finish(), done()]))
    assert "parallel tools     unused   calls in one turn: 0" in shown.out


async def test_one_that_refuses_some_of_it(fake: FakeUpstream) -> None:
    scripts = talented()
    scripts[1] = [status(400, {"error": {"message": "tools are not supported"}})]
    scripts[7] = [status(500)]
    ended = await check(fake, fake.script(*scripts), "--json")
    assert ended.code == INCOMPLETE
    assert {feature for feature, verdict in verdicts(ended).items() if verdict == "fails"} == {
        "tools",
        "images",
    }
    said = {finding["feature"]: finding["said"] for finding in ended.facts["findings"]}
    assert said["tools"] == "The upstream refused the request: tools are not supported"


NO_API: dict[str, Script] = {
    "HTML": [status(200, b"<html>It works!</html>", {"content-type": "text/html"})],
    "another JSON": [status(200, {"hello": "world"})],
    "404": [status(404, b"<html>Not Found</html>", {"content-type": "text/html"})],
    "405": [status(405, {"detail": "Method Not Allowed"})],
    "a redirect": [status(301, b"", {"location": "/login"})],
    "no stream": [raw(b"data: hello\n\n")],
    "events of another kind": [chunk({"type": "hello"}), done()],
    "a hung line": [silence_until(asyncio.Event())],
    "a reset": [reset()],
    "nothing after the head": [raw(b": hi\n\n"), hang()],
}


@pytest.mark.parametrize("answer", NO_API)
async def test_one_that_speaks_neither_api(fake: FakeUpstream, answer: str) -> None:
    ended = await check(fake, fake.script(NO_API[answer]), "--json", "--seconds", "1")
    assert ended.code == UNUSABLE
    found = verdicts(ended)
    assert found.pop("text") in ("fails", "unused")
    assert set(found.values()) == {"untried"}
    assert ended.facts["findings"][0]["said"]


async def test_one_that_is_not_there_has_no_list_or_no_such_name(
    tmp_path: Path, fake: FakeUpstream
) -> None:
    gone = f"http://127.0.0.1:{free_port()}/v1"
    assert (await check(gone, "any", "--json")).code == UNUSABLE
    ended = await in_thread(("upstream", "check"), environment(BACKBURNER_UPSTREAM__BASE_URL=gone))
    assert (ended.code, ended.err) == (
        UNUSABLE,
        f"backburner: {gone} gives no list of models; name one with --model\n",
    )
    file = written(
        tmp_path,
        f'[upstreams.one]\nbase_url = "{fake.base_url}"\n[routes]\n"house" = {{ upstream = "one", model = "its-name" }}\n',
    )
    ended = await in_thread(("upstream", "check", "two"), environment(file))
    assert (ended.code, ended.err) == (
        UNUSABLE,
        "backburner: there is no upstream 'two'; configured: one\n",
    )
    ended = await in_thread(("upstream", "check", "one", "--json"), environment(file))
    assert json.loads(ended.out)["model"] == "its-name", "the model that is routed there is asked"
    file = written(tmp_path, BROKEN)
    ended = await in_thread(("upstream", "check", "local"), environment(file))
    assert (ended.code, ended.err.splitlines()) == (
        UNCONFIGURED,
        [f"backburner: {file}, {line}" for line in TOLD],
    )
