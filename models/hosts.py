"""The kind of address that a process listens on, the host that a request names, and what host names
mean on this machine."""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

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
