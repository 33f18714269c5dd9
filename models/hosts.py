"""The kind of address that a process listens on, the host that a request names, what host names
mean on this machine, and the hosts and ports that code of models may reach (docs/code.md)."""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import ip_network

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:\d*)?")
"""The value of the header `Host`: a name or an address, and a port."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`, a name or an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_own_host(header: str | None, allowed: Collection[str]) -> bool:
    """Whether `Host: header` names this server, and not a page's own domain (docs/security.md).

    A page of another origin cannot read what this server answers, unless its owner lets its domain
    name resolve to this server's address (DNS rebinding): then the browser sends that name. So
    addresses are allowed, `localhost` and names below it, and the names in `allowed`.
    """
    parts = _HOST.fullmatch(header or "")
    if parts is None:
        return False
    host = parts[1].strip("[]").rstrip(".").lower()
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return host.rpartition(".")[2] == "localhost" or host in {
            name.rstrip(".").lower() for name in allowed
        }
    return True


_THREADS = ThreadPoolExecutor(4, thread_name_prefix="check-names")
"""Threads of their own: slow name servers of strangers must delay no other look-up."""
MAX_NAMES = 64
"""Names of one request that are looked up."""


async def look_up(hosts: Collection[str], seconds: float) -> dict[str, list[str]]:
    """Host -> its numeric addresses, for those of the first 64 hosts that were found in time: for
    the check of addresses that an upstream fetches."""
    loop = asyncio.get_running_loop()
    tasks = {
        loop.run_in_executor(_THREADS, _addresses, host): host
        for host in list(dict.fromkeys(hosts))[:MAX_NAMES]
    }
    if not tasks:
        return {}
    done, late = await asyncio.wait(tasks, timeout=seconds)
    for task in late:
        task.cancel()
    return {tasks[task]: addresses for task in done if (addresses := task.result())}


def _addresses(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


_ENTRY = re.compile(
    r"(?P<below>\*)?(?P<name>(?(below)\.)(?!-)[a-z0-9_-]+(\.(?!-)[a-z0-9_-]+)*)\.?(:(?P<port>[0-9]{1,5}))?"
)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORTS = frozenset({80, 443})
_UNPRIVILEGED = 1024
"""Below it the egress guard lets the two ports of HTTP pass only (models/egress.py)."""


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Names, and private networks to which these names may lead."""

    names: Mapping[str, frozenset[int]]
    """Name -> its ports; `.example.org` is all names below `example.org`."""
    networks: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.names)

    def allows(self, host: str, port: int) -> bool:
        """Whether this host, a name in lower case, may be reached. An address never is."""
        return port in self._ports(host)

    def narrowed(self, domains: Iterable[str]) -> "AllowedHosts":
        """What is on both lists. `domains`: `name` or `*.name`, also with `:port`. Raises
        ValueError for others."""
        names: dict[str, frozenset[int]] = {}
        for domain in domains:
            name, port = _parsed(domain)
            ports = self._ports(name)
            if port is not None:
                ports &= {port}
            if ports:
                names[name] = ports | names.get(name, frozenset())
        return AllowedHosts(names, self.networks)

    def _ports(self, name: str) -> frozenset[int]:
        found = (
            ports
            for entry, ports in self.names.items()
            if name == entry or (entry[0] == "." and name.endswith(entry))
        )
        return frozenset().union(*found)


def allowed_hosts(entries: Iterable[str]) -> AllowedHosts:
    """The list of these entries: `name`, `*.name`, with `:port` for another port than 80 and 443,
    and networks (CIDR). Raises ValueError for others."""
    names: dict[str, frozenset[int]] = {}
    networks: list[str] = []
    for entry in entries:
        try:
            networks.append(str(ip_network(entry, strict=False)))
        except ValueError:
            name, port = _parsed(entry)
            names[name] = names.get(name, frozenset()) | (frozenset({port}) if port else _PORTS)
    return AllowedHosts(names, tuple(networks))


def _parsed(entry: str) -> tuple[str, int | None]:
    """Name and port. Raises ValueError."""
    found = _ENTRY.fullmatch(entry.lower())
    if found is None or _NUMBER.fullmatch(found["name"].rpartition(".")[2]):
        raise ValueError(f"{entry!r} is no host name such as pypi.org")
    port = None if found["port"] is None else int(found["port"])
    if port is not None and (port > 65535 or (port < _UNPRIVILEGED and port not in _PORTS)):
        raise ValueError(f"{entry!r}: the port must be 80, 443, or 1024 to 65535")
    return found["name"], port
