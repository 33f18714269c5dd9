"""What the production image contains: its bill of materials, and licences that may be in it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from cli.supply_chain.audit import audit
from cli.supply_chain.documents import bill_of_materials, licenses_text
from cli.supply_chain.packages import UNKNOWN, pinned_packages

ALLOWED = {
    *("Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "PSF-2.0"),
    # Their terms are for changes of the packages themselves, which are installed as they are.
    *("LGPL-3.0-only", "MPL-2.0"),
}


def test_every_package_of_the_image_has_a_licence_that_is_allowed() -> None:
    packages = pinned_packages()
    assert len(packages) > 80
    for package in packages:
        if package.license == UNKNOWN:
            # never installed in the image
            assert "win32" in package.condition or "emscripten" in package.condition, package
            continue
        licences = set(re.split(r" AND | OR |[() ]", package.license)) - {""}
        assert licences <= ALLOWED, package


def test_the_bill_of_materials_names_each_package_with_its_hashes() -> None:
    packages = pinned_packages()
    text = bill_of_materials(packages, "1.2.3")
    assert text == bill_of_materials(packages, "1.2.3")
    document = json.loads(text)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.6")
    by_name = {component["name"]: component for component in document["components"]}
    assert by_name.keys() == {package.name for package in packages}
    psycopg = by_name["psycopg"]
    assert psycopg["purl"] == f"pkg:pypi/psycopg@{psycopg['version']}"
    assert psycopg["licenses"] == [{"expression": "LGPL-3.0-only"}]
    assert all(
        each["hashes"] and all(len(one["content"]) == 64 for one in each["hashes"])
        for each in document["components"]
    )
    [root] = document["dependencies"]
    assert len(root["dependsOn"]) == len(packages)


def test_the_list_of_licences_has_a_line_for_each_package() -> None:
    packages = pinned_packages()
    lines = licenses_text(packages).splitlines()[1:]
    assert [line.split()[0] for line in lines] == [package.name for package in packages]


VULNERABLE = {
    "name": "old",
    "version": "1.0",
    "vulns": [{"id": "CVE-2026-1", "fix_versions": ["1.1"], "aliases": []}],
}
SAFE: dict[str, Any] = {"name": "new", "version": "2.0", "vulns": []}
UNLISTED = {"name": "own", "skip_reason": "Dependency not found"}


@pytest.mark.parametrize(
    ("output", "status", "words"),
    [
        ([SAFE], 0, "no vulnerability is known of 1 packages"),
        ([SAFE, VULNERABLE], 1, "CVE-2026-1"),
        ([SAFE, UNLISTED], 3, "does not know 1 of 2 packages"),
        (None, 3, "no index of vulnerabilities answered"),
    ],
)
def test_an_audit_says_what_is_known_and_what_is_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    output: list[Any] | None,
    status: int,
    words: str,
) -> None:
    """pip-audit itself is a double: its index is not at hand."""
    answer = "Connection refused" if output is None else json.dumps({"dependencies": output})
    program = tmp_path / "pip-audit"
    program.write_text(f"#!/bin/sh\necho '{answer}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert audit(tmp_path / "a.lock", []) == status
    captured = capfd.readouterr()
    assert words in captured.out + captured.err


def test_an_audit_without_its_tool_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert audit(tmp_path / "a.lock", []) == 3
    assert "pip-audit is not installed" in capfd.readouterr().err
