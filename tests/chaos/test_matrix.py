"""The fault matrix (docs/chaos.md): victim × fault, one test for each cell that makes sense.

The cells of one victim run one after another in one deployment; different victims run at the same
time, because cells mostly wait for leases. During its fault a cell holds responses of every kind,
and `Load.judge` checks how they ended.
"""

from collections.abc import AsyncIterator

import pytest

from tests.chaos.matrix.long import away, everything, zombie, zombie_default_leases
from tests.chaos.matrix.servers import postgres
from tests.chaos.matrix.ties import tie
from tests.chaos.matrix.web import reader, web
from tests.chaos.matrix.worker import sweeper, worker
from tests.support.chaos.lab import Matrix
from tests.support.fake_upstream import FakeUpstream
from tests.support.stack import ROOT, Databases, SuiteSettings

VICTIMS = [
    everything,
    away,
    zombie_default_leases,
    zombie,
    web,
    worker,
    sweeper,
    postgres,
    tie,
    reader,
]
CELLS = [name for victim in VICTIMS for name in victim.cells]
QUICK = [
    "worker-kill9-unpublished",
    "worker-sigstop-in-transaction",
    "worker-redis-refused",
    "tie-killed-worker",
    "postgres-hung",
    "redis-kill9",
    "upstream-kill9",
]
"""Faults that no other test in CI has; the other cells are `long` (docs/testing.md)."""


@pytest.fixture(scope="module")
async def matrix(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    database_server: Databases,
    suite_settings: SuiteSettings,
    fake: FakeUpstream,
    embedded_servers: None,
) -> AsyncIterator[Matrix]:
    """Runs the cells whose tests were selected."""
    tests = [
        item.name
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.module is request.module
    ]
    selected = {name for name in CELLS if f"test_cell[{name}]" in tests}
    cells = Matrix(VICTIMS, selected, database_server, suite_settings, fake)
    async with cells.running(tmp_path_factory.mktemp("matrix")):
        yield cells


@pytest.fixture(scope="module")
def embedded_servers(suite_settings: SuiteSettings) -> None:
    """Skips the tests if a server is configured: it is not ours to break."""
    if suite_settings.redis_url is not None or suite_settings.database_url is not None:
        pytest.skip("DATABASE_URL or REDIS_URL names a server that is not ours to break")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.long]) for name in CELLS],
)
async def test_cell(matrix: Matrix, name: str) -> None:
    await matrix.result(name)


def test_the_table_names_every_cell() -> None:
    table = (ROOT / "docs" / "chaos.md").read_text()
    assert [name for name in CELLS if f"`{name}`" not in table] == []
    assert set(QUICK) < set(CELLS)
