"""A second cell beside the shared deployment, which is the first one, `a`."""

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner, Result

from cli.embedded.postgres import Postgres
from cli.embedded.process import free_port
from cli.main import app
from models.keys import KeyGrant, bootstrap, new_key
from models.projects.scopes import Scope
from tests.support.console import CONSOLE_SETTINGS
from tests.support.embeddings import EMBEDDING_MODEL
from tests.support.fake_upstream import FakeUpstream
from tests.support.stack import Stack, SuiteSettings, databases, stack

KEY_OF_TOOLS, KEY_OF_B = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
"""With which the deployment `tool_stack` and the cell `b` seal. Both open both."""


@dataclass(slots=True)
class SecondCell:
    """The cell `b`: a deployment with its own PostgreSQL and Redis, and a key with its name."""

    stack: Stack
    postgres: Postgres

    def kill(self) -> None:
        """kill -9 of all its processes."""
        for process in [*self.stack.webs, *self.stack.workers]:
            self.stack.kill(process)
        assert self.stack.valkey is not None
        self.stack.valkey.kill()
        self.postgres.kill()


@asynccontextmanager
async def second_cell(
    folder: Path, suite_settings: SuiteSettings, fake: FakeUpstream, first: Stack
) -> AsyncIterator[SecondCell]:
    """The cell `b`, whose settings name both."""
    port, keys = free_port(), {"A": new_key(), "B": new_key("b")}
    addresses = {"A": first.webs[0].port, "B": port}
    settings = {
        "BACKBURNER_CELL": "b",
        "BACKBURNER_EGRESS__ALLOW": "127.0.0.0/8",
        "BACKBURNER_RETRIEVAL__EMBEDDING_MODEL": EMBEDDING_MODEL,
        "BACKBURNER_SECRET_KEYS": f"{KEY_OF_B},{KEY_OF_TOOLS}",
        **CONSOLE_SETTINGS,
    }
    for name, key in keys.items():
        settings[f"BACKBURNER_CELLS__{name}__URL"] = f"http://127.0.0.1:{addresses[name]}"
        settings[f"BACKBURNER_CELLS__{name}__ADMIN_KEY"] = key
    admin = KeyGrant(scopes=frozenset((Scope.ADMIN,)))
    bootstrap(first.dsn, keys["A"], grant=admin)
    async with (
        databases(folder, suite_settings) as server,
        stack(folder, server, suite_settings, fake, webs=0, settings=settings) as one,
    ):
        one.key = new_key("b")
        bootstrap(one.dsn, one.key)
        bootstrap(one.dsn, keys["B"], grant=admin)
        await one.start_web(port)
        assert server.server is not None
        yield SecondCell(one, server.server)


async def backburner(deployment: Stack, *arguments: str, **settings: str) -> Result:
    """Runs a command of a deployment, with these settings besides."""
    environment = deployment.environment() | {
        f"BACKBURNER_{name.upper()}": value for name, value in settings.items()
    }
    runner = CliRunner(env=environment)
    return await asyncio.to_thread(runner.invoke, app, arguments, catch_exceptions=False)


async def move(
    second: SecondCell,
    project: str,
    source: Stack | None = None,
    *,
    back: bool = False,
    exit_code: int = 0,
) -> str:
    """Moves a project to the cell `b`, or back, and returns what the command prints. `source`: not
    the cell `a`, but this deployment."""
    settings = {}
    if source is not None:
        key = new_key()
        bootstrap(source.dsn, key, grant=KeyGrant(scopes=frozenset((Scope.ADMIN,))))
        url = f"http://127.0.0.1:{source.webs[0].port}"
        settings = {"cells__a__url": url, "cells__a__admin_key": key}
    origin, goal = ("b", "a") if back else ("a", "b")
    arguments = ("cells", "move", project, "--from", origin, "--to", goal)
    moved = await backburner(second.stack, *arguments, **settings)
    assert moved.exit_code == exit_code, moved.output
    return moved.output
