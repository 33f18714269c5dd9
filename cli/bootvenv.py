"""Makes `.venv` beside `pyproject.toml` and installs pinned packages: those that running needs, or
all.

    python cli/bootvenv.py running        # for `./dev up` and `./dev run`
    python cli/bootvenv.py development    # for everything else: tools for tests and checks too

`./dev` runs it with any Python 3.11 or newer, so it uses the standard library only and imports
nothing from this project. It installs with uv if uv is on PATH, else with the pip that Python
brings (ensurepip; Debian has it in the package python3-venv). Two runs at once wait for each
other; the next run finishes an interrupted one.
"""

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNNING, DEVELOPMENT = "running", "development"
LOCKS = {
    RUNNING: ("requirements-production.lock", "requirements-embedded.lock"),
    DEVELOPMENT: ("requirements.lock",),
}
"""The files whose change makes an installation incomplete. `./dev` has the same lists."""
STAMPS = {RUNNING: ".stamp-running", DEVELOPMENT: ".stamp"}

PIPS, PART = 4, 14
"""Processes of pip at the same time, since each one mostly waits for the index or the disk; and
packages that one of them installs: progress is shown after each part."""

REASONS = {
    r"No space left on device|Disk quota exceeded": "the disk is full; free 500 MB",
    r"Permission denied|Read-only file system": "{venv} cannot be written",
    r"hashes? mismatch|DO NOT MATCH THE HASHES": (
        "the package index has another file than the pinned one; use another index"
    ),
    (
        r"NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|name resolution|"
        r"error sending request|dns error|[Cc]onnection (refused|reset)"
    ): (
        "the package index does not answer; check the network and the proxy, or name another "
        "index (PIP_INDEX_URL for pip, UV_DEFAULT_INDEX for uv)"
    ),
}
"""What an installer prints -> the reason and the remedy."""


class CannotInstall(Exception):
    """The message is one sentence for the person who ran `./dev`."""


def main(root: Path, kind: str) -> None:
    """Installs `running` or `development` into the checkout. Raises CannotInstall."""
    try:
        with (root / LOCKS[DEVELOPMENT][0]).open("r+b") as lock:  # it always exists
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("Another ./dev installs packages; waiting for it.")
                fcntl.flock(lock, fcntl.LOCK_EX)
            if not (is_usable(root) and is_current(root, kind)):
                install(root, kind)
    except OSError as error:
        raise CannotInstall(
            f"{root / '.venv'} cannot be made: {error.strerror} ({error.filename}); "
            "copy the checkout to a folder where you may write"
        ) from error


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def is_current(root: Path, kind: str) -> bool:
    """Whether no lock changed since the last complete installation of `kind`, or of everything.

    `./dev` checks the same.
    """
    for each in {kind, DEVELOPMENT}:
        stamp = root / ".venv" / STAMPS[each]
        if stamp.exists() and newest_change(root, each) <= stamp.stat().st_mtime_ns:
            return True
    return False


def newest_change(root: Path, kind: str) -> int:
    return max((root / lock).stat().st_mtime_ns for lock in LOCKS[kind])


def is_usable(root: Path) -> bool:
    """Whether the venv's Python runs and is new enough; a system upgrade may have removed it."""
    python = root / ".venv" / "bin" / "python"
    command = [str(python), "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    return (
        python.exists()
        and subprocess.run(command, check=False, capture_output=True).returncode == 0
    )


def install(root: Path, kind: str) -> None:
    """Makes the venv if there is none, and installs the pinned packages into it, checked against
    their hashes. The locks name every package, so dependencies are not resolved again, and several
    pips can install parts of the list at the same time. uv does that by itself."""
    uv = shutil.which("uv")
    if uv is None and importlib.util.find_spec("ensurepip") is None:
        raise CannotInstall(
            "this Python cannot install packages: install python3-venv (Debian, Ubuntu) or uv"
        )
    place, began, changed = root / ".venv", time.monotonic(), newest_change(root, kind)
    purpose = "what running needs" if kind == RUNNING else "tools for tests and checks too"
    say(
        f"Installing into {place}, {purpose}; this happens once, and again when the pinned "
        "versions change."
    )
    if not is_usable(root):
        venv.create(place, symlinks=True, clear=place.exists())
    python = str(place / "bin" / "python")
    if uv is not None:
        command, part = [uv, "pip", "install", "--python", python], sys.maxsize
    else:
        if not (place / "bin" / "pip").exists():
            run([python, "-m", "ensurepip", "--default-pip"], place)
        # The programs import less than half of the modules, and compile these once.
        command, part = [python, "-m", "pip", "install", "--no-compile"], PART
        command.append("--disable-pip-version-check")
    install_parts(command, read_pins(root, kind), part, place)
    link(root, place)
    stamp = place / STAMPS[kind]
    stamp.touch()
    # not the present time: a lock may have changed during the installation
    os.utime(stamp, ns=(changed, changed))
    say(f"Installed in {time.monotonic() - began:.0f} s.")


def read_pins(root: Path, kind: str) -> list[str]:
    """Each pinned package with its hashes."""
    pin = re.compile(r"^\w\S*==.*(?:\n +--hash=.*)*", re.MULTILINE)
    return [text for lock in LOCKS[kind] for text in pin.findall((root / lock).read_text())]


def install_parts(command: list[str], pins: list[str], size: int, place: Path) -> None:
    """Installs at most `size` packages with one process. Raises CannotInstall."""
    parts = [pins[start : start + size] for start in range(0, len(pins), size)]
    done = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(PIPS) as pool:
        running = {}
        for number, part in enumerate(parts):
            file = Path(folder, f"requirements-{number}.txt")
            file.write_text("\n".join(part) + "\n")
            whole = [*command, "--no-deps", "--require-hashes", "-r", str(file)]
            running[pool.submit(run, whole, place)] = len(part)
        try:
            for each in as_completed(running):
                each.result()
                done += running[each]
                say(f"  {done} of {len(pins)} packages")
        finally:
            pool.shutdown(cancel_futures=True)


def run(command: list[str], place: Path) -> None:
    """Raises CannotInstall with the reason if the command fails."""
    ended = subprocess.run(
        command,
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    if ended.returncode == 0:
        return
    text = ended.stdout.decode(errors="replace")
    for pattern, reason in REASONS.items():
        if re.search(pattern, text):
            remedy = reason.format(venv=place)
            raise CannotInstall(f"packages could not be installed: {remedy}; then run it again")
    say("\n".join(text.splitlines()[-12:]))
    raise CannotInstall(f"`{' '.join(command)}` failed; its last lines are above")


def link(root: Path, place: Path) -> None:
    """Makes this project importable, and writes the command, as an editable installation does.

    That would need build tools.
    """
    for packages in place.glob("lib/python3.*/site-packages"):
        (packages / "_backburner.pth").write_text(f"{root}\n")
    script = place / "bin" / "backburner"
    script.write_text(f"#!{place / 'bin' / 'python'}\nfrom cli.main import app\n\napp()\n")
    script.chmod(0o755)


if __name__ == "__main__":
    try:
        main(ROOT, sys.argv[1])
    except CannotInstall as failure:
        sys.exit(f"dev: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
