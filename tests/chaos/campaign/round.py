"""One round: the clients and faults of a plan, until every response has ended; then the audit."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.chaos.audit.auditor import Report, audit
from tests.chaos.audit.case import Violation
from tests.chaos.audit.measures import Measures
from tests.chaos.audit.record import RunRecord
from tests.chaos.audit.sources import tool_log
from tests.chaos.campaign.clients import PlannedClients
from tests.chaos.campaign.deployment import Deployment
from tests.chaos.campaign.faults import Faults
from tests.chaos.campaign.plan import Plan, PlannedFault
from tests.support.chaos.recording_client import RecordedClients
from tests.support.mcp_servers import COUNTING_TOOLS, McpServers

SAFE = frozenset(COUNTING_TOOLS) - {"count_unsafe"}


@dataclass(slots=True)
class RoundResult:
    """The result of a round."""

    plan: Plan
    record: RunRecord
    report: Report
    faults: Counter[str] = field(default_factory=Counter)
    injected: int = 0
    """Statements whose request or reply was lost."""
    seconds: float = 0.0


def broken_round(plan: Plan, problem: str) -> RoundResult:
    """The result of a round, or of a deployment, that broke before it could be audited."""
    violation = Violation("deployment", "-", problem)
    return RoundResult(plan, RunRecord(), Report([violation], Measures(), 0))


async def run_round(
    deployment: Deployment, plan: Plan, *, end_timeout: float, mcp: McpServers
) -> RoundResult:
    """Runs a plan in this deployment and audits it.

    `end_timeout`: seconds for the last response to end after the load. `mcp`: the servers of tools.
    """
    started = time.monotonic()
    lost_before = deployment.injectors.lost
    tracebacks_before = len(deployment.stack.tracebacks())
    applied: Counter[str] = Counter()
    async with RecordedClients(deployment.stack, plan.seed, end_timeout=end_timeout) as clients:
        deployment.record_to(clients)
        try:
            await _run_plan(deployment, plan, PlannedClients(clients, plan.seed, mcp), applied)
            record, _ = await asyncio.gather(clients.finish(), deployment.wait_until_healthy())
        finally:
            deployment.record_to(None)
    _record_tools(record, deployment, mcp)
    report = audit(record)
    report.violations += _problems(deployment, tracebacks_before)
    return RoundResult(
        plan,
        record,
        report,
        applied,
        deployment.injectors.lost - lost_before,
        time.monotonic() - started,
    )


async def _run_plan(
    deployment: Deployment, plan: Plan, clients: PlannedClients, applied: Counter[str]
) -> None:
    """Runs the clients and faults; counts in `applied` the faults that had a target."""
    faults = Faults(deployment)
    async with asyncio.TaskGroup() as group:
        group.create_task(clients.open_conversations())
        for number, client in enumerate(plan.clients):
            group.create_task(clients.run(number, client))
        for planned in plan.faults:
            group.create_task(_apply_fault(faults, planned, applied))


async def _apply_fault(faults: Faults, planned: PlannedFault, applied: Counter[str]) -> None:
    await asyncio.sleep(planned.at)
    if await faults.apply(planned):
        applied[planned.action] += 1


def _record_tools(record: RunRecord, deployment: Deployment, mcp: McpServers) -> None:
    record.tools = tool_log(mcp.tool_calls, SAFE)
    deployment.problems += [f"the MCP server broke: {fault!r}" for fault in mcp.faults]
    mcp.faults.clear()


def _problems(deployment: Deployment, tracebacks_before: int) -> list[Violation]:
    """The problems of the deployment, and the tracebacks of this round."""
    violations = [Violation("deployment", "-", problem) for problem in deployment.problems]
    deployment.problems.clear()
    return violations + [
        Violation("deployment", "-", "a traceback", traceback)
        for traceback in deployment.stack.tracebacks()[tracebacks_before:]
    ]
