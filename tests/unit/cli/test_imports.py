"""A command answers at once: it imports only what it needs."""

import json
import subprocess
import sys

import pytest

from cli import ROOT

SLOW = {
    *("aiohttp", "alembic", "celery", "fastapi", "openai", "pydantic", "redis", "rich"),
    *("sqlalchemy", "structlog"),
}
DATABASE_COMMAND = (
    "cli.main, cli.addresses, cli.embedded.data_folder, features.operator.operations, "
    "features.operator.report, features.operator.service, features.tenants.service, "
    "features.batches.service"
)


@pytest.mark.parametrize(
    ("modules", "unwanted"),
    [
        ("cli.main", {*SLOW, "psycopg"}),
        (DATABASE_COMMAND, SLOW),
        ("web.__main__", {"alembic", "sqlalchemy"}),
    ],
    ids=["help", "a command for the database", "a web process"],
)
def test_slow_libraries_are_not_imported(modules: str, unwanted: set[str]) -> None:
    program = f"import {modules}, json, sys; print(json.dumps(sorted(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert unwanted & set(json.loads(result.stdout)) == set()
