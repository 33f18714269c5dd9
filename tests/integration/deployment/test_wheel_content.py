"""The wheel has all files of the packages, their version and the command `backburner`."""

import subprocess
import sys
import zipfile
from pathlib import Path

from models.version import VERSION
from tests.support.deployment_files import ROOT

PACKAGES = ("web", "worker", "models", "features", "cli", "migrations")


def test_the_wheel_has_what_runs_outside_of_a_checkout(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name == f"backburner-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = f"backburner-{VERSION}.dist-info"
        commands = archive.read(f"{metadata}/entry_points.txt").decode()
    expected = {
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert expected
    assert expected <= names
    assert {name.partition("/")[0] for name in names} == {*PACKAGES, metadata}
    assert "backburner = cli.main:app" in commands
