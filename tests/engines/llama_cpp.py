"""llama.cpp's server, from wheels in an environment of its own (examples/llama_server.py)."""

import json
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from cli.embedded.process import Process, free_port
from tests.support.api import JSON, until
from tests.support.stack import ROOT

EXAMPLES = ROOT / "examples"
_REQUIREMENTS = EXAMPLES / "llama-cpp.txt"
_HOME = ROOT / ".data" / "engines" / "llama-cpp"
"""Kept between runs."""
_INSTALL_SECONDS = 300


class CannotInstall(Exception):
    """The packages could not be had here."""


def install() -> Path:
    """Makes the environment unless it is there; returns its Python. Raises CannotInstall."""
    python, stamp = _HOME / "bin" / "python", _HOME / "installed"
    wanted = _REQUIREMENTS.read_text()
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(_HOME, ignore_errors=True)
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--retries", "1", "install"]
    uv = shutil.which("uv")
    installer = pip if uv is None else [uv, "pip", "install", "--python", str(python)]
    packages = ["--no-deps", "--require-hashes", "--only-binary=:all:", "-r", str(_REQUIREMENTS)]
    _run([sys.executable, "-m", "venv", *([] if uv is None else ["--without-pip"]), str(_HOME)])
    _run([*installer, "--quiet", *packages])
    stamp.write_text(wanted)
    return python


def _run(command: list[str]) -> None:
    try:
        subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_INSTALL_SECONDS
        )
    except subprocess.CalledProcessError as error:
        raise CannotInstall(f"{' '.join(command)} failed: {error.stderr[-1500:]}") from error
    except subprocess.TimeoutExpired as error:
        raise CannotInstall(f"{' '.join(command)} took too long") from error


class LlamaServer(Process):
    """One server, always at the same port."""

    def __init__(self, python: Path, folder: Path, name: str, *options: str) -> None:
        """`options`: those of examples/llama_server.py. Its log is in `folder`."""
        self.port = free_port()
        program = [str(python), str(EXAMPLES / "llama_server.py"), "--port", str(self.port)]
        # One thread: on busy cores, threads that wait for each other wait long.
        super().__init__(name, folder / f"{name}.log", [*program, "--threads", "1", *options])

    @property
    def base_url(self) -> str:
        """With `/v1`."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        """Returns when the model is loaded."""
        self.launch()
        await until(self._is_ready, 60)

    def _is_ready(self) -> bool:
        assert self.running(), self.last_log_lines()
        try:
            return bool(self._get("/health") == {"status": "ok"})
        except OSError:
            return False

    @property
    def is_busy(self) -> bool:
        """Whether one of its slots generates."""
        slots: list[JSON] = self._get("/slots")
        return any(slot["is_processing"] for slot in slots)

    def _get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
            return json.load(answer)
