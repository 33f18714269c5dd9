"""Sandboxes, and sessions in them, for the tests of this folder."""

import asyncio
import itertools
import os
import secrets
import shutil
import ssl
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pytest
from aiohttp import web

from cli.embedded.unprivileged_user import reachable
from models.confinement.policy import missing
from tests.support.certificates import self_signed
from tests.support.sandboxes import SandboxProcess
from tests.support.stack import ROOT

UNPRIVILEGED = 54_321
"""A user that nothing else runs as."""
MODES = ("own users", "root without own users", "no capability", "no namespace", "runsc")
_NO_NAMESPACES = """
import ctypes, os, struct, sys
from models.confinement.kernel import prctl
number = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("@HBBI", *step) for step in steps))
head = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
prctl(38, 1)
prctl(22, 2, ctypes.addressof(head))
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Refuses `unshare` to the command that follows, as the rules of container engines do."""
OPTIONS = ("--memory", "256", "--disk", "100", "--wall-time", "30", "--cpu-time", "2")


class Session:
    """A session of a sandbox, for tests."""

    def __init__(self, sandbox: SandboxProcess, name: str, container: str) -> None:
        self.sandbox = sandbox
        self.path = f"/sessions/{name}"
        self.folder = sandbox.folder / "sessions" / container
        self._numbers = itertools.count()

    async def python(self, code: str) -> dict[str, Any]:
        """The result of a cell of Python."""
        return await self.cell({"kind": "python", "code": code})

    async def shell(self, *commands: str, **options: int) -> list[dict[str, Any]]:
        """The outputs of commands."""
        result = await self.cell({"kind": "shell", "commands": commands, **options})
        return list(result["outputs"])

    async def cell(self, body: dict[str, Any]) -> dict[str, Any]:
        """The result of a cell."""
        cell = await self.begin(body)
        answer = await self.sandbox.call("GET", f"{cell}?wait=60")
        assert answer["state"] == "done", answer
        return dict(answer["result"])

    async def begin(self, body: dict[str, Any]) -> str:
        """Begins a cell; returns its path."""
        path = f"{self.path}/cells/ci_{next(self._numbers)}"
        await self.sandbox.call("PUT", path, json=body)
        return path


class SessionOpener(Protocol):
    """Opens a session, whose code may reach these hosts."""

    def __call__(self, *allowed_domains: str) -> Awaitable[Session]: ...


@dataclass(frozen=True)
class Hosts:
    """Two servers on 127.0.0.1, which answer with what they get."""

    plain: str
    """`localhost` and its port."""
    tls: str
    certificate: Path
    connections: Callable[[], int]
    """How many are open."""


@pytest.fixture(scope="session")
async def hosts(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Hosts]:
    """What sandboxes that are not of gVisor let code reach."""
    certificate = self_signed(tmp_path_factory.mktemp("tls"))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate.file, certificate.key)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", _echo)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    for context in (None, tls):
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    plain, secure = (f"localhost:{port}" for _, port in runner.addresses)
    server = runner.server
    assert server is not None
    yield Hosts(plain, secure, certificate.file, lambda: len(server.connections))
    await runner.cleanup()


async def _echo(request: web.Request) -> web.Response:
    if request.path == "/wait":
        await asyncio.Event().wait()
    seen = f"{request.method} {request.path_qs} {request.host} {await request.text()}"
    return web.Response(text=seen)


def python_for_all() -> tuple[str, dict[str, str]]:
    """A Python that each user can run, with the packages of this one. Skips without one."""
    packages = {"PYTHONPATH": f"{ROOT}:{sysconfig.get_path('purelib')}"}
    system = "/usr/bin/python3"
    if all(reachable(Path(each)) for each in (sys.base_prefix, sys.prefix, ROOT)):
        return sys.executable, packages
    found = os.path.realpath(system)
    if found.endswith(f"python3.{sys.version_info.minor}") and reachable(ROOT):
        return system, packages
    pytest.skip("other users cannot run this Python or reach the checkout")


@pytest.fixture(scope="session", params=MODES)
async def sandbox(request: pytest.FixtureRequest, hosts: Hosts) -> AsyncIterator[SandboxProcess]:
    """A sandbox in each of the ways in which it can be run."""
    if missing():
        pytest.skip(f"this system has no {' and no '.join(missing())}")
    mode: str = request.param
    if mode not in ("no capability", "no namespace", "runsc") and os.geteuid() != 0:
        pytest.skip("the tests do not run as root")
    # Not in pytest's folder, which only its own user can enter.
    folder = _folder_for_all()
    runner = "runsc" if mode == "runsc" else "kernel"
    sandbox = SandboxProcess(folder, secrets.token_urlsafe(16), *OPTIONS, "--runner", runner)
    if mode != "runsc":
        allowed = f"{hosts.plain},{hosts.tls},127.0.0.0/8,::1,*.example"
        sandbox.environment["BACKBURNER_CODE__ALLOWED_HOSTS"] = allowed
    else:
        sandbox.command += ["--cpu-time", "20"]
    if mode == "runsc":
        runsc = shutil.which("runsc")
        if runsc is None:
            pytest.skip("there is no runsc")
        sandbox.environment["PATH"] = f"{Path(runsc).parent}:/usr/bin:/bin"
    elif mode == "own users":
        sandbox.command += ["--python", python_for_all()[0]]
    elif mode == "root without own users":
        if reachable(Path(sys.base_prefix)):
            pytest.skip("each user can run this Python")
    else:
        sandbox.command = [*_without_capabilities(folder), *sandbox.command]
        if os.geteuid() == 0:
            python, packages = python_for_all()
            sandbox.command[sandbox.command.index(sys.executable)] = python
            sandbox.environment |= packages
        if mode == "no namespace":
            at = next(n for n, each in enumerate(sandbox.command) if "python" in each)
            python = sandbox.command[at]
            sandbox.command[at:at] = [python, "-c", _NO_NAMESPACES]
    try:
        await sandbox.start_and_wait()
        yield sandbox
    finally:
        sandbox.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _folder_for_all() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="sandbox-", dir="/var/tmp"))
    folder.chmod(0o711)
    return folder


def _without_capabilities(folder: Path) -> list[str]:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("there is no setpriv")
    command = [setpriv, "--no-new-privs", "--inh-caps=-all"]
    if os.geteuid() == 0:
        os.chown(folder, UNPRIVILEGED, UNPRIVILEGED)
        user = str(UNPRIVILEGED)
        command += [f"--reuid={user}", f"--regid={user}", "--clear-groups", "--bounding-set=-all"]
    return command


@pytest.fixture
async def open_session(sandbox: SandboxProcess) -> AsyncIterator[SessionOpener]:
    """Opens sessions, which are closed at the end."""
    opened: list[Session] = []

    async def open_one(*allowed_domains: str) -> Session:
        container = secrets.token_hex(16)
        body: dict[str, Any] = {"container": container, "project": "p", "memory_limit": "1g"}
        body["allowed_domains"] = allowed_domains
        answer = await sandbox.call("POST", "/sessions", json=body)
        opened.append(Session(sandbox, answer["session"], container))
        return opened[-1]

    yield open_one
    for session in opened:
        await sandbox.call("DELETE", session.path)


@pytest.fixture
async def session(open_session: SessionOpener) -> Session:
    """One session."""
    return await open_session()
