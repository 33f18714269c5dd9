"""Users whom a proxy in front of this server has authenticated."""

from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from starlette.requests import Request

from features.console.access import LOGIN_NAMES, Role
from models.config.console import ConsoleSettings

_MAX_NAME = 200
_ANY = "*"


@dataclass(frozen=True, slots=True)
class ProxyUser:
    """A user whom the proxy names. `role`: None: none of the groups has one."""

    name: str
    role: Role | None


def proxy_user(request: Request, settings: ConsoleSettings) -> ProxyUser | None:
    """The user of a request; None if these headers are not configured, or if another sender than a
    trusted proxy has set them."""
    if not settings.user_header or not _is_from_proxy(request, settings):
        return None
    names = request.headers.getlist(settings.user_header)
    if len(names) != 1 or not names[0].strip() or names[0].strip() in LOGIN_NAMES:
        return None
    groups = {_ANY}
    if settings.groups_header:
        for value in request.headers.getlist(settings.groups_header):
            groups.update(group.strip() for group in value.split(",") if group.strip() != _ANY)
    return ProxyUser(names[0].strip()[:_MAX_NAME], _role(groups, settings))


def _role(groups: set[str], settings: ConsoleSettings) -> Role | None:
    if groups & set(settings.operator_groups):
        return Role.OPERATOR
    return Role.READ_ONLY if groups & set(settings.read_only_groups) else None


def _is_from_proxy(request: Request, settings: ConsoleSettings) -> bool:
    """By the address that has opened the connection, which no header can change."""
    try:
        peer = ip_address(request.scope["state"]["peer_address"])
    except (KeyError, ValueError):
        return False
    return any(peer in ip_network(entry, strict=False) for entry in settings.trusted_proxies)
