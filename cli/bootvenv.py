"""Makes `.venv` beside `pyproject.toml` and installs pinned packages: those that running needs, or
all.

    python cli/bootvenv.py running        # for `./dev up` and `./dev run`
    python cli/bootvenv.py development    # for everything else: tools for tests and checks too

`./dev` runs it with any Python 3.11 or newer, so it uses the standard library only and imports
nothing from this project. It installs with uv if uv is on PATH, else with the pip of that
Python, or the one that it brings (ensurepip; Debian has it in the package python3-venv). Two
runs at once wait for each other; the next run finishes an interrupted one.
"""

import fcntl
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"

RUNNING, DEVELOPMENT = "running", "development"
LOCKS = {
    RUNNING: [ROOT / "requirements-production.lock", ROOT / "requirements-embedded.lock"],
    DEVELOPMENT: [ROOT / "requirements.lock"],
}
SOURCES = {
    RUNNING: LOCKS[RUNNING],
    DEVELOPMENT: [*LOCKS[DEVELOPMENT], ROOT / "pyproject.toml"],
}
"""The files whose change makes an installation incomplete. `./dev` has the same lists."""
STAMPS = {RUNNING: VENV / ".stamp-running", DEVELOPMENT: VENV / ".stamp"}

PIPS = 4
"""Processes that install at the same time: each one mostly waits for the index or the disk."""

REPORT_INTERVAL = {True: 0.2, False: 10.0}
"""Seconds between two reports of progress, by whether a terminal shows them."""

REASONS = {
    r"No space left on device|Disk quota exceeded": "the disk is full; free 500 MB",
    r"Permission denied|Read-only file system": f"{VENV} cannot be written",
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


def main(kind: str) -> None:
    """Installs `running` or `development`. Raises CannotInstall."""
    try:
        with LOCKS[DEVELOPMENT][0].open("r+b") as lock:  # it always exists
            wait_for_lock(lock.fileno())
            if not (is_usable() and is_current(kind)):
                make(kind)
    except OSError as error:
        raise CannotInstall(
            f"{VENV} cannot be made: {error.strerror} ({error.filename}); "
            "copy the checkout to a folder where you may write"
        ) from error


def wait_for_lock(lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("Another ./dev installs packages; waiting for it.", file=sys.stderr, flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)


def is_current(kind: str) -> bool:
    """Whether no source changed since the last complete installation of `kind`, or of everything.

    `./dev` checks the same.
    """
    return any(
        STAMPS[each].exists()
        and all(
            source.stat().st_mtime_ns <= STAMPS[each].stat().st_mtime_ns for source in SOURCES[each]
        )
        for each in {kind, DEVELOPMENT}
    )


def is_usable() -> bool:
    """Whether the venv's Python runs and is new enough; a system upgrade may have removed it."""
    if not PYTHON.exists():
        return False
    command = [str(PYTHON), "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


def make(kind: str) -> None:
    """Makes the venv if there is none, and installs into it."""
    uv = find_uv()
    began = time.monotonic()
    purpose = "what running needs" if kind == RUNNING else "tools for tests and checks too"
    print(
        f"Installing into {VENV}, {purpose}; this happens once, and again when the pinned "
        "versions change.",
        file=sys.stderr,
        flush=True,
    )
    newest = max(source.stat().st_mtime_ns for source in SOURCES[kind])
    if not is_usable():
        venv.create(VENV, with_pip=False, symlinks=True, clear=VENV.exists())
    install(kind, uv)
    STAMPS[kind].touch()
    # not the present time: a source may have changed during the installation
    os.utime(STAMPS[kind], ns=(newest, newest))
    print(f"Installed in {time.monotonic() - began:.0f} s.", file=sys.stderr, flush=True)


def find_uv() -> str | None:
    """The path of uv, or None if pip can be used. Raises CannotInstall if there is neither."""
    uv = shutil.which("uv")
    if uv is None and not has_pip() and importlib.util.find_spec("ensurepip") is None:
        raise CannotInstall(
            "this Python cannot install packages: install python3-venv (Debian, Ubuntu) or uv"
        )
    return uv


def has_pip() -> bool:
    """Whether this Python has a pip that can install into another one (22.3)."""
    if importlib.util.find_spec("pip") is None:
        return False
    major, minor = importlib.metadata.version("pip").split(".")[:2]
    return (int(major), int(minor)) >= (22, 3)


def install(kind: str, uv: str | None) -> None:
    """Installs the pinned packages, checked against their hashes, and links this project.

    The locks name every package, so dependencies are not resolved again, and several pips can
    install parts of the list at the same time. uv does that by itself.
    """
    command = [uv, "pip", "install", "--python", str(PYTHON)] if uv is not None else find_pip()
    pins = read_pins(LOCKS[kind])
    with tempfile.TemporaryDirectory() as folder:
        parts = write_parts(pins, 1 if uv is not None else PIPS, Path(folder))
        options = ["--no-deps", "--require-hashes"]
        run([[*command, *options, "-r", str(part)] for part in parts], "packages", len(pins))
    if kind == DEVELOPMENT:
        # without isolation the build uses the pinned backend and does not fetch the newest one
        editable = ["--no-deps", "--no-build-isolation", "--editable", str(ROOT)]
        run([[*command, *editable]], "this project")
    else:
        write_links()


def read_pins(locks: Iterable[Path]) -> list[str]:
    """Each pinned package with its hashes."""
    pin = re.compile(r"^\w\S*==.*(?:\n +--hash=.*)*", re.MULTILINE)
    return [text for lock in locks for text in pin.findall(lock.read_text())]


def write_parts(pins: Sequence[str], count: int, folder: Path) -> list[Path]:
    """Files with equal parts of the list."""
    parts = [folder / f"requirements-{number}.txt" for number in range(count)]
    for number, part in enumerate(parts):
        part.write_text("\n".join(pins[number::count]) + "\n")
    return parts


def find_pip() -> list[str]:
    """The command that installs into the venv: this Python's pip, or one that is installed there.

    Nothing is compiled: the programs import less than half of the modules, and compile these once.
    """
    if has_pip():
        command = [sys.executable, "-m", "pip", "--python", str(PYTHON), "install"]
    else:
        if not (VENV / "bin" / "pip").exists():
            run([[str(PYTHON), "-m", "ensurepip", "--default-pip"]], "pip")
        command = [str(PYTHON), "-m", "pip", "install"]
    return [*command, "--no-compile", "--progress-bar=off", "--disable-pip-version-check"]


def write_links() -> None:
    """Makes this project importable, and writes the command, as an editable installation does.

    That would need build tools.
    """
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.run(
        [str(PYTHON), "-c", where], capture_output=True, text=True, check=True
    )
    Path(packages.stdout.strip(), "_backburner.pth").write_text(f"{ROOT}\n")
    script = VENV / "bin" / "backburner"
    script.write_text(f"#!{PYTHON}\nfrom cli.main import app\n\napp()\n")
    script.chmod(0o755)


@dataclass
class Progress:
    """What the installers have printed so far."""

    phase: str
    total: int
    """Packages; 0 if they are not counted."""
    seen: int = 0
    megabytes: float = 0.0
    is_installing: bool = False

    def read(self, line: str) -> None:
        """Takes a line of pip or uv."""
        if line.startswith("Collecting "):
            self.seen += 1
        elif line.startswith("Installing collected packages"):
            self.is_installing = True
        elif size := re.search(r"Downloading .*\(([\d.]+) ?([kM])i?B\)", line):
            self.megabytes += float(size[1]) / (1000 if size[2] == "k" else 1)

    def text(self, seconds: float) -> str:
        """One line for the person who waits."""
        parts = (
            [f"{min(self.seen, self.total)} of {self.total}"] if self.total and self.seen else []
        )
        parts += [f"{self.megabytes:.0f} MB"] if self.megabytes else []
        parts += ["installing"] if self.is_installing else []
        return f"  {self.phase}: {', '.join([*parts, f'{seconds:.0f} s'])}"


def run(commands: Sequence[list[str]], phase: str, total: int = 0) -> None:
    """Runs commands at the same time and shows their progress. Raises CannotInstall with the reason
    if one fails."""
    began, progress = time.monotonic(), Progress(phase, total)
    is_terminal = sys.stderr.isatty()
    outputs = [deque[str](maxlen=30) for _ in commands]
    with ExitStack() as stack:
        processes = [stack.enter_context(start(command)) for command in commands]
        readers = [
            threading.Thread(target=read_all, args=(process.stdout, lines, progress))
            for process, lines in zip(processes, outputs, strict=True)
        ]
        for reader in readers:
            reader.start()
        while running := [reader for reader in readers if reader.is_alive()]:
            running[0].join(REPORT_INTERVAL[is_terminal])
            if is_terminal or running[0].is_alive():
                show(progress.text(time.monotonic() - began), is_terminal)
    show(progress.text(time.monotonic() - began), is_terminal)
    if is_terminal:
        print(file=sys.stderr)
    for command, process, lines in zip(commands, processes, outputs, strict=True):
        if process.returncode != 0:
            raise CannotInstall(explain(command, list(lines)))


def start(command: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        text=True,
        errors="replace",
    )


def read_all(source: Iterable[str], lines: deque[str], progress: Progress) -> None:
    """Reads a program's output to its end; `lines` gets the last of it."""
    for line in source:
        lines.append(line.strip())
        progress.read(line.strip())


def show(text: str, is_terminal: bool) -> None:
    """On a terminal, replaces the line that was shown before."""
    print(
        f"\r\033[K{text}" if is_terminal else text,
        end="" if is_terminal else "\n",
        file=sys.stderr,
        flush=True,
    )


def explain(command: list[str], lines: list[str]) -> str:
    """The sentence for a command that failed, after its last lines."""
    text = "\n".join(lines)
    for pattern, reason in REASONS.items():
        if re.search(pattern, text):
            return f"packages could not be installed: {reason}; then run it again"
    print("\n".join(lines[-12:]), file=sys.stderr)
    return f"`{' '.join(command)}` failed; its last lines are above"


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except CannotInstall as failure:
        sys.exit(f"dev: {failure}")
    except KeyboardInterrupt:
        sys.exit(130)
