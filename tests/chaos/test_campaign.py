"""A short campaign of random faults, and the rounds of earlier violations."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.chaos.campaign.__main__ import seeds_in
from tests.chaos.campaign.campaign import SHORTENED, Campaign
from tests.chaos.campaign.plan import DEFAULT, monkey, plan, with_tools
from tests.support.mcp_servers import McpServers
from tests.support.tool_turns import TOOL_SETTINGS

SEEDS = [1, 2]
SEEDS_FILE = Path(__file__).with_name("seeds.txt")


def test_a_seed_always_makes_the_same_plan() -> None:
    assert plan(7) == plan(7)
    assert plan(7) != plan(8)
    assert plan(7, DEFAULT).faults != plan(7).faults
    assert monkey(7, 1) == monkey(7, 1)


def test_plans_use_every_fault() -> None:
    plans = [plan(seed) for seed in range(200)]
    assert len({fault.action for round_plan in plans for fault in round_plan.faults}) == 14
    assert {client.upstream_fault for round_plan in plans for client in round_plan.clients} == {
        "none",
        "reset",
        "drop",
        "refused first",
        "hang",
    }
    assert {client.kind for round_plan in plans for client in round_plan.clients} >= {
        "streamed",
        "polled",
        "chained",
    }


def test_tools_are_added_to_an_otherwise_unchanged_plan() -> None:
    plain, tools = plan(7), with_tools(plan(7))
    assert tools == with_tools(plan(7))
    assert tools.faults == plain.faults
    assert [replace(client, tools=(), tool_delay=0.0) for client in tools.clients] == plain.clients
    assert len({tool for client in tools.clients for turn in client.tools for tool in turn}) == 3


@pytest.mark.long
@pytest.mark.timeout(600)  # one minute on an idle machine
async def test_a_short_campaign_has_no_violations(tmp_path: Path) -> None:
    plans = [*map(with_tools, map(plan, SEEDS)), *map(plan, seeds_in(SEEDS_FILE))]
    async with McpServers() as mcp:
        campaign = Campaign(
            {**SHORTENED, **TOOL_SETTINGS}, end_timeout=60, keep=tmp_path / "failed", mcp=mcp
        )
        outcomes = [outcome async for outcome in campaign.run(plans)]
    assert [outcome.plan.seed for outcome in outcomes] == [round_plan.seed for round_plan in plans]
    violations = [
        f"seed {outcome.plan.seed}: {violation}"
        for outcome in outcomes
        for violation in outcome.report.violations
    ]
    assert not violations, "\n".join(violations)
    assert sum(outcome.report.responses for outcome in outcomes) > 10 * len(plans)
    assert all(outcome.faults for outcome in outcomes)
    assert any(outcome.record.tools for outcome in outcomes)
