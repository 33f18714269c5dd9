"""One round: the clients and faults of a plan, until every response has ended; then the audit."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.chaos.audit.auditor import Report, audit, cases_of
from tests.chaos.audit.case import Violation
from tests.chaos.audit.measures import Measures
from tests.chaos.audit.record import RunRecord, TimeBounds
from tests.chaos.audit.sources import tool_log
from tests.chaos.campaign.clients import PlannedClients
from tests.chaos.campaign.deployment import Deployment
from tests.chaos.campaign.errands.run import Errands
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
    return late_result(plan, [Violation("deployment", "-", problem)])


def late_result(plan: Plan, violations: list[Violation]) -> RoundResult:
    """What was found only after the last round of a deployment."""
    return RoundResult(plan, RunRecord(), Report(violations, Measures(), 0))


async def run_round(
    deployment: Deployment, plan: Plan, *, end_timeout: float, mcp: McpServers
) -> RoundResult:
    """Runs a plan in this deployment and audits it.

    `end_timeout`: seconds for the last response to end after the load. `mcp`: the servers of tools.
    """
    started = time.monotonic()
    lost_before = deployment.injectors.lost
    tracebacks_before = len(deployment.stack.tracebacks())
    events_before = len(deployment.receiver.hooks)
    applied: Counter[str] = Counter()
    async with RecordedClients(deployment.stack, plan.seed, end_timeout=end_timeout) as clients:
        deployment.record_to(clients)
        errands = Errands(
            clients,
            plan.seed,
            deployment.receiver.url,
            admin_key=deployment.admin_key,
            short_key=deployment.short_key,
        )
        planned = PlannedClients(clients, plan.seed, mcp)
        try:
            # An errand may take longer than the last response.
            async with asyncio.TaskGroup() as group:
                for number, errand in enumerate(plan.errands):
                    group.create_task(errands.run(number, errand))
                await _run_plan(deployment, plan, planned, applied)
                record, _ = await asyncio.gather(clients.finish(), deployment.wait_until_healthy())
            await errands.finish()
        finally:
            deployment.record_to(None)
    _record_tools(record, deployment, mcp)
    record.events = deployment.events()[events_before:]
    record.is_crowded = plan.is_crowded
    report = audit(record)
    if any(fault.what == "commits_lost" for fault in record.faults):
        deployment.ledger.has_lost_commits = True
    else:
        deployment.ledger.add(cases_of(record, TimeBounds()))
        deployment.ledger.add_objects(record)
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
