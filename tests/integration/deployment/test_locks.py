"""The locks: the image gets the product's dependencies, in the tested versions, and no others."""

import re
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.deployment_files import LOCK, PRODUCTION_LOCK, ROOT, pins

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(requirement).name) for requirement in requirements}


def _production_names() -> set[str]:
    return {pin.split()[0].partition("[")[0] for pin in pins(PRODUCTION_LOCK)}


def test_the_image_has_the_versions_that_the_tests_run_on() -> None:
    everything, production = pins(LOCK), pins(PRODUCTION_LOCK)
    assert production
    for name, (version, hashes) in production.items():
        assert everything[name][0] == version, name
        assert hashes <= everything[name][1], name


def test_no_dependency_product_is_missing_in_the_image() -> None:
    assert _names(PROJECT["dependencies"]) <= _production_names()


@pytest.mark.parametrize("extra", ["embedded", "dev"])
def test_no_development_package_is_in_the_image(extra: str) -> None:
    product = _names(PROJECT["dependencies"])
    assert not (_names(PROJECT["optional-dependencies"][extra]) - product) & _production_names()


@pytest.mark.parametrize("lock", [LOCK, PRODUCTION_LOCK], ids=lambda path: str(path.name))
def test_every_package_is_pinned_and_hashed_and_no_index_is_named(lock: Any) -> None:
    text = lock.read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(lines) == len(pins(lock))
    assert all("==" in line for line in lines)
    assert not re.findall(
        r"://|(?:^|[ =])/\w|--(?:index|extra-index|find-links|trusted)", text, re.MULTILINE
    )


def test_both_locks_are_made_with_the_same_options() -> None:
    def options(name: str) -> set[str]:
        head = (ROOT / name).read_text().splitlines()[1]
        different = r" --(?:extra|constraint|output-file) \S+"
        return set(re.sub(different, "", head).split())

    assert options(LOCK.name) == options(PRODUCTION_LOCK.name)
    assert f"--constraint {LOCK.name}" in PRODUCTION_LOCK.read_text().splitlines()[1]
