"""Rounds one after the other, in a house that is rebuilt now and then."""

import dataclasses
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from tests.chaos.audit.auditor import Report
from tests.chaos.audit.case import Violation
from tests.chaos.audit.measures import Measures
from tests.chaos.audit.record import RunRecord
from tests.chaos.campaign.deployment import Deployment, deployment
from tests.chaos.campaign.plan import Plan
from tests.chaos.campaign.round import RoundResult, run_round
from tests.support.fake_upstream import FakeUpstream
from tests.support.mcp_servers import McpServers
from tests.support.stack import SHORT_LEASES, Databases, SuiteSettings, databases

ROUNDS_PER_DEPLOYMENT = 20
LIMITS = {
    "BACKBURNER_WORKER__GRACE": "0.5",
    "BACKBURNER_LIMITS__FIRST_TOKEN": "10",
    "BACKBURNER_LIMITS__TOKEN_GAP": "6",
    "BACKBURNER_WEB__CANCEL_WAIT": "3",
}
"""A hung upstream is given up while the round still lasts."""
SHORTENED = {**SHORT_LEASES, **LIMITS}


@dataclasses.dataclass(slots=True)
class Campaign:
    """What all rounds share."""

    settings: dict[str, str]
    end_timeout: float
    """seconds the last response of a round gets to end"""
    keep: Path
    """where logs and transcripts of failed rounds go"""
    mcp: McpServers | None = None
    """where the tools of responses are, when they have any"""

    async def run(self, plans: Iterable[Plan]) -> AsyncIterator[RoundResult]:
        """The outcome of each plan, as it comes. A failed round, or ROUNDS_PER_HOUSE of them, asks for a new house."""
        waiting = list(plans)
        with tempfile.TemporaryDirectory(prefix="backburner-chaos-") as place:
            folder = Path(place)
            async with (
                FakeUpstream() as fake,
                databases(
                    folder / "postgres", SuiteSettings(database_url=None, redis_url=None)
                ) as database_server,
            ):
                while waiting:
                    async for outcome in self._run_in_one_deployment(
                        folder, database_server, fake, waiting
                    ):
                        yield outcome

    async def _run_in_one_deployment(
        self, folder: Path, database_server: Databases, fake: FakeUpstream, plans: list[Plan]
    ) -> AsyncIterator[RoundResult]:
        """Takes plans from `waiting` until the house is used up. What is wrong with its end is one more outcome."""
        plan = plans[0]
        try:
            async with deployment(folder, database_server, fake, self.settings, plan.seed) as one:
                for _ in range(ROUNDS_PER_DEPLOYMENT):
                    plan = plans.pop(0)
                    outcome = await self._round(one, plan)
                    fake.requests.clear()
                    self._forget_calls()
                    yield outcome
                    if outcome.report.violations:
                        one.stack.allowed_tracebacks = ("",)  # they are told already
                    if outcome.report.violations or not plans:
                        break
        except AssertionError as fault:
            yield RoundResult(
                plan,
                RunRecord(),
                Report([Violation("house", "-", f"its end: {fault}")], Measures(), 0),
            )

    def _forget_calls(self) -> None:
        if self.mcp is not None:
            self.mcp.tool_calls.calls.clear()
            self.mcp.requests.clear()

    async def _round(self, deployment: Deployment, plan: Plan) -> RoundResult:
        try:
            outcome = await run_round(deployment, plan, end_timeout=self.end_timeout, mcp=self.mcp)
        except Exception as fault:  # noqa: BLE001  # whatever it was, the round failed and the next one is to be run
            violations = [Violation("house", "-", f"the round broke: {fault!r}")]
            outcome = RoundResult(plan, RunRecord(), Report(violations, Measures(), 0))
        if outcome.report.violations:
            self._save(deployment, outcome)
        return outcome

    def _save(self, deployment: Deployment, result: RoundResult) -> None:
        """The logs and the transcript of a failed round."""
        folder = self.keep / f"seed-{result.plan.seed}"
        shutil.copytree(
            deployment.stack.folder,
            folder,
            dirs_exist_ok=True,
            ignore=lambda _, names: [n for n in names if not n.endswith(".log")],
        )
        (folder / "violations.txt").write_text("\n".join(map(str, result.report.violations)) + "\n")
        told = {
            "plan": dataclasses.asdict(result.plan),
            "record": dataclasses.asdict(result.record),
        }
        (folder / "transcript.json").write_text(json.dumps(told, indent=1, default=_as_text))


def _as_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else repr(value)
