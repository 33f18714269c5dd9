"""RabbitMQ, from the system's package."""

import os
import shutil
import subprocess
from pathlib import Path

import kombu
import pytest

from cli.embedded.process import ServerProcess, free_port
from models.celery.rabbitmq import RABBITMQ_ERRORS

_FOLDERS = "/usr/lib/rabbitmq/bin:/usr/local/sbin:/opt/homebrew/sbin:/usr/sbin:/usr/bin"
"""The package's own program first: that of Debian in /usr/sbin runs as another user."""


class RabbitMq(ServerProcess):
    """One RabbitMQ without plugins, and a port mapper of its own."""

    def __init__(self, folder: Path) -> None:
        """`folder`: for its data and logs. Skips the test if RabbitMQ is not installed."""
        program, mapper = (
            shutil.which(name, path=_FOLDERS) for name in ("rabbitmq-server", "epmd")
        )
        if program is None or mapper is None:
            pytest.skip("RabbitMQ is not installed (apt-get install rabbitmq-server)")
        super().__init__("rabbitmq", folder / "rabbitmq.log")
        self.port = free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"
        self.command = [program]
        self.environment = {
            "PATH": os.environ["PATH"],  # noqa: TID251 - that of Erlang
            "HOME": str(folder),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(free_port()),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_NODENAME": f"test-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            # The script becomes the server: else a killed script would leave the server behind.
            "RUNNING_UNDER_SYSTEMD": "1",
        }
        self._mapper = mapper

    def is_ready(self) -> bool:
        """Whether a client can log in."""
        try:
            with kombu.Connection(self.url) as connection:
                connection.ensure_connection(max_retries=0, reraise_as_library_errors=False)
        except RABBITMQ_ERRORS:
            return False
        return True

    def stop(self) -> None:
        """Stops it, and the port mapper, which it has started as a daemon."""
        super().stop()
        subprocess.run(
            [self._mapper, "-kill"], check=False, env=self.environment, capture_output=True
        )
