"""The bill of materials (CycloneDX) and the list of licences. Pure."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cli.output import table
from cli.supply_chain.packages import UNKNOWN, Package

SPEC_VERSION = "1.6"
PRODUCT = "backburner"


def bill_of_materials(packages: Sequence[Package], version: str) -> str:
    """A CycloneDX document in JSON. The same packages make the same document."""
    components = [_component(package) for package in packages]
    content = json.dumps(components, sort_keys=True) + version
    digest = hashlib.sha256(content.encode()).hexdigest()
    root = f"pkg:generic/{PRODUCT}@{version}"
    product = {
        "type": "application",
        "bom-ref": root,
        "name": PRODUCT,
        "version": version,
        "licenses": [{"license": {"id": "MIT"}}],
    }
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": SPEC_VERSION,
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {"component": product},
        "components": components,
        "dependencies": [{"ref": root, "dependsOn": [each["bom-ref"] for each in components]}],
    }
    return json.dumps(document, indent=2) + "\n"


def _component(package: Package) -> dict[str, Any]:
    url = f"pkg:pypi/{package.name.lower().replace('_', '-')}@{package.version}"
    component: dict[str, Any] = {
        "type": "library",
        "bom-ref": url,
        "name": package.name,
        "version": package.version,
        "purl": url,
        "hashes": [{"alg": "SHA-256", "content": each} for each in package.hashes],
    }
    if package.license != UNKNOWN:
        component["licenses"] = [{"expression": package.license}]
    if package.condition:
        component["scope"] = "optional"
        component["properties"] = [{"name": "python:marker", "value": package.condition}]
    return component


def licenses_text(packages: Sequence[Package]) -> str:
    """A table of names, versions and licences."""
    rows = [
        (package.name, package.version, package.license or f"unknown ({package.condition})")
        for package in packages
    ]
    return table(("PACKAGE", "VERSION", "LICENCE"), rows)
