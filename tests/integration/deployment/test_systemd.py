"""The systemd units: systemd accepts them, and they give processes few rights."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from models.config.groups import WorkerSettings
from models.config.web import WebSettings
from tests.support.deployment_files import ROOT
from worker.celery import pool

UNITS = ROOT / "deploy" / "systemd"
SERVICES = sorted(UNITS.glob("*.service"))
NAMES = {
    "backburner-web@.service": "backburner-web@8000.service",
    "backburner-worker@.service": "backburner-worker@1.service",
}
"""The instances that are checked in place of the templates."""
MOST_EXPOSURE = 25
"""Tenths of the exposure that systemd computes, from 0 (no rights) to 100; a service without
options has 96. Sockets of the Internet, which all processes need, are most of the rest."""


def _systemd_analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd is not installed")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


@pytest.fixture
def installed(tmp_path: Path) -> list[str]:
    """The units in a folder of their own, with the instances that are checked."""
    for unit in UNITS.iterdir():
        shutil.copy(unit, tmp_path / unit.name)
    return [str(tmp_path / NAMES.get(unit.name, unit.name)) for unit in sorted(UNITS.iterdir())]


def test_systemd_accepts_the_units(installed: list[str]) -> None:
    checked = _systemd_analyze("verify", "--man=no", "--recursive-errors=no", *installed)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: str(unit.name))
def test_a_process_has_few_rights(unit: Path) -> None:
    checked = _systemd_analyze(
        "security", "--offline=yes", f"--threshold={MOST_EXPOSURE}", "--no-pager", str(unit)
    )
    assert checked.returncode == 0, checked.stdout[-3000:] + checked.stderr


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: str(unit.name))
def test_systemd_waits_longer_than_a_process_needs_to_stop(unit: Path) -> None:
    found = re.search(r"^TimeoutStopSec=(\d+)$", unit.read_text(), re.MULTILINE)
    if "migrate" in unit.name:
        assert found is None
        return
    assert found is not None
    needed = (
        WebSettings().grace.total_seconds() + 15
        if "web" in unit.name
        else WorkerSettings().longest_grace.total_seconds() + pool._STOP_SLACK + 2
    )
    assert int(found[1]) > needed


def test_all_services_have_the_same_rights() -> None:
    def rights(unit: Path) -> str:
        """The sandbox has another user, and another file of variables."""
        text = unit.read_text().partition("# The account and")[2].partition("\n[Install]")[0]
        text = text.replace("backburner-sandbox", "backburner")
        return text.replace("backburner/sandbox.env", "backburner/backburner.env").strip()

    assert len({rights(unit) for unit in SERVICES}) == 1
