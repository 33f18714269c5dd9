"""Runs rounds one after the other, in a deployment that is replaced now and then."""

import dataclasses
import json
import shutil
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.chaos.campaign.deployment import Deployment, open_deployment
from tests.chaos.campaign.plan import Plan
from tests.chaos.campaign.round import RoundResult, broken_round, late_result, run_round
from tests.chaos.campaign.upstream import CONFIGURATION
from tests.support.embeddings import EMBEDDING_MODEL, embeddings
from tests.support.fake_upstream import FakeUpstream
from tests.support.mcp_servers import McpServers
from tests.support.stack import SHORT_LEASES, Databases, SuiteSettings, databases
from tests.support.tool_turns import TOOL_SETTINGS
from tests.support.webhook_receiver import WebhookReceiver, webhook_receiver

ROUNDS_PER_DEPLOYMENT = 20
LIMITS = {
    "BACKBURNER_WORKER__GRACE": "0.5",
    "BACKBURNER_LIMITS__FIRST_TOKEN": "10",
    "BACKBURNER_LIMITS__TOKEN_GAP": "6",
    "BACKBURNER_WEB__CANCEL_WAIT": "3",
}
"""A hung upstream is given up before the round ends."""
_OBJECTS = {
    "BACKBURNER_RETRIEVAL__EMBEDDING_MODEL": EMBEDDING_MODEL,
    "BACKBURNER_RETRIEVAL__EMBEDDING_BATCH": "8",
    "BACKBURNER_WEBHOOKS__TIMEOUT": "2",
    "BACKBURNER_WORKER__PURGE_INTERVAL": "2",
}
"""For what is no response: ends and purges come within a round."""
SHORTENED = {**SHORT_LEASES, **LIMITS}


@dataclasses.dataclass(frozen=True, slots=True)
class _Servers:
    """The servers that all deployments of a campaign share."""

    folder: Path
    databases: Databases
    fake: FakeUpstream
    mcp: McpServers
    receiver: WebhookReceiver
    settings: dict[str, str]
    """Settings that name these servers."""


@asynccontextmanager
async def _servers() -> AsyncIterator[_Servers]:
    settings = SuiteSettings(database_url=None, redis_url=None)
    with tempfile.TemporaryDirectory(prefix="backburner-chaos-") as temporary:
        folder = Path(temporary)
        async with (
            FakeUpstream() as fake,
            McpServers() as mcp,
            webhook_receiver() as receiver,
            databases(folder / "postgres", settings) as database_server,
        ):
            configuration = folder / "backburner.toml"
            configuration.write_text(CONFIGURATION.format(base_url=fake.base_url))
            fake.decide(EMBEDDING_MODEL, embeddings)
            named = {**TOOL_SETTINGS, **_OBJECTS, "BACKBURNER_CONFIG": str(configuration)}
            yield _Servers(folder, database_server, fake, mcp, receiver, named)


class _PlanQueue:
    """The plans that are left. The next one is made only when the last one has ended: there may be
    none by then."""

    def __init__(self, plans: Iterator[Plan]) -> None:
        self._plans = plans
        self.next = next(plans, None)

    def advance(self) -> Plan | None:
        """Goes on to the next plan, and returns it."""
        self.next = next(self._plans, None)
        return self.next

    def skip(self, plan: Plan) -> None:
        """Goes on, if this plan is still the next one: its deployment could not be opened."""
        if self.next is plan:
            self.advance()


@dataclasses.dataclass(slots=True)
class Campaign:
    """What all rounds share."""

    settings: dict[str, str]
    end_timeout: float
    """Seconds in which the last response of a round must end."""
    keep: Path
    """The folder for logs and transcripts of failed rounds."""

    async def run(self, plans: Iterable[Plan]) -> AsyncGenerator[RoundResult, None]:
        """Yields the result of each plan. After a failed round the deployment is replaced."""
        queue = _PlanQueue(iter(plans))
        async with _servers() as servers:
            while queue.next is not None:
                results = self._run_in_one_deployment(servers, queue.next, queue)
                async with aclosing(results):
                    async for result in results:
                        yield result

    async def _run_in_one_deployment(
        self, servers: _Servers, plan: Plan, queue: "_PlanQueue"
    ) -> AsyncGenerator[RoundResult, None]:
        """Takes plans until the deployment must be replaced; a bad end of it is one more result."""
        new_deployment = open_deployment(
            servers.folder,
            servers.databases,
            servers.fake,
            {**self.settings, **servers.settings},
            plan.seed,
            servers.receiver,
            has_standby=plan.has_standby,
            is_crowded=plan.is_crowded,
        )
        try:
            async with new_deployment as deployment:
                for _ in range(ROUNDS_PER_DEPLOYMENT):
                    result = await self._round(deployment, servers, plan)
                    following = queue.advance()
                    if result.report.violations:
                        deployment.stack.allowed_tracebacks = ("",)  # they are reported already
                    yield result
                    if result.report.violations:
                        return
                    if following is None:
                        break
                    if plan.needs_own_deployment or following.needs_own_deployment:
                        break
                    plan = following
                if violations := await deployment.check_events():
                    yield late_result(plan, violations)
        except AssertionError as fault:
            queue.skip(plan)
            yield broken_round(plan, f"the end of the deployment: {fault}")

    async def _round(self, deployment: Deployment, servers: _Servers, plan: Plan) -> RoundResult:
        try:
            result = await run_round(
                deployment, plan, end_timeout=self.end_timeout, mcp=servers.mcp
            )
        except Exception as fault:  # noqa: BLE001  # this round failed; the next one must run
            result = broken_round(plan, f"the round broke: {fault!r}")
        if result.report.violations:
            self._save(deployment, result)
        servers.fake.requests.clear()
        servers.mcp.tool_calls.calls.clear()
        servers.mcp.requests.clear()
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
