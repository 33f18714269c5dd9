"""The guard: where this server may connect on behalf of a client, and which addresses it hands on
to an upstream. Decides only, without I/O.

Every fetch is checked twice. `check_url` checks the URL as text and returns its normal form, and
only that form may be used, so that no two parsers can read the URL differently. `check_address`
checks each address at the socket, after every DNS lookup, so a name whose address changes between
check and use does not get through (worker/outbound/download.py).

What only an upstream fetches (images) is checked as text (`check_handed_on`), and, where that is
wanted, by what the name means here (`check_handed_on_addresses`). The upstream looks the name up
again, so the second check is weaker than that of a socket.

Only public addresses are allowed, and what the settings allow in addition. The IANA registries of
special-purpose addresses (IPv4 and IPv6) decide what is public. Python's `is_global` does not: its
results change between releases.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from urllib.parse import quote, urlsplit

from models.config.groups import EgressSettings
from models.projects.policy import SERVER_EGRESS, ProjectEgress

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_MAX_URL = 8192
_PORTS = {"http": 80, "https": 443}
_UNPRIVILEGED = 1024
"""Below this port, only the two ports of HTTP are allowed. The others belong to mail, shells and
similar services, which may act on an HTTP request."""

_MAX_PROJECTS = 1_000
"""Projects with rules of their own that are remembered."""
_PRIVATE = "its address is not on the public internet"
NOT_REACHED = "could not be reached, or is not on the public internet"
"""Why there is no connection to a host name. One text for a name that leads nowhere and for one
that leads to an address that is not allowed: two would tell which internal names exist."""
_NOT_LISTED = "its host is not among those that may be reached"
_PRIVATE_DOMAINS = (
    ".localhost",
    ".local",
    ".localdomain",
    ".internal",
    ".intranet",
    ".private",
    ".corp",
    ".home",
    ".lan",
    ".home.arpa",
    ".in-addr.arpa",
    ".ip6.arpa",
    ".svc",
    ".test",
    ".invalid",
    ".onion",
    ".alt",
)
"""Domains that the public name servers do not know: reserved ones (RFC 6761, 6762, 8375, 9476,
ICANN's `.internal`, which has the metadata servers of clouds), and those that private networks
use."""

_FORBIDDEN_CHARACTERS = re.compile(r"[\x00-\x20\x7f\\]")
"""Control characters, spaces, backslashes. Parsers disagree about them, and no URL needs them."""
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(\.(?!-)[a-z0-9_-]{1,63})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_SAFE = "%/:=&?~+!$,;'@()*[]"
"""Characters of a path and query that are not quoted."""


class EgressRefused(Exception):
    """The server does not connect there.

    The message is for the client, and contains no address that the client did not send.
    """


@dataclass(frozen=True, slots=True)
class FetchTarget:
    """A URL that passed the check, in its normal form."""

    url: str
    scheme: str
    host: str
    """In lower case, without brackets and without a dot at the end."""
    port: int


class EgressPolicy:
    """The rules of one deployment, or of one project of it."""

    def __init__(self, settings: EgressSettings, project: ProjectEgress = SERVER_EGRESS) -> None:
        self.settings = settings
        self._allows_public = settings.public if project.public is None else project.public
        self._networks: list[Network] = []
        self._names: set[str] = set()
        self._parents: set[str] = set()
        """`.example.com` for `*.example.com`."""
        for entry in settings.allow if project.allow is None else project.allow:
            name = entry.lower().rstrip(".")
            if (network := _network(entry)) is not None:
                self._networks.append(network)
            elif name.startswith("*."):
                self._parents.add(name[1:])
            else:
                self._names.add(name)
        self._of_projects: dict[ProjectEgress, EgressPolicy] = {}

    def of_project(self, project: ProjectEgress) -> "EgressPolicy":
        """The rules of a project of this deployment."""
        if project == SERVER_EGRESS:
            return self
        policy = self._of_projects.get(project)
        if policy is None:
            if len(self._of_projects) >= _MAX_PROJECTS:
                self._of_projects.clear()
            policy = self._of_projects[project] = EgressPolicy(self.settings, project)
        return policy

    def check_url(self, url: str) -> FetchTarget:
        """The normal form of a URL.

        Raises EgressRefused if it is not a plain http(s) URL, or if its host is an address that is
        not allowed, or a name that cannot lead to an allowed address.
        """
        target = _parse_url(url)
        literal = _parse_address(target.host)
        if literal is not None:
            self._check(literal, target.port)
        elif not (self._allows_public or self._networks or self.allows_host(target.host)):
            raise EgressRefused(_NOT_LISTED)
        return target

    def check_handed_on(self, url: str) -> FetchTarget:
        """As `check_url`, for a URL that only an upstream fetches: raises EgressRefused for names
        that are never on the public internet too, unless they may mean an allowed network."""
        target = self.check_url(url)
        if self._is_private(target) and not self._networks:
            raise EgressRefused(_PRIVATE)
        return target

    def check_handed_on_addresses(self, target: FetchTarget, addresses: Iterable[str]) -> None:
        """Raises EgressRefused if one of the addresses to which this server resolves the name is
        not allowed. Without any address a name is refused only if it is never a public one, or if
        public ones are not allowed."""
        if _parse_address(target.host) is not None or self.allows_host(target.host):
            return
        has_address = False
        for address in addresses:
            has_address = True
            self.check_address(address, target.port)
        if not has_address and (self._is_private(target) or not self._allows_public):
            raise EgressRefused(_PRIVATE if self._is_private(target) else _NOT_LISTED)

    def allows_host(self, host: str) -> bool:
        """Whether this name is listed, so that it is allowed with any address and port."""
        return host in self._names or any(host.endswith(parent) for parent in self._parents)

    def check_address(self, address: str, port: int) -> None:
        """Raises EgressRefused unless a connection to this numeric address is allowed."""
        without_scope = address.partition("%")[0]  # of an address such as fe80::1%eth0
        parsed = _parse_address(without_scope)
        if parsed is None:
            raise EgressRefused("its address cannot be read")
        self._check(parsed, port)

    def _is_private(self, target: FetchTarget) -> bool:
        """Whether the host is a name without a meaning on the public internet, and not listed."""
        host = target.host
        return (
            _parse_address(host) is None
            and not self.allows_host(host)
            and ("." not in host or host.endswith(_PRIVATE_DOMAINS))
        )

    def _check(self, address: Address, port: int) -> None:
        inner = _embedded_ipv4(address)
        if any(inner.version == network.version and inner in network for network in self._networks):
            return
        if not _is_public(inner):
            raise EgressRefused(_PRIVATE)
        if not self._allows_public:
            raise EgressRefused(_NOT_LISTED)
        if port < _UNPRIVILEGED and port not in _PORTS.values():
            raise EgressRefused(f"port {port} is not allowed")


def _network(entry: str) -> Network | None:
    try:
        return ip_network(entry, strict=False)
    except ValueError:
        return None


# --- the URL as text ------------------------------------------------------------------------------


def _parse_url(url: str) -> FetchTarget:
    if len(url) > _MAX_URL:
        raise EgressRefused(f"its address is longer than {_MAX_URL} characters")
    if _FORBIDDEN_CHARACTERS.search(url):
        raise EgressRefused("its address contains a character that is not allowed in a URL")
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
    """The normal form of a host: IPv6, dotted IPv4, or a name in ASCII.

    Full-width digits and similar characters become the ASCII characters that they look like.
    """
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
        # Every client reads a host that ends in a number as IPv4 (WHATWG URL, "host parsing"). Only
        # four decimal numbers without leading zeros are accepted.
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


# --- addresses ------------------------------------------------------------------------------------

_NAT64 = IPv6Network("64:ff9b::/96")


def _embedded_ipv4(address: Address) -> Address:
    """The IPv4 address that a connection to this IPv6 address reaches, if it has one in it."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    # With DNS64, every host without IPv6 has such an address, so public hosts have them too.
    return IPv4Address(int(address) & 0xFFFF_FFFF) if address in _NAT64 else address


_UNICAST = IPv6Network("2000::/3")
"""The range for global unicast. IPv4-compatible, unique local, link-local, site-local and multicast
addresses are outside of it."""

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
"""The first half of an interface id that has an IPv4 address in the second half. With the universal
bit it is 0x02005efe."""


def _is_public(address: Address) -> bool:
    if isinstance(address, IPv6Address):
        tunnelled = (int(address) >> 32) & 0xFDFF_FFFF == _ISATAP
        if address not in _UNICAST or tunnelled:
            return False
    return not any(address.version == block.version and address in block for block in _SPECIAL)
