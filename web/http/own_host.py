"""Pages that need no API key: a browser may only open them under a name of this server."""

from collections.abc import Collection

from starlette.requests import HTTPConnection

from models.errors import HostNotAllowed
from models.hosts import is_own_host


def require_own_host(connection: HTTPConnection, allowed: Collection[str]) -> None:
    """Raises HostNotAllowed if the request names another host. `allowed`: the setting
    `allowed_hosts`."""
    if not is_own_host(connection.headers.get("host"), allowed):
        raise HostNotAllowed
