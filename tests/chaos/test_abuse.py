"""The attacks that take few seconds, at once. `./dev chaos --abuse` runs all of them, for hours."""

from pathlib import Path

import pytest

from tests.chaos.abuse.attacks import ATTACKS
from tests.chaos.abuse.campaign import SETTINGS, AbusePlan, run_abuse
from tests.chaos.abuse.offender import Servers, endless_files
from tests.chaos.abuse.table import to_markdown
from tests.support.abuse import attacked_stack
from tests.support.chaos.tracebacks import SERVER_TRACEBACKS
from tests.support.fake_upstream import FakeUpstream
from tests.support.mcp_servers import McpServers
from tests.support.stack import Databases, SuiteSettings

SLOTS = 40
"""Of the worker: fewer than the jobs of one attack."""


@pytest.mark.long
@pytest.mark.timeout(300)
async def test_attacks_of_three_projects_harm_no_other(
    tmp_path: Path,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
    mcp_servers: McpServers,
) -> None:
    quick = [kind for kind in ATTACKS if kind.is_quick]
    plan = AbusePlan(minutes=0, offenders=3, kinds=quick)
    async with (
        endless_files() as files,
        attacked_stack(
            tmp_path,
            database_server,
            suite_settings,
            fake,
            streams=SLOTS,
            settings=SETTINGS,
            allowed_tracebacks=SERVER_TRACEBACKS,
        ) as attacked,
    ):
        result = await run_abuse(plan, attacked, Servers(fake, mcp_servers, files))
    print(to_markdown(result))
    assert not result.violations()
