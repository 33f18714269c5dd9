"""Sandbox processes for deployments of tests."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from cli.embedded.process import Process, free_port
from tests.support.api import until
from tests.support.stack import ROOT


class SandboxProcess(Process):
    """A sandbox that tests may kill and start again on its port."""

    def __init__(self, folder: Path, token: str, *options: str) -> None:
        """`options`: of `backburner sandbox`."""
        self.port, self.token, self.folder = free_port(), token, folder
        command = [
            *(sys.executable, "-m", "cli.main", "sandbox", "--port", str(self.port)),
            *("--folder", str(folder), *options),
        ]
        environment = {"PATH": "/usr/bin:/bin", "BACKBURNER_CODE__TOKEN": token}
        super().__init__("sandbox", folder / "sandbox.log", command, environment=environment)
        self.directory = ROOT

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def runs(self) -> list[str]:
        """The ids of the cells that have begun, once for each run."""
        lines = (json.loads(line) for line in self.log.read_text().splitlines() if line[:1] == "{")
        return [line["cell"] for line in lines if line["event"] == "cell_begun"]

    async def start_and_wait(self) -> None:
        """Returns when it answers."""
        self.launch()
        await until(self._answers, 30)

    async def call(self, method: str, path: str, **body: Any) -> Any:
        """The JSON of an answer, or its status if that is an error."""
        headers = {"authorization": f"Bearer {self.token}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.request(method, f"{self.url}{path}", **body) as answer,
        ):
            if answer.status >= 300:
                return answer.status
            is_json = answer.content_type == "application/json"
            return await answer.json() if is_json else await answer.read()

    async def _answers(self) -> bool:
        assert self.running(), self.log.read_text()
        try:
            return type(await self.call("GET", "/status")) is dict
        except aiohttp.ClientError:
            return False


@asynccontextmanager
async def running_sandbox(folder: Path, token: str, *options: str) -> AsyncIterator[SandboxProcess]:
    """A sandbox that answers; killed at the end."""
    sandbox = SandboxProcess(folder, token, *options)
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
