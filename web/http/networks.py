"""Whom connections and guesses of keys are counted for."""

from ipaddress import IPv6Address, IPv6Network

_SUBNET = 64
"""Bits of the network of an IPv6 client. It has all addresses in it."""


def client_network(address: str) -> str:
    """What an address counts as: an IPv4 address as itself, an IPv6 address as its /64 network. Any
    other text, such as the name of a socket, is itself."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address)
    except ValueError:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(IPv6Network((int(parsed), _SUBNET), strict=False))
