"""nginx and Caddy of the system's packages, with the configurations of docs/deploy.md."""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli.embedded.process import ServerProcess, free_port
from tests.support.certificates import Certificate
from tests.support.deployment_files import DEPLOY


def _documented(language: str, replacements: dict[str, str]) -> str:
    """The configuration in docs/deploy.md with other addresses and files."""
    found = re.search(rf"```{language}\n(.*?)```", DEPLOY.read_text(), re.DOTALL)
    assert found is not None
    text = found[1]
    for documented, own in replacements.items():
        assert documented in text, documented
        text = text.replace(documented, own)
    return text


class ReverseProxy(ServerProcess):
    """A program that does TLS in front of web processes."""

    death_signal = signal.SIGTERM  # it ends its own processes, which SIGKILL would leave
    package: str

    def __init__(self, folder: Path, certificate: Certificate, ports: Sequence[int]) -> None:
        """`ports`: those of the web processes on the loopback. Skips the test if the program is not
        installed."""
        super().__init__(self.package, folder / f"{self.package}.log")
        program = shutil.which(self.package, path="/usr/sbin:/usr/bin:/usr/local/bin")
        if program is None:
            pytest.skip(f"{self.package} is not installed (apt-get install {self.package})")
        folder.mkdir(parents=True, exist_ok=True)
        self.program = program
        self.folder, self.certificate = folder, certificate
        self.port = free_port()
        self.base_url = f"https://localhost:{self.port}/v1"
        self.configuration = folder / f"{self.package}.conf"
        self.configuration.write_text(self.text(ports))

    def text(self, ports: Sequence[int]) -> str:
        """The configuration for these web processes."""
        raise NotImplementedError

    def reload_command(self) -> list[str]:
        """The command that lets it read its configuration again."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Whether it listens."""
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def send_to(self, ports: Sequence[int]) -> None:
        """Sends later requests to these web processes. Requests that run go on."""
        self.configuration.write_text(self.text(ports))
        subprocess.run(self.reload_command(), check=True, capture_output=True, env=self.environment)


class Nginx(ReverseProxy):
    """nginx in the foreground, with two processes."""

    package = "nginx"

    def __init__(self, folder: Path, certificate: Certificate, ports: Sequence[int]) -> None:
        super().__init__(folder, certificate, ports)
        self.command = [self.program, "-p", str(folder), "-c", str(self.configuration)]

    def reload_command(self) -> list[str]:
        return [*self.command, "-s", "reload"]

    def text(self, ports: Sequence[int]) -> str:
        servers = "\n".join(f"    server 127.0.0.1:{port};" for port in ports)
        site = _documented(
            "nginx",
            {
                "    server 127.0.0.1:8000;   # one line for each web": servers,
                "listen 443": f"listen 127.0.0.1:{self.port}",
                "backburner.example.com": "localhost",
                "/etc/ssl/backburner.pem": str(self.certificate.file),
                "/etc/ssl/backburner.key": str(self.certificate.key),
            },
        )
        folders = "".join(
            f"{kind}_temp_path {self.folder}/{kind};\n"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        user = "user root;" if os.geteuid() == 0 else ""
        return (
            f"{user} worker_processes 2; daemon off; error_log stderr warn;\n"
            f"pid {self.folder}/nginx.pid; events {{ worker_connections 1024; }}\n"
            f"http {{ access_log off;\n{folders}{site}}}\n"
        )


class Caddy(ReverseProxy):
    """Caddy with a certificate of a file, and its own API on a free port."""

    package = "caddy"

    def __init__(self, folder: Path, certificate: Certificate, ports: Sequence[int]) -> None:
        self._admin = f"127.0.0.1:{free_port()}"
        super().__init__(folder, certificate, ports)
        self.environment = {"HOME": str(folder), "PATH": os.defpath}
        self._files = ["--config", str(self.configuration), "--adapter", "caddyfile"]
        self.command = [self.program, "run", *self._files]

    def reload_command(self) -> list[str]:
        return [self.program, "reload", *self._files, "--address", self._admin]

    def text(self, ports: Sequence[int]) -> str:
        addresses = " ".join(f"127.0.0.1:{port}" for port in ports)
        tls = f"    tls {self.certificate.file} {self.certificate.key}\n"
        site = _documented(
            "caddyfile",
            {
                "backburner.example.com {\n": f"https://localhost:{self.port} {{\n"
                f"    bind 127.0.0.1\n{tls}",
                "127.0.0.1:8000": addresses,
            },
        )
        return f"{{\n    admin {self._admin}\n    auto_https disable_redirects\n}}\n{site}"
