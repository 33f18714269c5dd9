"""Where this code is."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The checkout: child processes run here, and `.data` is here."""
