"""The snippets of docs/clients.md, run unchanged against the demo models' answers."""

import re
import sys
from pathlib import Path

import pytest

from tests.clients.test_live import INSTALLED
from tests.support.clients.catalogue import CLIENTS, CannotRun, install_client, run
from tests.support.stack import ROOT, Stack

PAGE = (ROOT / "docs" / "clients.md").read_text()
OFFICIAL = "openai-python"
"""The only client that is installed wherever the tests run."""
BLOCKS = [
    (client, code)
    for client, code in re.findall(r"<!-- run: ([\w-]+) -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "number", range(len(BLOCKS)), ids=[f"{at}-{client}" for at, (client, _) in enumerate(BLOCKS)]
)
async def test_a_snippet_does_what_it_shows(
    pytestconfig: pytest.Config, tool_stack: Stack, tmp_path: Path, number: int
) -> None:
    name, code = BLOCKS[number]
    environment = {"OPENAI_BASE_URL": tool_stack.api().base_url, "OPENAI_API_KEY": tool_stack.key}
    if name == OFFICIAL:
        program = tmp_path / "snippet.py"
        command = [sys.executable, str(program)]
    else:
        if not pytestconfig.getoption("--live"):
            pytest.skip("needs another client; ./dev test tests/clients --live installs it")
        client = next(client for client in CLIENTS if client.name == name)
        environment |= client.environment
        try:
            interpreter, beside = await install_client(client, INSTALLED)
        except CannotRun as reason:
            pytest.skip(str(reason))
        program = Path(beside).with_stem("snippet")
        command = [interpreter, str(program)]
    program.write_text(code)
    printed = await run(command, environment)
    expected = "Tomorrow it rains in Ulm" if "forecast" in code else "Hello, Backburner!"
    assert expected in printed, printed
