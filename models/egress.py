"""The guard: where this server may connect on behalf of a client (design §9). Judgement only, no I/O.

Whoever fetches asks twice. `inspect` looks at the address as it is written and gives back a plain spelling of it, the only one that may
be used from then on, so that no two parsers can read it differently. `require` looks at each address that is about to be connected to:
at the socket, after every look-up, so a name whose answers change between check and use gains nothing (worker/outbound/download.py).

Only what is public is allowed. That is told by the registries of IANA (special-purpose addresses, IPv4 and IPv6), not by Python's
`is_global`, whose answers change between releases. What a deployment allows besides stands in its settings.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from urllib.parse import quote, urlsplit

from models.config.groups import EgressSettings

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_MAX_URL = 8192
_PORTS = {"http": 80, "https": 443}
_UNPRIVILEGED = 1024
"""Below it only the web's own two ports: the others belong to mail, shells and the like, which can be made to act by a mere request."""

_FORBIDDEN_CHARACTERS = re.compile(r"[\x00-\x20\x7f\\]")
"""Control characters, spaces, backslashes: parsers disagree about them, and no URL needs them."""
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(\.(?!-)[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_SAFE = "%/:=&?~+!$,;'@()*[]"
"""Characters of a path and query that stay as they are."""


class EgressRefused(Exception):
    """The server does not connect there. The message is for the client: it names no address that the client did not write."""


@dataclass(frozen=True, slots=True)
class FetchTarget:
    """A URL that may be asked for, in its plain spelling."""

    url: str
    scheme: str
    host: str
    """Lower case, without brackets and without a closing dot."""
    port: int


class EgressPolicy:
    """The rules of one deployment."""

    def __init__(self, settings: EgressSettings) -> None:
        self._networks: list[Network] = []
        self._names: set[str] = set()
        for entry in settings.allow:
            if (network := _network(entry)) is not None:
                self._networks.append(network)
            else:
                self._names.add(entry.lower().rstrip("."))

    def check_url(self, url: str) -> FetchTarget:
        """The target that `url` names. Raises Refused for what is no plain http(s) URL or names an address that is not allowed."""
        target = _parse_url(url)
        literal = _parse_address(target.host)
        if literal is not None:
            self._check(literal, target.port)
        return target

    def allows_host(self, host: str) -> bool:
        """Whether the deployment allows this name, whatever its address and port."""
        return host in self._names

    def check_address(self, address: str, port: int) -> None:
        """Raises Refused unless a connection to this numeric address may be opened."""
        found = _parse_address(
            address.partition("%")[0]
        )  # a scope such as fe80::1%eth0 changes nothing about the answer
        if found is None:
            raise EgressRefused("its address cannot be read")
        self._check(found, port)

    def _check(self, address: Address, port: int) -> None:
        inner = _embedded_ipv4(address)
        if any(inner.version == network.version and inner in network for network in self._networks):
            return
        if not _is_public(inner):
            raise EgressRefused("its address is not on the public internet")
        if port < _UNPRIVILEGED and port not in _PORTS.values():
            raise EgressRefused(f"port {port} is not allowed")


def _network(entry: str) -> Network | None:
    try:
        return ip_network(entry, strict=False)
    except ValueError:
        return None


# --- the URL as it is written ------------------------------------------------------------------------------------------------


def _parse_url(url: str) -> FetchTarget:
    if len(url) > _MAX_URL:
        raise EgressRefused(f"its address is longer than {_MAX_URL} characters")
    if _FORBIDDEN_CHARACTERS.search(url):
        raise EgressRefused("its address holds a character that no URL may hold")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise EgressRefused("its address is not a valid URL") from None
    if parts.scheme not in _PORTS:
        raise EgressRefused("its address must begin with http:// or https://")
    if "@" in parts.netloc:
        raise EgressRefused("its address must not hold a user name or password")
    port = _PORTS[parts.scheme] if port is None else port
    if port == 0:
        raise EgressRefused("port 0 is not allowed")
    host = _host(parts.hostname or "", bracketed="[" in parts.netloc)
    shown = f"[{host}]" if ":" in host else host
    place = shown if port == _PORTS[parts.scheme] else f"{shown}:{port}"
    query = f"?{quote(parts.query, safe=_SAFE)}" if parts.query else ""
    return FetchTarget(
        f"{parts.scheme}://{place}{quote(parts.path or '/', safe=_SAFE)}{query}",
        parts.scheme,
        host,
        port,
    )


def _host(text: str, *, bracketed: bool) -> str:
    """The host's plain spelling: IPv6, dotted IPv4, or a name in ASCII. Full-width digits and the like become what they look like."""
    if bracketed:
        try:
            return str(IPv6Address(text)) if "%" not in text else _raise_bad_host()
        except ValueError:
            return _raise_bad_host()
    try:
        host = text.encode("idna").decode().lower().removesuffix(".")
    except UnicodeError:
        return _raise_bad_host()
    if len(host) > 253 or not _NAME.fullmatch(host):
        return _raise_bad_host()
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        # ends in a number, so every client takes it for IPv4 (WHATWG URL §3.5): then in decimal, four parts, no leading zero
        try:
            return str(IPv4Address(host))
        except ValueError:
            raise EgressRefused("an IPv4 address must be written as four decimal numbers") from None
    return host


def _raise_bad_host() -> str:
    raise EgressRefused("its host name is not valid")


def _parse_address(host: str) -> Address | None:
    try:
        return IPv6Address(host) if ":" in host else IPv4Address(host)
    except ValueError:
        return None


# --- addresses ---------------------------------------------------------------------------------------------------------------

_NAT64 = IPv6Network("64:ff9b::/96")


def _embedded_ipv4(address: Address) -> Address:
    """The IPv4 address that a connection to this IPv6 address ends at, where there is one; what counts is where it ends."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    # DNS64 gives these for every host without IPv6: where it is in use, they are the public internet
    return IPv4Address(int(address) & 0xFFFF_FFFF) if address in _NAT64 else address


_UNICAST = IPv6Network("2000::/3")
"""What IANA has opened for global unicast; IPv4-compatible, unique local, link-local, site-local and multicast addresses lie outside."""

_SPECIAL: list[Network] = [
    ip_network(block)
    for block in (
        "0.0.0.0/8",  # this network, unspecified
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; Alibaba's metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's wire server: public by its number, internal by its use
        "169.254.0.0/16",  # link-local; most clouds' metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # automatic multicast tunnelling
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
        "2001::/23",  # protocol assignments, Teredo, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: may lead to any IPv4 address
        "2620:4f:8000::/48",  # AS112
        "3fff::/20",  # documentation
    )
]

_ISATAP = 0x00005EFE
"""The middle of an interface id that carries an IPv4 address; with the universal bit set 0x02005efe."""


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address):
        tunnelled = (int(address) >> 32) & 0xFDFF_FFFF == _ISATAP
        if address not in _UNICAST or tunnelled:
            return False
    return not any(address.version == block.version and address in block for block in _SPECIAL)
