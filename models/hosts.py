"""The kind of address that a process listens on, and the host that a request names."""

import ipaddress
import re
from collections.abc import Collection

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
