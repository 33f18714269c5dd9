"""The Dockerfile: its safety rules, and that it copies the right files."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.deployment_files import (
    DEFAULTS,
    DOCKERFILE,
    DOCKERIGNORE,
    ROOT,
    copied_sources,
    instructions,
)

HADOLINT = Path(sys.executable).with_name("hadolint")


def _only(word: str) -> str:
    arguments = [rest for each, rest in instructions() if each == word]
    assert len(arguments) == 1, f"{word}: {arguments}"
    return arguments[0]


def test_hadolint_reports_no_problem() -> None:
    result = subprocess.run(
        [str(HADOLINT), str(DOCKERFILE)], capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, "")


def test_hadolint_reports_problems_of_a_bad_dockerfile(tmp_path: Path) -> None:
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM python:latest\nRUN cd /tmp\nCMD python -m web\n")
    assert (
        subprocess.run([str(HADOLINT), str(bad)], capture_output=True, check=False).returncode == 1
    )


@pytest.mark.parametrize("source", copied_sources())
def test_each_copied_file_exists_and_is_sent_to_the_builder(source: str) -> None:
    assert (ROOT / source).exists()
    assert f"!{source}" in DOCKERIGNORE.read_text().splitlines()


def test_no_other_file_is_sent_to_the_builder() -> None:
    lines = [line for line in DOCKERIGNORE.read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    assert {line.removeprefix("!") for line in lines if line.startswith("!")} == set(
        copied_sources()
    )


def test_all_packages_of_the_product_are_in_the_image() -> None:
    assert {"web", "worker", "models", "features", "cli", "migrations"} <= set(copied_sources())


def test_the_base_image_is_pinned_to_a_minor_version_and_a_digest() -> None:
    base = _only("ARG")
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.\d+-slim-\w+@sha256:[0-9a-f]{64}", base)
    assert base == f"PYTHON_IMAGE={DEFAULTS['PYTHON_IMAGE']}"
    stages = [rest for word, rest in instructions() if word == "FROM"]
    python, product = "${PYTHON_IMAGE} AS", "product"
    assert stages == [
        *(f"{python} packages", f"{python} code-packages", f"{python} product"),
        *(f"{product} AS sandbox", product),
    ]


def test_the_image_runs_as_a_fixed_user_that_is_not_root() -> None:
    user, _, group = _only("USER").partition(":")
    assert int(user) > 0
    assert int(group) > 0
    assert f"--uid {user}" in DOCKERFILE.read_text()


def test_only_pinned_and_hashed_wheels_are_installed() -> None:
    installs = [rest for word, rest in instructions() if word == "RUN" and "pip install" in rest]
    locks = ("requirements-production.lock", "requirements-code.lock")
    wanted = {"--require-hashes", "--only-binary=:all:", "--no-deps", "--no-cache-dir"}
    for install, lock in zip(installs, locks, strict=True):
        assert wanted <= set(install.split())
        assert lock in install


@pytest.mark.parametrize("word", ["ENTRYPOINT", "CMD"])
def test_sigterm_reaches_python(word: str) -> None:
    for rest in (rest for each, rest in instructions() if each == word):
        assert isinstance(json.loads(rest), list)


def test_the_image_has_a_title_a_description_and_a_license() -> None:
    labels = _only("LABEL")
    for name in ("title", "description", "licenses"):
        assert f"org.opencontainers.image.{name}=" in labels


def test_no_secret_is_in_the_image() -> None:
    assert not re.search(r"(?:ENV|ARG)\b.*(?:PASSWORD|SECRET|KEY|TOKEN)", DOCKERFILE.read_text())


def test_no_process_needs_the_metadata_of_an_installed_project() -> None:
    """Neither the image nor `./dev up` has it; models/version.py has the version."""
    sources = [file for folder in copied_sources() for file in (ROOT / folder).rglob("*.py")]
    assert sources
    assert not [file for file in sources if 'version("backburner")' in file.read_text()]
