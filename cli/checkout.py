"""Where this code is."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The folder of the packages: a checkout, or where a wheel was installed. Child processes run
here."""


def is_checkout() -> bool:
    """Whether this code is in a checkout, and not in an installed wheel."""
    return (ROOT / "pyproject.toml").exists()
