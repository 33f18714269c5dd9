"""The operator's command line, the embedded single-machine stack and the demo upstream."""

import gc
from pathlib import Path

# Most of a short command's time is imports. Collections on the way, which find nothing, would add a
# twentieth of it.
gc.set_threshold(100_000, 20, 50)

ROOT = Path(__file__).resolve().parent.parent
"""The folder of the packages: a checkout, or where a wheel was installed. Child processes run
here."""


def is_checkout() -> bool:
    """Whether this code is in a checkout, and not in an installed wheel."""
    return (ROOT / "pyproject.toml").exists()
