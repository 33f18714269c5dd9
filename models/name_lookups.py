"""What host names mean on this machine, for the check of addresses that an upstream fetches.

On threads of their own: slow name servers of strangers must delay no other look-up.
"""

import asyncio
import socket
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

_THREADS = ThreadPoolExecutor(4, thread_name_prefix="check-names")
MAX_NAMES = 64
"""Names of one request that are looked up."""


async def look_up(hosts: Collection[str], seconds: float) -> dict[str, list[str]]:
    """Host -> its numeric addresses, for those of the first 64 hosts that were found in time."""
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
