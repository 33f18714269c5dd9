"""Valkey with a replica, and Sentinels that promote it."""

from pathlib import Path

import redis

from cli.embedded.process import ServerProcess, free_port
from cli.embedded.valkey import Valkey, find_binary

MASTER = "backburner-test"
_CONFIGURATION = """\
bind 127.0.0.1
port {port}
dir "{home}"
sentinel monitor {name} 127.0.0.1 {master.port} 1
sentinel auth-pass {name} {master.password}
sentinel down-after-milliseconds {name} 1000
sentinel failover-timeout {name} 5000
"""


class SentinelServer(ServerProcess):
    """One Sentinel that watches `master`, and alone decides that it is down."""

    def __init__(self, folder: Path, master: Valkey) -> None:
        super().__init__("sentinel", folder / "sentinel.log")
        self.port = free_port()
        self._master = master
        configuration = folder / "sentinel.conf"
        configuration.write_text(
            _CONFIGURATION.format(port=self.port, home=folder, name=MASTER, master=master)
        )
        self.command = [str(find_binary()), str(configuration), "--sentinel"]

    @property
    def url(self) -> str:
        """The URL for REDIS_URL. The first host does not exist: the others are asked too."""
        hosts = f"127.0.0.1:1,127.0.0.1:{self.port}"
        return f"sentinel://:{self._master.password}@{hosts}/0?master={MASTER}"

    def is_ready(self) -> bool:
        """Whether it knows the replica."""
        return self._replicas() == 1

    def primary_port(self) -> int:
        """The port of the server that it names as the primary."""
        with redis.Redis(port=self.port, socket_timeout=5) as client:
            _, port = client.sentinel_get_master_addr_by_name(MASTER)
            return int(port)

    def _replicas(self) -> int:
        try:
            with redis.Redis(port=self.port, socket_timeout=5) as client:
                return len(client.sentinel_slaves(MASTER))
        except (redis.ConnectionError, redis.TimeoutError):
            return 0


def make_replica(replica: Valkey, master: Valkey) -> None:
    """Lets a running server follow another one with the same password."""
    with redis.Redis(port=replica.port, password=replica.password) as client:
        client.config_set("masterauth", master.password)
        client.replicaof("127.0.0.1", str(master.port))
    with redis.Redis(port=master.port, password=master.password) as client:
        client.config_set("masterauth", replica.password)
