"""The pinned packages of the production image, with their hashes and licences."""

import re
from dataclasses import dataclass
from importlib import metadata

from cli.checkout import ROOT
from cli.errors import CommandFailed

LOCK = ROOT / "requirements-production.lock"
_PIN = re.compile(r"^([\w.-]+)==([^ ;\\]+)([^\n]*)\n((?: +--hash=.*\n?)*)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_EXPRESSION = re.compile(r"[A-Za-z0-9.+-]+( (AND|OR) \(?[A-Za-z0-9.+-]+\)?)*")
"""An SPDX expression; free text such as `3-Clause BSD License` is none."""
UNKNOWN = ""

_STATED = {
    "aiosignal": "Apache-2.0",
    "amqp": "BSD-3-Clause",
    "async-timeout": "Apache-2.0",
    "billiard": "BSD-3-Clause",
    "click-plugins": "BSD-3-Clause",
    "colorama": "BSD-3-Clause",
    "defusedxml": "PSF-2.0",
    "jinja2": "BSD-3-Clause",
    "markdown-it-py": "MIT",
    "mdurl": "MIT",
    "prompt-toolkit": "BSD-3-Clause",
    "protobuf": "BSD-3-Clause",
    "python-dateutil": "Apache-2.0 OR BSD-3-Clause",
    "pywin32": "PSF-2.0",
    "shellingham": "ISC",
    "sniffio": "MIT OR Apache-2.0",
    "tokenizers": "Apache-2.0",
    "tzdata": "Apache-2.0",
    "uvloop": "MIT OR Apache-2.0",
    "vine": "BSD-3-Clause",
    "wcwidth": "MIT",
}
"""Licences of packages whose metadata has no SPDX expression, read in their licence files; and of
those that are only installed on other systems."""


@dataclass(frozen=True, slots=True)
class Package:
    """A pinned package. `license`: an SPDX expression, or UNKNOWN."""

    name: str
    version: str
    hashes: tuple[str, ...]
    """SHA-256 of each of its files"""
    condition: str
    """where it is installed; empty: everywhere"""
    license: str


def pinned_packages() -> list[Package]:
    """The packages of the lock, by name. Raises CommandFailed if there is no lock."""
    try:
        text = LOCK.read_text()
    except OSError as error:
        raise CommandFailed(f"{LOCK} cannot be read: {error.strerror}") from error
    return [
        Package(
            name=name,
            version=version,
            hashes=tuple(_HASH.findall(hashes)),
            condition=rest.strip().rstrip("\\").removeprefix(";").strip(),
            license=_STATED.get(name) or _license(name),
        )
        for name, version, rest, hashes in _PIN.findall(text)
    ]


def _license(name: str) -> str:
    """The SPDX expression of the installed package's metadata."""
    try:
        stated = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return UNKNOWN
    given = [*(stated.get_all("License-Expression") or ()), *(stated.get_all("License") or ())]
    expression = given[0] if given else UNKNOWN
    return expression if _EXPRESSION.fullmatch(expression) else UNKNOWN
