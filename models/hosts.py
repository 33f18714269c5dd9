"""The kind of address that a process listens on."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to `host`, a name or an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
