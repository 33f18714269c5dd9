"""Makes `.venv` beside `pyproject.toml`, installs the pins of `requirements.lock`, then this
project.

`./dev` runs it with any Python 3.11 or newer, so it uses the standard library only and imports
nothing from this project. It installs with uv if uv is on PATH, else with the pip that Python
itself brings (ensurepip; Debian has it in the package python3-venv). Two runs at once wait for each
other; the next run finishes an interrupted one.
"""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".stamp"
SOURCES = [ROOT / "pyproject.toml", ROOT / "requirements.lock"]


class CannotInstall(Exception):
    """The message is one sentence for the person who ran `./dev`."""


def main() -> None:
    # the lock file always exists, and is writable where the venv is
    with SOURCES[1].open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_current() and is_usable():
            return
        uv = find_uv()
        print(
            (
                f"Installing into {VENV}; this happens once, and again when the pinned "
                "versions change."
            ),
            file=sys.stderr,
        )
        if not is_usable():
            venv.create(VENV, with_pip=False, symlinks=True, clear=VENV.exists())
        newest = max(source.stat().st_mtime_ns for source in SOURCES)
        install(uv)
        STAMP.touch()
        # not the present time: a source may have changed during the installation
        os.utime(STAMP, ns=(newest, newest))


def is_current() -> bool:
    """Whether no source changed since the last complete installation. `./dev` checks the same."""
    return STAMP.exists() and all(
        source.stat().st_mtime_ns <= STAMP.stat().st_mtime_ns for source in SOURCES
    )


def is_usable() -> bool:
    """Whether the venv's Python runs and is new enough; a system upgrade may have removed it."""
    if not PYTHON.exists():
        return False
    command = [str(PYTHON), "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def find_uv() -> str | None:
    """The path of uv, or None if pip can be used. Raises CannotInstall if there is neither."""
    uv = shutil.which("uv")
    if uv is None and importlib.util.find_spec("ensurepip") is None:
        raise CannotInstall(
            "this Python cannot install packages: install python3-venv (Debian, Ubuntu) or uv"
        )
    return uv


def install(uv: str | None) -> None:
    """Installs the pinned packages, checked against their hashes, then this project, editable."""
    if uv is not None:
        command = [uv, "pip", "install", "--quiet", "--python", str(PYTHON)]
    else:
        run([str(PYTHON), "-m", "ensurepip", "--default-pip"])
        command = [str(PYTHON), "-m", "pip", "install", "--quiet"]
        command += ["--disable-pip-version-check", "--no-warn-script-location"]
    run([*command, "--require-hashes", "-r", str(SOURCES[1])])
    # without isolation the build uses the pinned backend and does not fetch the newest one
    run([*command, "--no-deps", "--no-build-isolation", "--editable", str(ROOT)])


def run(command: list[str]) -> None:
    """Runs a command; its errors and warnings appear on standard error, its output is dropped."""
    if subprocess.run(command, stdout=subprocess.DEVNULL, cwd=ROOT, check=False).returncode != 0:
        raise CannotInstall(f"`{' '.join(command)}` failed; its output is above")


if __name__ == "__main__":
    try:
        main()
    except CannotInstall as failure:
        sys.exit(f"dev: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
