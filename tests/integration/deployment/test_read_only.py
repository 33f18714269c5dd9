"""The product as the image has it: only what is copied, on a tree that nobody may write to, by a user without privileges."""

import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from cli.embedded.process import Process, free_port
from cli.embedded.valkey import Valkey
from tests.support.api import until
from tests.support.deployment_files import ROOT, copied_sources, services, with_defaults
from tests.support.fake_upstream import FakeUpstream
from tests.support.stack import Databases

SERVICES = services()


def _without_privileges() -> list[str]:
    """What makes root an ordinary user: permissions bind it. Not another user, who might not reach this interpreter."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("we are root, and there is no setpriv to give that up")
    return [setpriv, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--"]


@dataclass(frozen=True)
class Image:
    """The tree, and how a program is run in it."""

    app: Path
    temporary: Path
    environment: dict[str, str]

    def command(self, service: str) -> list[str]:
        """The service's own, as docker-compose.yml has it."""
        return self.python("-m", *(with_defaults(word) for word in SERVICES[service]["command"]))

    def check(self, service: str, port: int) -> list[str]:
        """The service's health check, asking at `port`."""
        return self.python(
            *(
                word.replace("8000", str(port))
                for word in SERVICES[service]["healthcheck"]["test"][2:]
            )
        )

    def python(self, *arguments: str) -> list[str]:
        return [*_without_privileges(), sys.executable, *arguments]

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.app, env=self.environment, capture_output=True, text=True, check=False
        )


def _tree(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Image]:
    """As the Dockerfile makes it, not compiled: what would be written then would show."""
    app, temporary = tmp_path / "app", tmp_path / "tmp"
    app.mkdir()
    temporary.mkdir()
    for source in copied_sources():
        if (ROOT / source).is_dir():
            shutil.copytree(
                ROOT / source, app / source, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copyfile(ROOT / source, app / source)
    for path in (app, *_tree(app)):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = _tree(app)
    environment = {
        "PATH": os.defpath,
        "HOME": "/nonexistent",
        "TMPDIR": str(temporary),
        "PYTHONPATH": str(app),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    yield Image(app, temporary, environment)
    written = _tree(app) - before, _tree(temporary)
    for path in (app, *before):
        path.chmod(0o755 if path.is_dir() else 0o644)  # so that the folder can be removed
    assert written == (set(), set())


@pytest.fixture
async def told(
    image: Image, database_server: Databases, fake: FakeUpstream, tmp_path: Path
) -> AsyncIterator[Image]:
    """The same with a database, a Redis and an upstream to speak to."""
    valkey = Valkey(tmp_path / "valkey", tmp_path / "logs", port=free_port(), password="secret")
    with valkey:
        image.environment.update(
            DATABASE_URL=await database_server.create_copy(),
            REDIS_URL=valkey.url,
            BACKBURNER_UPSTREAM__BASE_URL=fake.base_url,
            BACKBURNER_UPSTREAM__API_KEY="upstream-secret",
        )
        yield image


def test_the_tree_cannot_be_written_to(image: Image) -> None:
    tried = image.run(image.python("-c", "open('cli/new', 'w')"))
    assert "PermissionError" in tried.stderr


async def test_every_service_runs_on_it_and_writes_nothing(told: Image, tmp_path: Path) -> None:
    migrated = told.run(told.command("migrate"))
    assert migrated.returncode == 0, migrated.stderr
    made = told.run(told.python("-m", "cli.main", "keys", "create"))
    assert made.returncode == 0, made.stderr
    assert told.run(told.check("worker", 0)).returncode == 1  # nobody runs yet

    port = free_port()
    processes = []
    for name in ("web", "worker", "worker-quarantine"):
        command = [word.replace("8000", str(port)) for word in told.command(name)]
        process = Process(
            name, tmp_path / "logs" / f"{name}.log", command, environment=told.environment
        )
        process.directory = told.app
        process.launch()
        processes.append(process)
    try:
        await until(lambda: _ready(processes, port), 60)
        assert told.run(told.check("web", port)).returncode == 0
        assert told.run(told.check("worker", port)).returncode == 0
        await _answers(port, made.stdout.strip())
        for process in processes:
            process.request_stop()
        await until(lambda: not any(process.running() for process in processes), 30)
        assert [process.exit_code() for process in processes] in (
            [0, 0, 0],
            [-15, 0, 0],
        )  # web ends by the signal it was sent
        assert told.run(told.check("web", port)).returncode == 1
        assert told.run(told.check("worker", port)).returncode == 1
    finally:
        for process in processes:
            process.kill()


async def _ready(processes: list[Process], port: int) -> bool:
    for process in processes:
        assert process.running(), process.log.read_text()
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}/readyz") as answer,
        ):
            found: dict[str, Any] = await answer.json()
    except aiohttp.ClientConnectionError:
        return False
    return bool(found["ready"]) and {"web", "worker", "quarantine"} <= set(found["workers"])


async def _answers(port: int, key: str) -> None:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session,
        session.get(f"http://127.0.0.1:{port}/v1/models") as answer,
    ):
        assert answer.status == 200, await answer.text()
