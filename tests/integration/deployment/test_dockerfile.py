"""The image's recipe."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deployment_files import (
    DOCKERFILE,
    DOCKERIGNORE,
    ROOT,
    copied_sources,
    instructions,
)

HADOLINT = Path(sys.executable).with_name("hadolint")


def _only(word: str) -> str:
    found = [rest for each, rest in instructions() if each == word]
    assert len(found) == 1, f"{word}: {found}"
    return found[0]


def test_hadolint_finds_nothing() -> None:
    found = subprocess.run(
        [str(HADOLINT), str(DOCKERFILE)], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout) == (0, "")


def test_hadolint_would_find_something(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python:latest\nRUN cd /tmp\nCMD python -m web\n")
    assert (
        subprocess.run([str(HADOLINT), str(bad)], capture_output=True, check=False).returncode == 1
    )


@pytest.mark.parametrize("source", copied_sources())
def test_what_is_copied_exists_and_reaches_the_builder(source: str) -> None:
    assert (ROOT / source).exists()
    assert f"!{source}" in DOCKERIGNORE.read_text().splitlines()


def test_nothing_else_reaches_the_builder() -> None:
    lines = [line for line in DOCKERIGNORE.read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == set(
        copied_sources()
    )


def test_all_that_the_packages_are_made_of_is_copied() -> None:
    assert {"web", "worker", "models", "cli", "migrations", "alembic.ini"} <= set(copied_sources())


def test_the_base_is_pinned_to_a_minor_version() -> None:
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", _only("FROM"))


def test_it_runs_as_a_user_with_a_fixed_number_that_is_not_root() -> None:
    user, _, group = _only("USER").partition(":")
    assert int(user) > 0
    assert int(group) > 0
    assert f"--uid {user}" in DOCKERFILE.read_text()


def test_the_installation_is_of_pinned_and_hashed_wheels_alone() -> None:
    installs = [rest for word, rest in instructions() if word == "RUN" and "pip install" in rest]
    assert len(installs) == 1
    assert {"--require-hashes", "--only-binary=:all:", "--no-deps", "--no-cache-dir"} <= set(
        installs[0].split()
    )
    assert "requirements-production.lock" in installs[0]


@pytest.mark.parametrize("word", ["ENTRYPOINT", "CMD"])
def test_signals_reach_python(word: str) -> None:
    assert isinstance(json.loads(_only(word)), list)


def test_it_says_what_it_is() -> None:
    labels = _only("LABEL")
    for name in ("title", "description", "licenses"):
        assert f"org.opencontainers.image.{name}=" in labels


def test_no_secret_is_built_in() -> None:
    assert not re.search(r"(?:ENV|ARG)\b.*(?:PASSWORD|SECRET|KEY|TOKEN)", DOCKERFILE.read_text())
