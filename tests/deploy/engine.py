"""The Docker engine of this machine, and the copy of the repository that is deployed with it."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from tests.support.deployment_files import DEFAULTS, ROOT

PROJECT = "backburner-test"
"""The name of the Compose project: not that of a deployment on this machine, whose containers and
volumes stay as they are."""
CURRENT, PREVIOUS = f"{PROJECT}/server:current", f"{PROJECT}/server:previous"
SANDBOX = f"{PROJECT}/sandbox:current"
_BASES = {name: DEFAULTS[name] for name in ("PYTHON_IMAGE", "POSTGRES_IMAGE", "REDIS_IMAGE")}


def _succeeds(*command: str) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@cache
def missing_engine() -> str | None:
    """What is missing for tests with containers, in a sentence; None if nothing is."""
    if not _succeeds("docker", "version", "--format", "{{.Server.Version}}"):
        return "no Docker engine answers here"
    if not _succeeds("docker", "compose", "version"):
        return "the Docker engine here has no Compose (the plugin docker-compose)"
    return None


@cache
def base_images() -> Mapping[str, str]:
    """The base images, by the variables of docker-compose.yml that name them: those of the
    registry, else stand-ins. Raises CalledProcessError if they cannot be made."""
    if all(_succeeds("docker", "pull", "--quiet", name) for name in _BASES.values()):
        return _BASES
    subprocess.run([ROOT / "tests/deploy/stand_ins/make", PROJECT], check=True)
    names = ("python", "postgres", "valkey")
    return {variable: f"{PROJECT}/{name}" for variable, name in zip(_BASES, names, strict=True)}


def copy_checkout(to: Path, commit: str | None = None) -> None:
    """Writes the files of the repository to a folder: of a commit, else as they are now, without
    those that git ignores."""
    to.mkdir(parents=True)
    if commit is not None:
        archive = subprocess.run(
            ["git", "archive", commit], cwd=ROOT, capture_output=True, check=True
        )
        subprocess.run(["tar", "-x", "-C", to], input=archive.stdout, check=True)
        return
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)


def previous_release() -> str:
    """The newest tag of a release; the newest commit if the clone has no tag."""
    command = ["git", "tag", "--list", "v*", "--sort=-version:refname", "--merged", "HEAD^"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True)
    return done.stdout.partition("\n")[0] or "HEAD"


class Checkout:
    """A copy of the repository in which commands run as an operator types them."""

    def __init__(self, folder: Path, port: int) -> None:
        """`port`: the first of the two ports of the loopback that web may be published on."""
        self.folder = folder
        self.port = port
        self.environment = {
            **os.environ,  # noqa: TID251 - Docker reads its own variables
            **base_images(),
            "COMPOSE_PROJECT_NAME": PROJECT,
            "COMPOSE_FILE": "docker-compose.yml:tests/deploy/upstream.yml",
            "BACKBURNER_IMAGE": CURRENT,
            "BACKBURNER_SANDBOX_IMAGE": SANDBOX,
            "UPSTREAM_IMAGE": CURRENT,
            "BACKBURNER_LISTEN": f"127.0.0.1:{port}-{port + 1}",
        }

    def run(self, script: str, **variables: str) -> str:
        """Runs lines of shell in the checkout and returns their output. Raises AssertionError with
        all that they have printed if one of them fails."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=self.folder,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        return done.stdout

    def documented(self, heading: str) -> list[str]:
        """The blocks of commands under a heading of docs/deploy.md, with the name of this test's
        project and its port."""
        text = (self.folder / "docs/deploy.md").read_text()
        body = text.partition(f"\n{heading}\n")[2]
        assert body, heading
        blocks, block = [], list[str]()
        for line in [*body.splitlines(), "# end"]:
            if line.startswith("    "):
                block.append(line.removeprefix("    "))
            elif block:
                blocks.append("\n".join(block))
                block = []
            if line.startswith("#"):
                break
        return [
            each.replace(" backburner_", f" {PROJECT}_").replace(":8000/", f":{self.port}/")
            for each in blocks
        ]

    def containers(self, service: str) -> list[str]:
        """The names of the running containers of a service, in the order of their numbers."""
        listed = self.run(f"docker compose ps --format '{{{{.Name}}}}' {service}")
        return sorted(listed.split())

    def port_of(self, container: str) -> int:
        """The port of the loopback on which a web container is published."""
        return int(self.run(f"docker port {container} 8000").strip().rpartition(":")[2])


def wait_until(condition: Callable[[], bool], within: float = 60) -> None:
    """Waits until `condition()` is true, at most so many seconds."""
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, f"not within {within} s"
        time.sleep(0.2)
