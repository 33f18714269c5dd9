"""The promises of `backburner up`: its ready line, one owner of the folder, clean start and end."""

import asyncio
import json
import os
import re
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import psycopg
import pytest
from aiohttp import web

from cli import ROOT
from cli.demo_upstream.replies import MARK
from cli.embedded.data_folder import Credentials, DataFolder, database_of
from cli.embedded.data_folder import running_up as running_up_of
from cli.embedded.detached import log_lines
from cli.embedded.postgres import Postgres
from cli.embedded.process import Process, command_of, free_port
from cli.embedded.valkey import Valkey
from models.confinement.policy import missing
from models.console_links import LOGIN_PATH, create_link
from tests.integration.operator.test_operations import in_thread
from tests.support.api import until
from tests.support.console import ConsoleUser
from tests.support.fake_upstream import FakeUpstream
from tests.support.webhook_receiver import webhook_receiver
from tests.support.webhooks import unwrap

KEY_LENGTH = len("bb-") + 43
CONFINES = not missing()
"""Whether this system can confine code of models: else `up` starts no sandbox."""
NAMES = [
    *("cli.demo_upstream", "postgres", "valkey", "web", "worker", "worker --quarantine"),
    *(["cli.main"] if CONFINES else []),  # the sandbox
]


@dataclass(slots=True)
class Up:
    """A running `up`."""

    process: asyncio.subprocess.Process
    data: Path
    base_url: str = ""
    key: str = ""
    descendants: dict[int, psutil.Process] = field(default_factory=dict)
    """Every child process seen so far, by pid."""

    async def ready(self) -> None:
        """Reads the ready line, which must be the first."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            line = (await self.process.stdout.readline()).decode()
        if not line:
            raise AssertionError(f"no ready line: {(await self.wait_for_exit()).err}")
        word, self.base_url, self.key = line.split()
        assert word == "ready"
        self.note_children()

    def note_children(self) -> None:
        """Adds the processes that run now."""
        self.descendants |= {
            child.pid: child for child in psutil.Process(self.process.pid).children(recursive=True)
        }

    def child(self, name: str) -> int:
        """Returns the pid of the direct child with one of the NAMES."""
        return next(
            child.pid
            for child in psutil.Process(self.process.pid).children()
            if child_name(child) == name
        )

    async def wait_for_exit(self) -> "CommandResult":
        """Waits for the end of the process."""
        async with asyncio.timeout(40):
            out, err = await self.process.communicate()
        return CommandResult(self.process.returncode, out.decode(), err.decode())

    async def end(self, number: signal.Signals = signal.SIGTERM) -> "CommandResult":
        self.note_children()
        self.process.send_signal(number)
        return await self.wait_for_exit()

    def alive(self) -> list[str]:
        """Command lines of those seen that still run; a zombie only waits for its parent."""
        return [
            " ".join(command(process)) for process in self.descendants.values() if is_alive(process)
        ]

    async def get(self, path: str) -> tuple[int, Any]:
        headers = {"authorization": f"Bearer {self.key}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(f"{self.base_url}{path}") as answer,
        ):
            return answer.status, await answer.json()

    async def respond(self, text: str) -> tuple[int, Any]:
        """Runs a foreground response of the demo model."""
        headers = {"authorization": f"Bearer {self.key}"}
        body = {"model": "demo", "input": text}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{self.base_url}/responses", json=body) as answer,
        ):
            return answer.status, await answer.json()


@dataclass(frozen=True, slots=True)
class CommandResult:
    code: int | None
    out: str
    err: str


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command(process: psutil.Process) -> list[str]:
    """Its command line; empty if the process is ending."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def child_name(child: psutil.Process) -> str:
    """One of NAMES; empty if the process is ending."""
    parts = command(child)
    if "-m" in parts:
        names = [part for part in parts if part != "cli.embedded.prepared"]
        module = names[names.index("-m") + 1]
        return f"{module} --quarantine" if "--quarantine" in parts else module
    program = Path(parts[0]).name if parts else ""
    return "valkey" if "valkey" in program else program


def environment(**settings: str) -> dict[str, str]:
    """Our environment without the product's settings and without a developer's backburner.toml."""
    product_settings = ("BACKBURNER_", "DATABASE_URL", "REDIS_URL")
    inherited = os.environ.items()  # noqa: TID251 - the children need PATH and the like
    ours = {name: value for name, value in inherited if not name.startswith(product_settings)}
    return ours | {"BACKBURNER_CONFIG": ""} | settings


async def launch_up(
    data: Path, *arguments: str, port: int = 0, folder: Path = ROOT, **settings: str
) -> Up:
    command = [
        sys.executable,
        "-m",
        "cli.main",
        "up",
        "--port",
        str(port),
        "--data",
        str(data),
        *arguments,
    ]
    pipe = asyncio.subprocess.PIPE
    return Up(
        await asyncio.create_subprocess_exec(
            *command, cwd=folder, stdout=pipe, stderr=pipe, env=environment(**settings)
        ),
        data,
    )


@asynccontextmanager
async def running_up(
    data: Path, *arguments: str, port: int = 0, folder: Path = ROOT, **settings: str
) -> AsyncIterator[Up]:
    """Yields a ready `up` in this folder; kills it and its children if the test left it running."""
    up = await launch_up(data, *arguments, port=port, folder=folder, **settings)
    try:
        await up.ready()
        yield up
    finally:
        if up.process.returncode is None:
            up.process.kill()
            await up.wait_for_exit()
        await until(lambda: not up.alive())


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that PostgreSQL's user can reach: as root, it cannot reach pytest's own folder."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.fixture
def data() -> Iterator[Path]:
    with temporary_folder() as folder:
        yield folder / "data"


@pytest.fixture(scope="module")
async def shared_up() -> AsyncIterator[Up]:
    """A running `up` that tests use and do not end, except the last one."""
    with temporary_folder() as folder:
        # another program's servers: `up` does not use them
        async with running_up(
            folder / "data",
            DATABASE_URL="postgresql://127.0.0.1:9/x",
            REDIS_URL="redis://127.0.0.1:9/0",
        ) as up:
            yield up


def stored_credentials(up: Up) -> dict[str, str]:
    credentials: dict[str, str] = json.loads((up.data / "credentials.json").read_text())
    return credentials


async def failure_of(data: Path, *arguments: str, port: int = 0, **settings: str) -> str:
    """Returns the error line of an `up` that must fail."""
    result = await (
        await launch_up(data, *arguments, port=port, folder=ROOT, **settings)
    ).wait_for_exit()
    assert result.code == 1
    assert result.out == ""
    assert len(result.err.splitlines()) == 1, result.err
    return result.err


async def test_after_the_ready_line_a_response_runs(shared_up: Up) -> None:
    status, response = await shared_up.respond("Hello")
    assert status == 200
    assert response["status"] == "completed"
    assert response["output"][-1]["content"][0]["text"] == f"{MARK} You said: Hello"


async def test_the_ready_line_shows_base_url_and_key(shared_up: Up) -> None:
    assert shared_up.base_url.startswith("http://127.0.0.1:")
    assert shared_up.base_url.endswith("/v1")
    assert shared_up.key.startswith("bb-")
    assert len(shared_up.key) == KEY_LENGTH
    assert shared_up.key == stored_credentials(shared_up)["api_key"]


async def test_up_starts_one_process_of_each_kind(shared_up: Up) -> None:
    children = psutil.Process(shared_up.process.pid).children()
    assert sorted(child_name(child) for child in children) == sorted(NAMES)


async def test_secrets_are_readable_by_the_owner_only_and_on_no_command_line(shared_up: Up) -> None:
    path = shared_up.data / "credentials.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secrets = list(stored_credentials(shared_up).values())
    assert len(set(secrets)) == 4
    shared_up.note_children()
    commands = shared_up.alive()
    assert not [line for line in commands if any(secret in line for secret in secrets)]


async def test_codex_which_always_sends_a_web_search_works_without_a_provider(
    shared_up: Up,
) -> None:
    headers = {"authorization": f"Bearer {shared_up.key}"}
    search = {"type": "web_search", "external_web_access": False}
    body = {"model": "demo", "input": "x", "tools": [search]}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{shared_up.base_url}/responses", json=body) as answer,
    ):
        assert (answer.status, answer.headers["x-omitted-tools"]) == (200, "web_search")
        assert (await answer.json())["tools"] == []


async def test_data_folder_has_its_layout(shared_up: Up) -> None:
    assert {path.name for path in shared_up.data.iterdir()} >= {
        ".lock",
        "credentials.json",
        "ports.json",
        "postgres",
        "valkey",
        "logs",
    }
    assert set(json.loads((shared_up.data / "ports.json").read_text())) == {
        "web",
        "postgres",
        "valkey",
        "demo",
        "sandbox",
    }
    logs = {path.name for path in (shared_up.data / "logs").iterdir()}
    assert logs == {
        "web.log",
        "worker.log",
        "worker-quarantine.log",
        "postgres.log",
        "valkey.log",
        "demo-upstream.log",
        *(["sandbox.log"] if CONFINES else []),
    }


async def test_logs_are_readable_by_the_owner_only(shared_up: Up) -> None:
    logs = shared_up.data / "logs"
    assert stat.S_IMODE(logs.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in logs.iterdir()} == {0o600}


async def test_the_database_refuses_a_wrong_password(shared_up: Up) -> None:
    port = json.loads((shared_up.data / "ports.json").read_text())["postgres"]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://backburner:wrong@127.0.0.1:{port}/backburner")


async def test_second_up_names_the_first_and_leaves_it_alone(shared_up: Up) -> None:
    sentence = await failure_of(shared_up.data)
    assert f"process {shared_up.process.pid}" in sentence
    assert (await shared_up.get("/models"))[0] == 200


async def test_upstream_check_finds_the_upstream_of_the_running_up(shared_up: Up) -> None:
    command = ("upstream", "check", "--data", str(shared_up.data), "--model", "demo", "--json")
    result = await in_thread(command, environment())
    port = json.loads((shared_up.data / "ports.json").read_text())["demo"]
    assert result.facts["base_url"] == f"http://127.0.0.1:{port}/v1"
    assert result.facts["findings"][0]["verdict"] == "works"


async def test_keys_create_makes_a_working_key(shared_up: Up) -> None:
    command = [
        sys.executable,
        "-m",
        "cli.main",
        "keys",
        "create",
        "--name",
        "other",
        "--data",
        str(shared_up.data),
    ]
    pipe = asyncio.subprocess.PIPE
    created = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=pipe, env=environment()
    )
    out, _ = await created.communicate()
    assert created.returncode == 0
    other_client = Up(shared_up.process, shared_up.data, shared_up.base_url, out.decode().strip())
    assert (await other_client.get("/models"))[0] == 200
    other_client.key += "x"
    assert (await other_client.get("/models"))[0] == 401


async def test_a_webhook_on_this_machine_is_made_by_the_command_and_gets_a_test_event(
    shared_up: Up,
) -> None:
    async def webhooks(*arguments: str, **settings: str) -> tuple[int | None, str, str]:
        command = ("webhooks", *arguments, "--data", str(shared_up.data))
        ran = await in_thread(command, environment(**settings))
        return ran.code, ran.out, ran.err

    async with webhook_receiver() as receiver:
        code, out, err = await webhooks("create", receiver.url)
        assert code == 0, err
        endpoint, secret = out.split()
        assert (await webhooks("test", endpoint))[0] == 0
        await until(lambda: receiver.hooks, within=30)
        assert unwrap(receiver.hooks[0], secret).type == "response.completed"
        code, _, err = await webhooks("create", "http://10.0.0.1/hook")
        assert (code, "may not be reached" in err) == (1, True)
        private = {"BACKBURNER_EGRESS__ALLOW": "10.0.0.0/8"}
        assert (await webhooks("create", receiver.url, **private))[0] == 1, "as of `up`"
        assert (await webhooks("delete", endpoint))[0] == 0


async def test_the_console_makes_and_tests_a_webhook_and_shows_its_pause(shared_up: Up) -> None:
    dsn = database_of(shared_up.data)
    link = await asyncio.to_thread(create_link, dsn)
    origin, name = shared_up.base_url.removesuffix("/v1"), "jobs <script>alert(1)</script>"
    jar = aiohttp.CookieJar(unsafe=True)
    async with webhook_receiver() as receiver, aiohttp.ClientSession(cookie_jar=jar) as session:
        user = ConsoleUser(origin, session)
        await user.get(f"{LOGIN_PATH}{link}")
        token = ("form_token", (await user.get("/console/webhooks/new")).form_token)
        fields = [token, ("project", "default"), ("name", name), ("url", receiver.url)]
        for changed, words in (
            (("url", "http://10.9.9.9/"), "may not be reached"),
            (("project", "nobodys"), "There is no project nobodys"),
            (("type", "batch.begun"), "There are response.completed"),
        ):
            kept = [each for each in fields if each[0] != changed[0]]
            refused = await user.post("/console/webhooks/new", [*kept, changed])
            assert (refused.status, words in refused.text) == (400, True), refused.text
            assert "&lt;script&gt;" in refused.html, "what was written stays in the form"
        made = await user.post("/console/webhooks/new", [*fields, ("type", "response.failed")])
        assert "<script>alert" not in made.html
        secret, endpoint = (
            re.findall(rf"{prefix}[A-Za-z0-9+/=]+", made.text)[0] for prefix in ("whsec_", "whe_")
        )
        path, of_it = f"/console/webhooks/{endpoint}", [token, ("id", endpoint)]
        page = await user.get(path)
        assert (secret in page.html, name in page.text) == (False, True)

        tested = await user.post("/console/webhooks/test", of_it)
        assert "A worker delivers a test event next" in tested.text
        await until(lambda: receiver.hooks, within=30)
        assert unwrap(receiver.hooks[0], secret).type == "response.failed", "one that it gets"

        async def shows(words: str) -> bool:
            return words in (await user.get(path)).text

        await until(lambda: shows("HTTP 200"))
        receiver.answer = lambda: web.Response(status=500)
        await user.post("/console/webhooks/test", of_it)
        await until(lambda: shows("1 tries in a row have failed"))
        # Much longer than the pause of the delivery, which has failed once.
        pause = "UPDATE webhook_endpoints SET paused_until = now() + interval '4 min'"
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await connection.execute(pause.encode())
        assert await shows("After the last failure nothing is sent before")
        assert re.search(
            r"waiting response.failed .* 1 in 4 min, \d{4}-", (await user.get(path)).text
        )
        disable = [*of_it, ("action", "disable")]
        assert (
            "The endpoint is disabled."
            in (await user.post("/console/webhooks/change", disable)).text
        )
        refused = await user.post("/console/webhooks/test", of_it)
        assert (refused.status, "Enable the endpoint first." in refused.text) == (409, True)
        assert await shows("when it is enabled")


async def run_command(*arguments: str, **settings: str) -> CommandResult:
    """Runs the command line to its end."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cli.main", *arguments),
        cwd=ROOT,
        stdout=pipe,
        stderr=pipe,
        env=environment(**settings),
    )
    async with asyncio.timeout(60):
        out, err = await process.communicate()
    return CommandResult(process.returncode, out.decode(), err.decode())


async def test_status_and_logs_show_what_runs(shared_up: Up) -> None:
    data = ("--data", str(shared_up.data))
    shown = await run_command("status", "--json", *data)
    facts = json.loads(shown.out)
    assert (shown.code, facts["ready"], facts["pid"]) == (0, True, shared_up.process.pid)
    assert facts["base_url"] == shared_up.base_url
    shared_up.note_children()
    assert {process["pid"] for process in facts["processes"]} <= shared_up.descendants.keys()
    logs = await run_command("logs", "web", "-n", "1", *data)
    assert logs.code == 0
    assert json.loads(logs.out)["process"] == "web"
    assert "there are: demo-upstream" in (await run_command("logs", "nothing", *data)).err


async def test_logs_are_followed_also_after_they_were_cut(data: Path) -> None:
    log = data / "logs" / "web.log"
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    lines = log_lines(data, ["web"], 2, follow=True)
    assert [next(lines) for _ in range(2)] == [("web", "line 99998"), ("web", "line 99999")]
    log.write_text("a new beginning\nnot who")
    assert next(lines) == ("web", "a new beginning")
    with log.open("a") as file:
        file.write("le\n")
    (log.parent / "web-2.log").write_text("another\n")
    assert {next(lines) for _ in range(2)} == {("web", "not whole"), ("web-2", "another")}


@pytest.mark.long
async def test_a_detached_up_returns_when_it_is_ready_and_down_stops_it(data: Path) -> None:
    where = ("--data", str(data))
    assert (await run_command("status", *where)).code == 1
    started = await run_command("up", "--detach", "--port", "0", *where)
    try:
        assert started.code == 0, started.err
        word, base_url, key = started.out.split()
        up = running_up_of(data)
        assert up is not None
        assert (word, base_url) == ("ready", up.base_url)
        assert key not in (data / "logs" / "up.log").read_text()
        assert "`./dev down" in started.err
        again = await run_command("up", "--detach", "--port", "0", *where)
        assert (again.code, again.out) == (1, "")
        assert f"process {up.pid}" in again.err
    finally:
        stopped = await run_command("down", *where)
    assert (stopped.code, stopped.err) == (0, "Stopped.\n")
    assert not [each for each in up.processes if command_of(each.pid)]
    assert "no `up` runs" in (await run_command("down", *where)).err


async def assert_ends_cleanly(up: Up, number: signal.Signals) -> CommandResult:
    """Sends the signal; `up` ends with 0, leaves no process and prints nothing more."""
    began = time.monotonic()
    result = await up.end(number)
    assert time.monotonic() - began < 10
    assert (result.code, result.out) == (0, "")
    assert "curl" in result.err
    assert "Traceback" not in result.err
    assert up.alive() == []
    return result


@pytest.mark.long
async def test_signal_before_it_is_ready_ends_it_with_0(data: Path) -> None:
    up = await launch_up(data)
    await until((data / "ports.json").exists, 30)
    result = await up.end()
    assert (result.code, result.out) == (0, "")
    assert up.alive() == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("postgres", "worker") else pytest.mark.long)
        for name in NAMES
    ],
)
async def test_killed_child_is_restarted_within_a_second(shared_up: Up, name: str) -> None:
    shared_up.note_children()
    victim = shared_up.child(name)
    os.kill(victim, signal.SIGKILL)

    def successor() -> bool:
        children = psutil.Process(shared_up.process.pid).children()
        return any(
            child_name(child) == name and child.pid != victim
            for child in children
            if is_alive(child)
        )

    await until(successor, within=2)  # the promise is one second on an idle machine

    async def works_again() -> bool:
        try:
            status, response = await shared_up.respond("Still there?")
        except aiohttp.ClientConnectionError:
            return False
        return status == 200 and bool(response["status"] == "completed")

    await until(works_again, within=30)


async def test_a_port_in_use_is_one_sentence(data: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert f"port {port}" in await failure_of(data, port=port)


async def test_unreachable_database_is_one_sentence_without_its_password(data: Path) -> None:
    address = f"postgresql://somebody:verysecret@127.0.0.1:{free_port()}/none"
    sentence = await failure_of(data, "--database-url", "env", DATABASE_URL=address)
    assert "database" in sentence
    assert "verysecret" not in sentence


async def test_unusable_settings_are_one_sentence_without_their_value(data: Path) -> None:
    assert "BACKBURNER_BOOTSTRAP_KEY" in (
        sentence := await failure_of(data, BACKBURNER_BOOTSTRAP_KEY="tooshort")
    )
    assert "tooshort" not in sentence
    sentence = await failure_of(data, "--upstream", "localhost:11434")
    assert "try http://localhost:11434/v1" in sentence
    assert "DATABASE_URL is not set" in await failure_of(data, "--database-url", "env")


@pytest.mark.long
async def test_a_failing_child_is_one_sentence_with_its_last_output_and_leaves_no_process(
    data: Path,
) -> None:
    """A worker refuses more streams than the system has open files for."""
    sentence = await failure_of(data, "--streams", "1000000000")
    assert "worker ended with 1 while starting" in sentence
    assert str(data / "logs" / "worker.log") in sentence
    with DataFolder(data):  # nothing else locks it
        pass


@pytest.mark.long
async def test_the_file_of_the_working_directory_is_used_and_the_flag_overrides_it(
    data: Path, fake: FakeUpstream
) -> None:
    upstream = (
        f'[upstreams.one]\nbase_url = "{fake.base_url}"\n'
        '[upstreams.two]\nbase_url = "http://127.0.0.1:9/v1"\n'
    )
    (data.parent / "backburner.toml").write_text(
        upstream + '[routes]\n"alias" = { upstream = "one", model = "resident" }\n'
    )
    config_file = "backburner.toml"  # the default, which the tests' environment overrides
    async with running_up(data, folder=data.parent, BACKBURNER_CONFIG=config_file) as up:
        assert "demo-upstream" not in {
            child_name(child) for child in psutil.Process(up.process.pid).children()
        }
        status, listed = await up.get("/models")
        assert (status, [model["id"] for model in listed["data"]]) == (200, ["alias"])
        result = await up.end()
        assert result.code == 0
        assert '"model": "alias"' in result.err, "the greeting names a model with a route"
        assert "The tool web_search cannot run: BACKBURNER_WEB_SEARCH__PROVIDER" in result.err
    async with running_up(
        data, "--upstream", fake.base_url, folder=data.parent, BACKBURNER_CONFIG=config_file
    ) as up:
        status, listed = await up.get("/models")
        names = {model["id"] for model in listed["data"]}
        assert (status, "resident" in names) == (200, True)
        result = await up.end()
        assert result.code == 0
        assert any(f'"model": "{name}"' in result.err for name in names), "a model that exists"
        assert "Warning" not in result.err


@pytest.mark.long
async def test_configured_servers_are_used_and_none_is_started(data: Path) -> None:
    logs = data.parent / "logs"
    postgres = Postgres(data.parent / "postgres", logs, port=free_port(), password="given")
    valkey = Valkey(data.parent / "valkey", logs, port=free_port(), password="given")
    database_url = postgres.url.replace("postgresql://", "postgresql+psycopg://")
    with postgres, valkey:
        async with running_up(
            data,
            "--workers",
            "2",
            "--upstream",
            "http://127.0.0.1:9/v1",
            "--database-url",
            "env",
            "--redis-url",
            valkey.url,
            DATABASE_URL=database_url,
            BACKBURNER_BOOTSTRAP_KEY="sixteen-or-more-characters",
        ) as up:
            assert up.key == "sixteen-or-more-characters"
            assert (await up.get(f"/responses/resp_{'0' * 32}"))[0] == 404
            children = [child_name(child) for child in psutil.Process(up.process.pid).children()]
            servers = ("cli.demo_upstream", "postgres", "valkey")
            expected = ["worker", *(name for name in NAMES if name not in servers)]
            assert sorted(children) == sorted(expected)
            assert not (data / "postgres").exists()
            async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
                user = ConsoleUser(up.base_url.removesuffix("/v1"), session)
                await user.get(f"{LOGIN_PATH}{create_link(postgres.url)}")
                page = await user.get("/console")
                assert f"curl {up.base_url}/responses" in page.text
                assert '"model": "MODEL"' in page.text, "its upstream lists none"

            # the commands for this folder find these servers, which only `up` was told of
            # The quarantine worker is the last one.
            async def has_all() -> bool:
                shown = await run_command("workers", "--json", "--data", str(data))
                assert (shown.code, shown.err) == (0, "")
                return len(json.loads(shown.out)) == 4

            await until(has_all)
            assert (data / ".lock").stat().st_mode & 0o777 == 0o600
            result = await assert_ends_cleanly(up, signal.SIGINT)
            assert "Warning: the upstream http://127.0.0.1:9/v1 refuses the con" in result.err
        stopped = await run_command("workers", "--data", str(data))
        assert "`up` does not run in" in stopped.err


def test_the_next_owner_of_the_folder_ends_processes_left_by_a_killed_one(data: Path) -> None:
    """On systems that do not end children when their parent dies."""
    # The lock file names a process that still runs, and a pid that another process has now.
    orphan = Process(
        "left", data / "left.log", [sys.executable, "-c", "import signal; signal.pause()", "a mark"]
    )
    orphan.launch()
    arguments = " ".join(orphan.command[1:])
    wait_until(lambda: arguments in command_of(orphan.pid))
    (data / ".lock").write_text(
        json.dumps({"pid": 1, "children": {orphan.pid: arguments, os.getpid(): "not this one"}})
        + "\n"
    )
    # The folder is locked again.
    with DataFolder(data):
        # The first process ends.
        wait_until(lambda: not orphan.running())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_damaged_credentials_are_not_replaced(data: Path) -> None:
    with DataFolder(data) as folder:
        credentials = folder.credentials(None)
        assert isinstance(credentials, Credentials)
        assert folder.credentials("another-first-key") == credentials


# It comes last: nothing can use `shared_up` after it.
async def test_starts_and_ends_cleanly_after_kill_9_with_the_same_key_and_data(
    shared_up: Up,
) -> None:
    # A response, then kill -9 of the supervisor.
    _, response = await shared_up.respond("Remember me")
    shared_up.note_children()
    shared_up.process.kill()
    await shared_up.wait_for_exit()
    # Another one starts at once.
    async with running_up(shared_up.data) as successor:
        # It has the same data, and no process of the first is left.
        assert shared_up.alive() == []
        assert successor.key == shared_up.key
        status, response_again = await successor.get(f"/responses/{response['id']}")
        assert (status, response_again["output"]) == (200, response["output"])
        await assert_ends_cleanly(successor, signal.SIGTERM)
