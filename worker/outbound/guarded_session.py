"""Connections that are made for a client, with aiohttp: only to addresses that the egress policy
allows (models/egress.py).

The address that is checked is the address that is connected to: the connector asks the policy for
each socket that it opens, with the numeric address. No further look-up happens between that check
and the connection.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from models.egress import EgressPolicy, EgressRefused, FetchTarget
from models.fence import fenced

AddressInfo = tuple[Any, ...]
"""As `getaddrinfo` returns it: family, type, protocol, canonical name, address."""

NO_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=None)
"""For requests whose caller has one time limit for everything."""

_RESOLVER_THREADS = ThreadPoolExecutor(8, thread_name_prefix="lookup")


class ThreadedResolver(AbstractResolver):
    """The system's resolver, on its own threads: slow name servers of strangers must not delay
    look-ups of upstreams."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The numeric addresses of a name. Raises OSError."""
        look_up = partial(
            socket.getaddrinfo,
            host,
            port,
            family=family,
            type=socket.SOCK_STREAM,
            flags=socket.AI_ADDRCONFIG,
        )
        addresses = await asyncio.get_running_loop().run_in_executor(_RESOLVER_THREADS, look_up)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST,
            )
            for kind, _, protocol, _, address in addresses
        ]

    async def close(self) -> None:
        """Does nothing: the threads belong to the process."""


def check_connection(egress: EgressPolicy, host: str, address: str, port: int) -> None:
    """Raises EgressRefused if the policy allows neither the host's name nor this address of it."""
    if not egress.allows_host(host):
        egress.check_address(address, port)


def guarded_session(
    egress: EgressPolicy,
    target: FetchTarget,
    refusals: list[EgressRefused],
    *,
    headers: Mapping[str, str],
    resolver: AbstractResolver | None = None,
) -> aiohttp.ClientSession:
    """A session for one request to this target.

    It keeps no cookies or connections for later requests, uses no proxy from the environment and no
    compression. It opens no socket that the policy refuses; the reasons are added to `refusals`.
    `resolver` replaces the system's, in tests.
    """
    connector = aiohttp.TCPConnector(
        resolver=ThreadedResolver() if resolver is None else resolver,
        use_dns_cache=False,
        force_close=True,
        socket_factory=_guarded_socket_factory(egress, target, refusals),
    )
    return aiohttp.ClientSession(
        connector=connector,
        headers={"accept-encoding": "identity", "user-agent": "backburner", **headers},
        auto_decompress=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
        trace_configs=[fenced()],
    )


def _guarded_socket_factory(
    egress: EgressPolicy, target: FetchTarget, refusals: list[EgressRefused]
) -> Callable[[AddressInfo], socket.socket]:
    def open_socket(info: AddressInfo) -> socket.socket:
        family, kind, protocol, _, address = info
        try:
            check_connection(egress, target.host, address[0], address[1])
        except EgressRefused as refusal:
            refusals.append(refusal)
            raise ConnectionRefusedError("refused by the egress policy") from refusal
        return socket.socket(family, kind, protocol)

    return open_socket
