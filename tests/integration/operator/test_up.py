"""The promises of `backburner up`: one line, one holder, clean ends and clean starts (design §8)."""

import asyncio
import json
import os
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

from cli.demo_upstream import MARK
from cli.embedded.credentials import Credentials
from cli.embedded.data_folder import DataFolder
from cli.embedded.postgres import Postgres
from cli.embedded.process import Process, command_of, free_port
from cli.embedded.valkey import Valkey
from cli.settings import ROOT
from tests.support.api import until
from tests.support.fake_upstream import FakeUpstream

KEY_LENGTH = len("bb-") + 43
NAMES = ["cli.demo_upstream", "postgres", "valkey", "web", "worker", "worker --quarantine"]


@dataclass(slots=True)
class Up:
    """A running `up`."""

    process: asyncio.subprocess.Process
    data: Path
    base_url: str = ""
    key: str = ""
    descendants: dict[int, psutil.Process] = field(default_factory=dict)
    """Every process seen below it."""

    async def ready(self) -> None:
        """Read the line, which must come first."""
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            line = (await self.process.stdout.readline()).decode()
        if not line:
            raise AssertionError(f"no ready line: {(await self.rest()).err}")
        word, self.base_url, self.key = line.split()
        assert word == "ready"
        self.look()

    def look(self) -> None:
        """Take note of the processes there are."""
        self.descendants |= {
            child.pid: child for child in psutil.Process(self.process.pid).children(recursive=True)
        }

    def child(self, name: str) -> int:
        """The pid of a direct child, by one of NAMES."""
        return next(
            child.pid
            for child in psutil.Process(self.process.pid).children()
            if named(child) == name
        )

    async def rest(self) -> "Ended":
        """Wait for its end."""
        async with asyncio.timeout(40):
            out, err = await self.process.communicate()
        return Ended(self.process.returncode, out.decode(), err.decode())

    async def end(self, number: signal.Signals = signal.SIGTERM) -> "Ended":
        self.look()
        self.process.send_signal(number)
        return await self.rest()

    def alive(self) -> list[str]:
        """Which of the processes ever seen still run; a zombie waits only for its parent."""
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
        """A foreground response of the demo."""
        headers = {"authorization": f"Bearer {self.key}"}
        body = {"model": "demo", "input": text}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.post(f"{self.base_url}/responses", json=body) as answer,
        ):
            return answer.status, await answer.json()


@dataclass(frozen=True, slots=True)
class Ended:
    code: int | None
    out: str
    err: str


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def command(process: psutil.Process) -> list[str]:
    """Its command line, empty when it is just ending."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def named(child: psutil.Process) -> str:
    """One of NAMES; empty when it is just ending."""
    words = command(child)
    if "-m" in words:
        module = words[words.index("-m") + 1]
        return f"{module} --quarantine" if "--quarantine" in words else module
    program = Path(words[0]).name if words else ""
    return "valkey" if "valkey" in program else program


def environment(**settings: str) -> dict[str, str]:
    """Ours, without anything that configures the product."""
    stray = ("BACKBURNER_", "DATABASE_URL", "REDIS_URL")
    kept = os.environ.items()  # noqa: TID251 - PATH and the like; settings are what is left out
    told = {name: value for name, value in kept if not name.startswith(stray)}
    return (
        told | {"BACKBURNER_CONFIG": ""} | settings
    )  # a developer's own backburner.toml is left alone


async def launch(
    data: Path, *arguments: str, port: int = 0, folder: Path = ROOT, **settings: str
) -> Up:
    whole = [
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
            *whole, cwd=folder, stdout=pipe, stderr=pipe, env=environment(**settings)
        ),
        data,
    )


@asynccontextmanager
async def started(
    data: Path, *arguments: str, port: int = 0, folder: Path = ROOT, **settings: str
) -> AsyncIterator[Up]:
    """A ready `up` in this working directory; killed with all its children if the test leaves it running."""
    up = await launch(data, *arguments, port=port, folder=folder, **settings)
    try:
        await up.ready()
        yield up
    finally:
        if up.process.returncode is None:
            up.process.kill()
            await up.rest()
        await until(lambda: not up.alive())


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Not below pytest's own folder: as root that one cannot be reached by the user PostgreSQL runs as."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.fixture
def data() -> Iterator[Path]:
    with temporary_folder() as folder:
        yield folder / "data"


@pytest.fixture(scope="module")
async def shared_stack() -> AsyncIterator[Up]:
    """One that tests may ask, but not end."""
    with temporary_folder() as folder:
        async with started(folder / "data") as up:
            yield up


def stored(up: Up) -> dict[str, str]:
    credentials: dict[str, str] = json.loads((up.data / "credentials.json").read_text())
    return credentials


async def refused(data: Path, *arguments: str, port: int = 0, **settings: str) -> str:
    """The sentence of an `up` that must fail."""
    ended = await (await launch(data, *arguments, port=port, folder=ROOT, **settings)).rest()
    assert ended.code == 1
    assert ended.out == ""
    assert len(ended.err.splitlines()) == 1, ended.err
    return ended.err


async def test_ready_means_a_response_runs(shared_stack: Up) -> None:
    status, response = await shared_stack.respond("Hello")
    assert status == 200
    assert response["status"] == "completed"
    assert response["output"][-1]["content"][0]["text"] == f"{MARK} You said: Hello"


async def test_ready_line_tells_base_url_and_key(shared_stack: Up) -> None:
    assert shared_stack.base_url.startswith("http://127.0.0.1:")
    assert shared_stack.base_url.endswith("/v1")
    assert shared_stack.key.startswith("bb-")
    assert len(shared_stack.key) == KEY_LENGTH
    assert shared_stack.key == stored(shared_stack)["api_key"]


async def test_runs_one_of_each(shared_stack: Up) -> None:
    children = psutil.Process(shared_stack.process.pid).children()
    assert sorted(named(child) for child in children) == sorted(NAMES)


async def test_secrets_are_for_the_owner_alone_and_on_no_command_line(shared_stack: Up) -> None:
    path = shared_stack.data / "credentials.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    secrets = list(stored(shared_stack).values())
    assert len(set(secrets)) == 4
    shared_stack.look()
    commands = shared_stack.alive()
    assert not [line for line in commands if any(secret in line for secret in secrets)]


async def test_data_folder_has_its_layout(shared_stack: Up) -> None:
    assert {path.name for path in shared_stack.data.iterdir()} >= {
        ".lock",
        "credentials.json",
        "ports.json",
        "postgres",
        "valkey",
        "logs",
    }
    assert set(json.loads((shared_stack.data / "ports.json").read_text())) == {
        "web",
        "postgres",
        "valkey",
        "demo",
    }
    logs = {path.name for path in (shared_stack.data / "logs").iterdir()}
    assert logs == {
        "web.log",
        "worker.log",
        "worker-quarantine.log",
        "postgres.log",
        "valkey.log",
        "demo-upstream.log",
    }


async def test_database_wants_the_password(shared_stack: Up) -> None:
    port = json.loads((shared_stack.data / "ports.json").read_text())["postgres"]
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://backburner:wrong@127.0.0.1:{port}/backburner")


async def test_second_up_names_the_first_and_leaves_it_alone(shared_stack: Up) -> None:
    sentence = await refused(shared_stack.data)
    assert f"process {shared_stack.process.pid}" in sentence
    assert (await shared_stack.get("/models"))[0] == 200


async def test_keys_create_makes_a_key_that_works(shared_stack: Up) -> None:
    creating = [
        sys.executable,
        "-m",
        "cli.main",
        "keys",
        "create",
        "--project",
        "other",
        "--data",
        str(shared_stack.data),
    ]
    pipe = asyncio.subprocess.PIPE
    created = await asyncio.create_subprocess_exec(
        *creating, cwd=ROOT, stdout=pipe, env=environment()
    )
    out, _ = await created.communicate()
    assert created.returncode == 0
    visitor = Up(
        shared_stack.process, shared_stack.data, shared_stack.base_url, out.decode().strip()
    )
    assert (await visitor.get("/models"))[0] == 200
    visitor.key += "x"
    assert (await visitor.get("/models"))[0] == 401


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_it_with_0_nothing_left_and_nothing_more_said(
    data: Path, number: signal.Signals
) -> None:
    async with started(data) as up:
        began = time.monotonic()
        ended = await up.end(number)
        assert time.monotonic() - began < 10
        assert (ended.code, ended.out) == (0, "")
        assert "curl" in ended.err
        assert "Traceback" not in ended.err
        assert up.alive() == []


async def test_signal_before_it_is_ready_ends_it_with_0(data: Path) -> None:
    up = await launch(data)
    await until((data / "ports.json").exists)
    ended = await up.end()
    assert (ended.code, ended.out) == (0, "")
    assert up.alive() == []


async def test_starts_cleanly_after_kill_9_with_the_same_key_and_data(data: Path) -> None:
    # Given a response, and a supervisor that is killed
    async with started(data) as up:
        _, response = await up.respond("Remember me")
        key = up.key
        up.look()
        up.process.kill()
        await up.rest()
        # When another starts at once
        async with started(data) as successor:
            # Then it finds everything, and nothing of the first is left
            assert up.alive() == []
            assert successor.key == key
            status, found = await successor.get(f"/responses/{response['id']}")
            assert (status, found["output"]) == (200, response["output"])
            assert (await successor.end()).code == 0


@pytest.mark.parametrize("name", NAMES)
async def test_killed_child_is_restarted_within_a_second(shared_stack: Up, name: str) -> None:
    shared_stack.look()
    victim = shared_stack.child(name)
    os.kill(victim, signal.SIGKILL)

    def successor() -> bool:
        children = psutil.Process(shared_stack.process.pid).children()
        return any(
            named(child) == name and child.pid != victim for child in children if is_alive(child)
        )

    await until(successor, within=2)  # one is promised, of a machine that does nothing else

    async def works_again() -> bool:
        try:
            status, response = await shared_stack.respond("Still there?")
        except aiohttp.ClientConnectionError:
            return False
        return status == 200 and bool(response["status"] == "completed")

    await until(works_again, within=30)


async def test_taken_port_is_one_sentence(data: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        assert f"port {port}" in await refused(data, port=port)


async def test_unreachable_database_is_one_sentence_without_its_password(data: Path) -> None:
    address = f"postgresql://somebody:verysecret@127.0.0.1:{free_port()}/none"
    sentence = await refused(data, DATABASE_URL=address)
    assert "database" in sentence
    assert "verysecret" not in sentence


async def test_unusable_settings_are_one_sentence_without_their_value(data: Path) -> None:
    assert "DATABASE_URL" in (
        sentence := await refused(data, DATABASE_URL="mysql://root:verysecret@localhost")
    )
    assert "verysecret" not in sentence
    assert "BACKBURNER_BOOTSTRAP_KEY" in (
        sentence := await refused(data, BACKBURNER_BOOTSTRAP_KEY="tooshort")
    )
    assert "tooshort" not in sentence


async def test_failing_child_is_one_sentence_with_its_last_words_and_leaves_nothing(
    data: Path,
) -> None:
    """A worker refuses more streams than the system has open files for."""
    sentence = await refused(data, "--streams", "1000000000")
    assert "worker ended with 1 while starting" in sentence
    assert str(data / "logs" / "worker.log") in sentence
    with DataFolder(data):  # nobody holds it
        pass


async def test_the_file_of_its_working_directory_is_used_and_the_flag_goes_before_it(
    data: Path, fake: FakeUpstream
) -> None:
    upstream = f'[upstreams.one]\nbase_url = "{fake.base_url}"\n[upstreams.two]\nbase_url = "http://127.0.0.1:9/v1"\n'
    (data.parent / "backburner.toml").write_text(
        upstream + '[routes]\n"house" = { upstream = "one", model = "resident" }\n'
    )
    here = "backburner.toml"  # as if nothing were said: the tests say that there is no file
    async with started(data, folder=data.parent, BACKBURNER_CONFIG=here) as up:
        assert "demo-upstream" not in {
            named(child) for child in psutil.Process(up.process.pid).children()
        }
        status, listed = await up.get("/models")
        assert (status, [model["id"] for model in listed["data"]]) == (200, ["house"])
        ended = await up.end()
        assert ended.code == 0
        assert '"model": "house"' in ended.err, "the greeting shows a model that can be asked for"
    async with started(
        data, "--upstream", fake.base_url, folder=data.parent, BACKBURNER_CONFIG=here
    ) as up:
        status, listed = await up.get("/models")
        assert (status, "resident" in {model["id"] for model in listed["data"]}) == (200, True)
        assert (await up.end()).code == 0


async def test_bootstrap_key_is_the_first_key(data: Path) -> None:
    async with started(data, BACKBURNER_BOOTSTRAP_KEY="sixteen-or-more-characters") as up:
        assert up.key == "sixteen-or-more-characters"
        assert (await up.get("/models"))[0] == 200


async def test_given_servers_are_used_and_none_started(data: Path) -> None:
    logs = data.parent / "logs"
    postgres = Postgres(data.parent / "postgres", logs, port=free_port(), password="given")
    valkey = Valkey(data.parent / "valkey", logs, port=free_port(), password="given")
    alike = postgres.url.replace("postgresql://", "postgresql+psycopg://")
    with postgres, valkey:
        async with started(
            data,
            "--workers",
            "2",
            "--upstream",
            "http://127.0.0.1:9/v1",
            DATABASE_URL=alike,
            REDIS_URL=valkey.url,
        ) as up:
            children = [named(child) for child in psutil.Process(up.process.pid).children()]
            assert sorted(children) == ["web", "worker", "worker", "worker --quarantine"]
            assert not (data / "postgres").exists()
            assert (await up.end()).code == 0


def test_holder_ends_what_a_killed_predecessor_left(data: Path) -> None:
    """Where no parent-death signal does it."""
    # Given a lock file that names a process still running, and one whose number is another's now
    left = Process(
        "left", data / "left.log", [sys.executable, "-c", "import signal; signal.pause()", "a mark"]
    )
    left.launch()
    arguments = " ".join(left.command[1:])
    waiting_for(lambda: arguments in command_of(left.pid))
    (data / ".lock").write_text(
        json.dumps({"pid": 1, "children": {left.pid: arguments, os.getpid(): "not this one"}})
        + "\n"
    )
    # When the folder is taken
    with DataFolder(data):
        # Then the first is gone
        waiting_for(lambda: not left.running())


def waiting_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_damaged_credentials_are_not_replaced(data: Path) -> None:
    with DataFolder(data) as folder:
        made = folder.credentials(None)
        assert isinstance(made, Credentials)
        assert folder.credentials("another-first-key") == made
