"""Runs rounds one after the other, in a deployment that is replaced now and then."""

import dataclasses
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.chaos.campaign.deployment import Deployment, open_deployment
from tests.chaos.campaign.plan import Plan
from tests.chaos.campaign.round import RoundResult, broken_round, run_round
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
"""A hung upstream is given up before the round ends."""
SHORTENED = {**SHORT_LEASES, **LIMITS}


@dataclasses.dataclass(frozen=True, slots=True)
class _Servers:
    """The servers that all deployments of a campaign share."""

    folder: Path
    databases: Databases
    fake: FakeUpstream


@asynccontextmanager
async def _servers() -> AsyncIterator[_Servers]:
    settings = SuiteSettings(database_url=None, redis_url=None)
    with tempfile.TemporaryDirectory(prefix="backburner-chaos-") as temporary:
        folder = Path(temporary)
        async with (
            FakeUpstream() as fake,
            databases(folder / "postgres", settings) as database_server,
        ):
            yield _Servers(folder, database_server, fake)


@dataclasses.dataclass(slots=True)
class Campaign:
    """What all rounds share."""

    settings: dict[str, str]
    end_timeout: float
    """Seconds in which the last response of a round must end."""
    keep: Path
    """The folder for logs and transcripts of failed rounds."""
    mcp: McpServers | None = None
    """The servers of tools, if responses have any."""

    async def run(self, plans: Iterable[Plan]) -> AsyncIterator[RoundResult]:
        """Yields the result of each plan. After a failed round the deployment is replaced."""
        remaining = list(plans)
        async with _servers() as servers:
            while remaining:
                async for result in self._run_in_one_deployment(servers, remaining):
                    yield result

    async def _run_in_one_deployment(
        self, servers: _Servers, plans: list[Plan]
    ) -> AsyncIterator[RoundResult]:
        """Takes plans until the deployment must be replaced; a bad end of it is one more result."""
        first = plans[0]
        new_deployment = open_deployment(
            servers.folder, servers.databases, servers.fake, self.settings, first.seed
        )
        try:
            async with new_deployment as deployment:
                async for result in self._run_rounds(deployment, plans):
                    yield result
        except AssertionError as fault:
            yield broken_round(first, f"the end of the deployment: {fault}")

    async def _run_rounds(
        self, deployment: Deployment, plans: list[Plan]
    ) -> AsyncIterator[RoundResult]:
        """Runs rounds until one fails, no plan is left, or the deployment has run enough."""
        for _ in range(ROUNDS_PER_DEPLOYMENT):
            result = await self._round(deployment, plans.pop(0))
            self._clear_logs(deployment.stack.fake)
            yield result
            if result.report.violations:
                deployment.stack.allowed_tracebacks = ("",)  # they are reported already
            if result.report.violations or not plans:
                return

    def _clear_logs(self, fake: FakeUpstream) -> None:
        fake.requests.clear()
        if self.mcp is not None:
            self.mcp.tool_calls.calls.clear()
            self.mcp.requests.clear()

    async def _round(self, deployment: Deployment, plan: Plan) -> RoundResult:
        try:
            result = await run_round(deployment, plan, end_timeout=self.end_timeout, mcp=self.mcp)
        except Exception as fault:  # noqa: BLE001  # this round failed; the next one must run
            result = broken_round(plan, f"the round broke: {fault!r}")
        if result.report.violations:
            self._save(deployment, result)
        return result

    def _save(self, deployment: Deployment, result: RoundResult) -> None:
        """Saves the logs and the transcript of a failed round."""
        folder = self.keep / f"seed-{result.plan.seed}"
        shutil.copytree(
            deployment.stack.folder,
            folder,
            dirs_exist_ok=True,
            ignore=lambda _, names: [name for name in names if not name.endswith(".log")],
        )
        (folder / "violations.txt").write_text("\n".join(map(str, result.report.violations)) + "\n")
        transcript = {
            "plan": dataclasses.asdict(result.plan),
            "record": dataclasses.asdict(result.record),
        }
        (folder / "transcript.json").write_text(json.dumps(transcript, indent=1, default=_as_text))


def _as_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else repr(value)
