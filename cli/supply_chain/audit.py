"""`./dev audit`: known vulnerabilities of the packages in the production image, by pip-audit.

pip-audit is in no lock: it is a tool beside the project, with many packages of its own.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli.checkout import ROOT
from cli.output import clean, print_result, print_status, table

_LOCK = "requirements-production.lock"
_NOT_INSTALLED = (
    "audit: pip-audit is not installed. `pipx install pip-audit`, or any other way that puts it on "
    "PATH."
)
_FAILED, _NOT_AUDITED = 1, 3
"""Exit statuses: a vulnerability is known; not all packages could be audited."""


def audit(lock: Path, arguments: Sequence[str]) -> int:
    """Audits a lock and prints the result. `arguments`: further ones of pip-audit, such as
    `-s osv`. Returns the exit status."""
    program = shutil.which("pip-audit")
    if program is None:
        print_status(_NOT_INSTALLED)
        return _NOT_AUDITED
    command = [program, "--disable-pip", "--require-hashes", "-r", str(lock), "-f", "json"]
    command += ["--progress-spinner", "off", *arguments]
    run = subprocess.run(command, capture_output=True, check=False)
    try:
        dependencies = json.loads(run.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        words = clean(run.stderr.decode(errors="replace").strip()[-500:])
        print_status(f"audit: no index of vulnerabilities answered, so nothing is known: {words}")
        return _NOT_AUDITED
    return _report(dependencies)


def _report(dependencies: list[dict[str, Any]]) -> int:
    found = [
        (package["name"], package["version"], each["id"], ", ".join(each["fix_versions"]) or "none")
        for package in dependencies
        for each in package.get("vulns", ())
    ]
    if found:
        print_result(table(("PACKAGE", "VERSION", "VULNERABILITY", "MENDED IN"), found))
    skipped = [package["name"] for package in dependencies if "skip_reason" in package]
    if skipped:
        print_status(
            f"audit: the index does not know {len(skipped)} of {len(dependencies)} packages, so "
            f"nothing is known about them: {clean(', '.join(skipped[:5]))}"
            + (", …" if len(skipped) > 5 else "")
        )
    if found:
        return _FAILED
    if skipped:
        return _NOT_AUDITED
    print_status(f"audit: no vulnerability is known of {len(dependencies)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(audit(ROOT / _LOCK, sys.argv[1:]))
