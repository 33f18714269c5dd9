"""A process that cannot reach PostgreSQL logs one line and exits."""

import json
import subprocess
import sys

import pytest

from cli.embedded.process import free_port
from tests.support.stack import ROOT


@pytest.mark.parametrize("side", ["web", "worker"])
def test_without_postgres_a_process_logs_one_line_and_exits_with_1(side: str) -> None:
    impatient = (
        f"import {side}.__main__ as m, functools; m.wait_until_available = "
        "functools.partial(m.wait_until_available, timeout=0); m.main()"
    )
    started = subprocess.run(
        [sys.executable, "-c", impatient],
        cwd=ROOT,
        env={
            "DATABASE_URL": f"postgresql://127.0.0.1:{free_port()}/none",
            "REDIS_URL": "redis://127.0.0.1:1",
            "BACKBURNER_UPSTREAM__BASE_URL": "http://127.0.0.1:1/v1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode == 1
    output = started.stdout + started.stderr
    assert "Traceback" not in output
    assert json.loads(output.splitlines()[-1])["event"] == "database_unavailable"
