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
from tests.chaos.audit.record import Record
from tests.chaos.campaign.deployment import House, house
from tests.chaos.campaign.plan import Plan
from tests.chaos.campaign.round import Outcome, run_round
from tests.support.fake_upstream import FakeUpstream
from tests.support.mcp_servers import McpServers
from tests.support.stack import IMPATIENT, Databases, Surroundings, databases

ROUNDS_PER_HOUSE = 20
LIMITS = {
    "BACKBURNER_WORKER__GRACE": "0.5",
    "BACKBURNER_LIMITS__FIRST_TOKEN": "10",
    "BACKBURNER_LIMITS__TOKEN_GAP": "6",
    "BACKBURNER_WEB__CANCEL_WAIT": "3",
}
"""A hung upstream is given up while the round still lasts."""
SHORTENED = {**IMPATIENT, **LIMITS}


@dataclasses.dataclass(slots=True)
class Campaign:
    """What all rounds share."""

    settings: dict[str, str]
    patience: float
    """seconds the last response of a round gets to end"""
    keep: Path
    """where logs and transcripts of failed rounds go"""
    mcp: McpServers | None = None
    """where the tools of responses are, when they have any"""

    async def run(self, plans: Iterable[Plan]) -> AsyncIterator[Outcome]:
        """The outcome of each plan, as it comes. A failed round, or ROUNDS_PER_HOUSE of them, asks for a new house."""
        waiting = list(plans)
        with tempfile.TemporaryDirectory(prefix="backburner-chaos-") as place:
            folder = Path(place)
            async with (
                FakeUpstream() as fake,
                databases(
                    folder / "postgres", Surroundings(database_url=None, redis_url=None)
                ) as servers,
            ):
                while waiting:
                    async for outcome in self._in_one_house(folder, servers, fake, waiting):
                        yield outcome

    async def _in_one_house(
        self, folder: Path, servers: Databases, fake: FakeUpstream, waiting: list[Plan]
    ) -> AsyncIterator[Outcome]:
        """Takes plans from `waiting` until the house is used up. What is wrong with its end is one more outcome."""
        plan = waiting[0]
        try:
            async with house(folder, servers, fake, self.settings, plan.seed) as one:
                for _ in range(ROUNDS_PER_HOUSE):
                    plan = waiting.pop(0)
                    outcome = await self._round(one, plan)
                    fake.requests.clear()
                    self._forget_calls()
                    yield outcome
                    if outcome.report.violations:
                        one.stack.forgiven = ("",)  # they are told already
                    if outcome.report.violations or not waiting:
                        break
        except AssertionError as fault:
            yield Outcome(
                plan,
                Record(),
                Report([Violation("house", "-", f"its end: {fault}")], Measures(), 0),
            )

    def _forget_calls(self) -> None:
        if self.mcp is not None:
            self.mcp.counting.calls.clear()
            self.mcp.requests.clear()

    async def _round(self, one: House, plan: Plan) -> Outcome:
        try:
            outcome = await run_round(one, plan, patience=self.patience, mcp=self.mcp)
        except Exception as fault:  # noqa: BLE001  # whatever it was, the round failed and the next one is to be run
            violations = [Violation("house", "-", f"the round broke: {fault!r}")]
            outcome = Outcome(plan, Record(), Report(violations, Measures(), 0))
        if outcome.report.violations:
            self._save(one, outcome)
        return outcome

    def _save(self, one: House, outcome: Outcome) -> None:
        """The logs and the transcript of a failed round."""
        folder = self.keep / f"seed-{outcome.plan.seed}"
        shutil.copytree(
            one.stack.folder,
            folder,
            dirs_exist_ok=True,
            ignore=lambda _, names: [n for n in names if not n.endswith(".log")],
        )
        (folder / "violations.txt").write_text(
            "\n".join(map(str, outcome.report.violations)) + "\n"
        )
        told = {
            "plan": dataclasses.asdict(outcome.plan),
            "record": dataclasses.asdict(outcome.record),
        }
        (folder / "transcript.json").write_text(json.dumps(told, indent=1, default=_as_text))


def _as_text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else repr(value)
