"""Webhooks of one project: the command, and what an endpoint gets."""

import asyncio
import json
from typing import Any

import openai
from typer.testing import CliRunner, Result

from cli.main import app
from models.db.database import connect
from tests.support import keys
from tests.support.api import Api, until
from tests.support.sql import Record, run_sql
from tests.support.stack import Stack
from tests.support.webhook_receiver import ReceivedHook, WebhookReceiver
from tests.support.worker_rows import settings_for

SEALED = {"BACKBURNER_EGRESS__ALLOW": "127.0.0.0/8", "BACKBURNER_SECRET_KEYS": "A" * 43}
"""Settings of a deployment that has webhooks."""


class Hooks:
    """The command `backburner webhooks` for one project of a stack."""

    def __init__(self, stack: Stack, project: str) -> None:
        self._stack = stack
        self.project = project
        self.api: Api = stack.api(key=keys.create(stack.dsn, project))

    async def run(self, *arguments: str, **variables: str) -> Result:
        """Runs a command, which must not print a traceback. `variables`: in place of those of the
        stack."""
        return await asyncio.to_thread(
            CliRunner(env=self._stack.environment() | variables).invoke,
            app,
            ["webhooks", *arguments],
            catch_exceptions=False,
        )

    async def json(self, *arguments: str) -> Any:
        """The JSON that a command prints, which must succeed."""
        result = await self.run(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    async def create(self, receiver: WebhookReceiver, *arguments: str) -> tuple[str, str]:
        """Makes an endpoint; returns its id and its secret."""
        made = await self.json("create", receiver.url, "--project", self.project, *arguments)
        return made["id"], made["secret"]

    async def deliveries(self, endpoint: str) -> list[Any]:
        """The deliveries of an endpoint, the newest first."""
        found: list[Any] = await self.json("deliveries", endpoint)
        return found

    async def endpoint(self) -> Any:
        """The only endpoint of the project."""
        [found] = await self.json("list", "--project", self.project)
        return found

    async def until_state(self, state: str) -> None:
        """Waits until the only endpoint of the project is in this state."""

        async def has_state() -> bool:
            return bool((await self.endpoint())["state"] == state)

        await until(has_state)

    async def until_delivered(self, endpoint: str, count: int) -> None:
        """Waits until so many deliveries of an endpoint are all delivered."""

        async def are_delivered() -> bool:
            found = await self.deliveries(endpoint)
            return [each["state"] for each in found] == ["delivered"] * count

        await until(are_delivered, 30)

    async def sql(self, statement: str) -> list[Record]:
        """Runs SQL in the database of the stack."""
        connection = await connect(settings_for(self._stack.dsn), "test")
        async with connection:
            return await run_sql(connection, statement)

    async def retry_now(self) -> None:
        """Makes every delivery due."""
        await self.sql("UPDATE webhook_endpoints SET paused_until = NULL")
        await self.sql(
            "UPDATE webhook_deliveries SET next_attempt_at = now() "
            "WHERE next_attempt_at IS NOT NULL"
        )


def unwrap(hook: ReceivedHook, secret: str) -> Any:
    """The event, as the official client reads it."""
    client = openai.OpenAI(api_key="bb-", webhook_secret=secret)
    return client.webhooks.unwrap(hook.body, hook.headers)
