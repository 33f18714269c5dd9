"""The product as in the image: only the copied files, read-only, without privileges."""

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
    """The command that makes root obey file permissions.

    It does not change the user, who might not be able to read this interpreter.
    """
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("the tests run as root, and there is no setpriv")
    return [setpriv, "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--"]


@dataclass(frozen=True)
class Image:
    """The files of the image, and how programs run in it."""

    app: Path
    temporary: Path
    environment: dict[str, str]

    def command(self, service: str) -> list[str]:
        """The service's command in docker-compose.yml."""
        return self.python("-m", *(with_defaults(word) for word in SERVICES[service]["command"]))

    def check(self, service: str, port: int) -> list[str]:
        """The service's health check, with another port."""
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
    """The files as the Dockerfile copies them. Fails if a process writes one more.

    They are not compiled, so that a written `.pyc` file is seen.
    """
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
async def configured_image(
    image: Image, database_server: Databases, fake: FakeUpstream, tmp_path: Path
) -> AsyncIterator[Image]:
    """The image with a database, a Redis and an upstream."""
    valkey = Valkey(tmp_path / "valkey", tmp_path / "logs", port=free_port(), password="secret")
    with valkey:
        image.environment.update(
            DATABASE_URL=await database_server.create_copy(),
            REDIS_URL=valkey.url,
            BACKBURNER_UPSTREAM__BASE_URL=fake.base_url,
            BACKBURNER_UPSTREAM__API_KEY="upstream-secret",
        )
        yield image


def test_the_files_of_the_image_cannot_be_changed(image: Image) -> None:
    result = image.run(image.python("-c", "open('cli/new', 'w')"))
    assert "PermissionError" in result.stderr


@pytest.mark.long
async def test_every_service_runs_on_a_read_only_file_system(
    configured_image: Image, tmp_path: Path
) -> None:
    migrated = configured_image.run(configured_image.command("migrate"))
    assert migrated.returncode == 0, migrated.stderr
    created = configured_image.run(configured_image.python("-m", "cli.main", "keys", "create"))
    assert created.returncode == 0, created.stderr
    assert (
        configured_image.run(configured_image.check("worker", 0)).returncode == 1
    )  # no process runs yet

    port = free_port()
    processes = []
    for name in ("web", "worker", "worker-quarantine"):
        command = [word.replace("8000", str(port)) for word in configured_image.command(name)]
        process = Process(
            name,
            tmp_path / "logs" / f"{name}.log",
            command,
            environment=configured_image.environment,
        )
        process.directory = configured_image.app
        process.launch()
        processes.append(process)
    try:
        await until(lambda: _ready(processes, port), 60)
        assert configured_image.run(configured_image.check("web", port)).returncode == 0
        assert configured_image.run(configured_image.check("worker", port)).returncode == 0
        await _answers(port, created.stdout.strip())
        for process in processes:
            process.request_stop()
        await until(lambda: not any(process.running() for process in processes), 30)
        assert [process.exit_code() for process in processes] in (
            [0, 0, 0],
            [-15, 0, 0],
        )  # web ends by the signal it was sent
        assert configured_image.run(configured_image.check("web", port)).returncode == 1
        assert configured_image.run(configured_image.check("worker", port)).returncode == 1
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
            body: dict[str, Any] = await answer.json()
    except aiohttp.ClientConnectionError:
        return False
    return bool(body["ready"]) and {"web", "worker", "quarantine"} <= set(body["workers"])


async def _answers(port: int, key: str) -> None:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as session,
        session.get(f"http://127.0.0.1:{port}/v1/models") as answer,
    ):
        assert answer.status == 200, await answer.text()
