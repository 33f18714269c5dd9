"""Clients read the requests of webhooks unchanged: the snippets of docs/webhooks.md, and with
`--live` the official client for Node."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from cli.embedded.process import free_port
from tests.clients.test_live import INSTALLED
from tests.support.api import until
from tests.support.clients.catalogue import CLIENTS, CannotRun, install_client, run
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import ROOT, Stack
from tests.support.webhook_receiver import webhook_receiver
from tests.support.webhooks import Hooks

PAGE = (ROOT / "docs" / "webhooks.md").read_text()
CREATE, RECEIVER = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
async def hooks(tool_stack: Stack, request: pytest.FixtureRequest) -> AsyncIterator[Hooks]:
    """Of a project of this test; its endpoints are deleted at the end."""
    one = await asyncio.to_thread(Hooks, tool_stack, request.node.name)
    yield one
    for endpoint in await one.json("list", "--project", one.project):
        assert (await one.run("delete", endpoint["id"])).exit_code == 0


async def test_the_receiver_of_the_documentation_prints_each_event(
    hooks: Hooks, fake: FakeUpstream, tmp_path: Path
) -> None:
    (tmp_path / "receiver.py").write_text(RECEIVER)
    port = free_port()
    client = openai.OpenAI(base_url=hooks.api.base_url, api_key=hooks.api.key)
    url = f"http://127.0.0.1:{port}/hook"
    variables: dict[str, Any] = {"client": client}
    await asyncio.to_thread(exec, CREATE.replace("https://example.com/hook", url), variables)
    made = variables["endpoint"]
    environment = {
        **os.environ,  # noqa: TID251
        "OPENAI_BASE_URL": hooks.api.base_url,
        "OPENAI_API_KEY": hooks.api.key,
        "OPENAI_WEBHOOK_SECRET": made.signing_secret,
        "PYTHONUNBUFFERED": "1",
    }
    command = [sys.executable, "-m", "uvicorn", "receiver:app", "--port", str(port)]
    program = await asyncio.create_subprocess_exec(
        *command,
        cwd=tmp_path,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert program.stdout is not None
    try:
        async with asyncio.timeout(60):
            while b"running on" not in (line := await program.stdout.readline()):
                assert line, "it has ended"
            created = await hooks.api.create_background(fake.script(reply("Hello.")))
            expected = f"response.completed {created}".encode()
            while expected not in (line := await program.stdout.readline()):
                assert line, "it has ended"
        assert (await hooks.run("test", made.id)).exit_code == 0
        await hooks.until_delivered(made.id, 2)
    finally:
        program.kill()
        await program.wait()


@pytest.mark.timeout(600)
async def test_the_official_client_for_node_reads_an_event(
    pytestconfig: pytest.Config, hooks: Hooks, fake: FakeUpstream
) -> None:
    if not pytestconfig.getoption("--live"):
        pytest.skip("needs another client; ./dev test tests/clients --live installs it")
    client = next(client for client in CLIENTS if client.name == "openai-node")
    try:
        command = await install_client(client, INSTALLED, "openai_node_webhook.mjs")
    except CannotRun as reason:
        pytest.skip(str(reason))
    async with webhook_receiver() as receiver:
        _, secret = await hooks.create(receiver)
        created = await hooks.api.create_background(fake.script(reply("Hello.")))
        await until(lambda: receiver.hooks)
    hook = receiver.hooks[0]
    sent = {"headers": hook.headers, "body": hook.body.decode(), "secret": secret}
    environment = {"OPENAI_API_KEY": "-", "HOOK": json.dumps(sent)}
    assert f"ok response.completed {created}" in await run(command, environment)
