"""The Python that runs code: one with packages, which may be made at the first use."""

import subprocess
import sys
import threading
from pathlib import Path

import structlog

logger = structlog.get_logger()

LOCK = Path(__file__).parents[3] / "requirements-code.lock"
_STAMP = "complete"


class Packages:
    """`python`: the interpreter for code. `venv`: a folder that gets a Python with the packages of
    the lock when the first session is opened; until it is complete, and where it cannot be made,
    code runs with `python`."""

    def __init__(self, python: Path, venv: Path | None = None) -> None:
        self._python = python
        self._venv = venv
        self._lock = threading.Lock()

    def python(self) -> Path:
        """The interpreter to use now."""
        if self._venv is not None and (self._venv / _STAMP).exists():
            return self._venv / "bin" / "python"
        return self._python

    def want(self) -> None:
        """Begins to make the venv, in a thread, if it is wanted and nobody does."""
        if self._venv is None or (self._venv / _STAMP).exists() or not LOCK.exists():
            return
        if self._lock.acquire(blocking=False):
            threading.Thread(target=self._make, args=(self._venv,), daemon=True).start()

    def _make(self, venv: Path) -> None:
        """Makes it once; a failure is tried again after the next start of the sandbox."""
        pip = [str(venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"]
        steps = {
            "making": [sys.executable, "-m", "venv", "--clear", str(venv)],
            "installing": [*pip, "--quiet", "--require-hashes", "--no-deps", "-r", str(LOCK)],
            "font_cache": [str(venv / "bin" / "python"), "-c", _FONT_CACHE],
        }
        for step, command in steps.items():
            logger.info("packages_for_code", step=step, folder=str(venv))
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                lines = done.stderr.strip().splitlines()
                logger.warning("packages_for_code_failed", step=step, error=" ".join(lines[-3:]))
                return
        (venv / _STAMP).touch()
        logger.info("packages_for_code", step="complete", folder=str(venv))


_FONT_CACHE = """
import os, pathlib, sys
home = pathlib.Path(sys.prefix, "share", "session-home")
home.mkdir(parents=True, exist_ok=True)
os.environ["HOME"] = str(home)
import matplotlib.font_manager
"""
"""Fills what sessions get as their home: looking for fonts takes seconds."""
