"""Client libraries from their registries against the product: `./dev test tests/clients --live`.

Without `--live` nothing is installed and these are skipped; test_recorded.py then sends what they
sent.
"""

from pathlib import Path

import pytest

from tests.support.clients.catalogue import (
    CLIENTS,
    CannotRun,
    Client,
    install_client,
    run_scenarios,
)
from tests.support.clients.recorded import save
from tests.support.clients.recorder import RecordedExchange, recording
from tests.support.mcp_servers import McpServers
from tests.support.stack import ROOT, Stack

INSTALLED = ROOT / ".data" / "clients"
"""The folder of installed clients, kept between runs."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
async def test_a_client_works_unchanged(
    pytestconfig: pytest.Config,
    tool_stack: Stack,
    mcp_servers: McpServers,
    tmp_path: Path,
    client: Client,
) -> None:
    if not pytestconfig.getoption("--live"):
        pytest.skip("runs other people's libraries; ./dev test tests/clients --live installs them")
    try:
        command = await install_client(client, INSTALLED)
    except CannotRun as reason:
        pytest.skip(str(reason))
    exchanges: list[tuple[str, RecordedExchange]] = []
    mcp = mcp_servers.url("plain")
    async with recording(tool_stack.api().base_url) as recorder:
        environment = {
            "OPENAI_BASE_URL": recorder.base_url,
            "OPENAI_API_KEY": tool_stack.key,
            "MCP_URL": mcp,
            "SCRATCH": str(tmp_path),
        }
        scenarios = []
        async for scenario in run_scenarios(client, command, environment):
            scenarios.append(scenario)
            exchanges += [(scenario, exchange) for exchange in recorder.exchanges[len(exchanges) :]]
    assert tuple(scenarios) == client.scenarios
    if pytestconfig.getoption("--record"):
        save(client.name, exchanges, mcp)
