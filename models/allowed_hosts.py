"""The allow-list of code that models run: which hosts and ports it may reach (docs/code.md)."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_network

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
