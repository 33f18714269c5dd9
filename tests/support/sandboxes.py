"""Sandbox processes for deployments of tests."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from cli.embedded.process import Process, free_port
from tests.support.api import until
from tests.support.stack import ROOT


class SandboxProcess(Process):
    """A sandbox that tests may kill and start again on its port."""

    def __init__(self, folder: Path, token: str) -> None:
        self.port = free_port()
        self.folder = folder
        command = [sys.executable, "-m", "tests.support.fake_sandbox", str(self.port), str(folder)]
        super().__init__("sandbox", folder / "sandbox.log", command, environment={"PATH": "/bin"})
        self.directory = ROOT
        self.token = token

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def runs(self) -> list[str]:
        """The ids of the cells that have begun, once for each run."""
        log = self.folder / "runs"
        return log.read_text().split() if log.exists() else []

    async def start_and_wait(self) -> None:
        self.launch()
        await until(self._answers, 30)

    async def _answers(self) -> bool:
        assert self.running(), self.log.read_text()
        try:
            async with aiohttp.ClientSession() as session, session.get(f"{self.url}/status") as got:
                return got.status in (200, 401)
        except aiohttp.ClientError:
            return False


@asynccontextmanager
async def running_sandbox(folder: Path, token: str) -> AsyncIterator[SandboxProcess]:
    """A sandbox that answers; killed at the end."""
    sandbox = SandboxProcess(folder, token)
    await sandbox.start_and_wait()
    try:
        yield sandbox
    finally:
        sandbox.kill()


def sandbox_settings(token: str, *sandboxes: SandboxProcess) -> dict[str, str]:
    """The settings of a deployment with these sandboxes."""
    return {
        "BACKBURNER_CODE__SANDBOXES": ",".join(each.url for each in sandboxes),
        "BACKBURNER_CODE__TOKEN": token,
    }
