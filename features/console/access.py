"""Who looks at the console: sessions, users whom a proxy names, and what a role may do.

A session is a random token in a cookie and a row with the token's hash. A page that changes
something needs a token of its own, which is derived from the session's, and an origin that is this
server's (docs/console.md).
"""

import hashlib
import hmac
import time
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit
from uuid import UUID

from pydantic import SecretStr
from starlette.requests import Request
from starlette.responses import Response

from models.config.feature_groups import ConsoleSettings
from models.console_links import hash_token, new_token
from models.db.database import Pool, execute, fetch, fetch_idempotent
from models.db.queries import console as statements

_SESSION_COOKIE = "backburner-console"
_REVEAL_COOKIE = "backburner-console-reveal"
_NOTICE_COOKIE = "backburner-console-notice"
_HOST_PREFIX = "__Host-"
"""Browsers accept such a name only for a cookie of https, of exactly this host."""
REVEALED = 3600
"""Seconds for which a session sees inputs and outputs after it has asked for them."""
_MAX_NAME = 200
_ANY_GROUP = "*"
OPERATOR_TOKEN, READ_ONLY_TOKEN, LINK = LOGIN_NAMES = (
    "console (operator token)",
    "console (read-only)",
    "console (one-time link)",
)
"""The names of sessions of the login page. All others are those of users whom a proxy names."""


class Role(StrEnum):
    """What somebody may do."""

    OPERATOR = "operator"
    READ_ONLY = "read_only"
    """sees everything but inputs and outputs, and changes nothing"""
    PROJECT = "project"
    """sees one project, with inputs and outputs, and changes nothing"""


OPERATORS = frozenset((Role.OPERATOR,))
STAFF = frozenset((Role.OPERATOR, Role.READ_ONLY))
EVERYONE = frozenset(Role)


@dataclass(frozen=True, slots=True)
class ProjectLogin:
    """The key that somebody of a project has logged in with."""

    key_id: UUID
    prefix: str
    """the first characters of the key"""
    project_id: UUID
    project: str
    """the name of its project"""


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody who is logged in."""

    token: str
    role: Role
    name: str
    """who it is, for the audit log"""
    of_project: ProjectLogin | None = None
    """of the role PROJECT"""

    @property
    def may_act(self) -> bool:
        """Whether this role may change something."""
        return self.role is Role.OPERATOR

    @property
    def may_reveal(self) -> bool:
        """Whether this role may see inputs and outputs, when it asks for them."""
        return self.role is not Role.READ_ONLY

    @property
    def needs_proxy(self) -> bool:
        """A proxy has named who it is. The session is valid only while the proxy still does."""
        return self.of_project is None and self.name not in LOGIN_NAMES

    @property
    def form_token(self) -> str:
        """The token of the forms of this session."""
        return derived_token(self.token, "form")


def derived_token(token: str, purpose: str) -> str:
    """A token that only somebody who has `token` can make, for one purpose."""
    return hmac.new(token.encode(), purpose.encode(), hashlib.sha256).hexdigest()


def is_token_of(given: str, token: str, purpose: str) -> bool:
    """Whether `given` was derived from `token` for this purpose. In constant time."""
    return hmac.compare_digest(given.encode(), derived_token(token, purpose).encode())


class Sessions:
    """The sessions of this deployment, in the database: they end for all web processes at once."""

    def __init__(self, pool: Pool, lifetime: timedelta) -> None:
        self._pool = pool
        self._lifetime = lifetime

    async def open(self, role: Role, name: str, of_project: ProjectLogin | None = None) -> Session:
        """A new session. `of_project`: of the role PROJECT."""
        session = Session(new_token(), role, name, of_project)
        values = {
            "hash": hash_token(session.token),
            "role": role.value,
            "name": name,
            "api_key": None if of_project is None else of_project.key_id,
            "lifetime": self._lifetime,
        }
        await execute(self._pool, statements.INSERT_SESSION, values)
        return session

    async def find(self, request: Request) -> Session | None:
        """The session of a request's cookie; None if there is none, or if it has ended. That of a
        project ends with its key."""
        token = request.cookies.get(_cookie_name(request, _SESSION_COOKIE))
        if not token:
            return None
        values = {"hash": hash_token(token)}
        for row in await fetch_idempotent(self._pool, statements.FIND_SESSION, values):
            return Session(token, Role(row.role), row.name, _project_login(row))
        return None

    async def end(self, session: Session) -> None:
        """The session is not valid any more."""
        await execute(self._pool, statements.DELETE_SESSION, {"hash": hash_token(session.token)})

    async def use_link(self, token: str) -> bool:
        """Whether a one-time link is valid; then it is not any more."""
        values = {"hash": hash_token(token)}
        return bool(await fetch(self._pool, statements.USE_LINK, values))


def _project_login(row: statements.StoredSession) -> ProjectLogin | None:
    if row.key_id is None or row.prefix is None or row.project_id is None or row.project is None:
        return None
    return ProjectLogin(row.key_id, row.prefix, row.project_id, row.project)


def set_session_cookie(request: Request, response: Response, session: Session, path: str) -> None:
    """Lets the browser keep the session, until it is closed. `path`: of the console; ignored on
    https, where the cookie is bound to the host."""
    _set_cookie(request, response, _SESSION_COOKIE, session.token, path)


def delete_session_cookie(request: Request, response: Response, path: str) -> None:
    """Lets the browser forget the session. `path`: as for `set_session_cookie`."""
    _delete_cookie(request, response, _SESSION_COOKIE, path)


def set_reveal_cookie(request: Request, response: Response, session: Session, path: str) -> None:
    """Lets this session see inputs and outputs for `REVEALED` seconds. Only after the audit log
    has an entry about it. The cookie is made from the session's token, so it is worth nothing
    after the logout. `path`: as for `set_session_cookie`."""
    until = int(time.time()) + REVEALED
    value = f"{until}.{derived_token(session.token, f'reveal {until}')}"
    _set_cookie(request, response, _REVEAL_COOKIE, value, path)


def delete_reveal_cookie(request: Request, response: Response, path: str) -> None:
    """Hides inputs and outputs again. `path`: as for `set_session_cookie`."""
    _delete_cookie(request, response, _REVEAL_COOKIE, path)


def is_revealed(request: Request, session: Session) -> bool:
    """Whether this session sees inputs and outputs now: its role allows it, and it has asked for
    them within `REVEALED` seconds."""
    value = request.cookies.get(_cookie_name(request, _REVEAL_COOKIE), "")
    until, _, seal = value.partition(".")
    if not session.may_reveal or not until.isascii() or not until.isdigit():
        return False
    return int(until) >= time.time() and is_token_of(seal, session.token, f"reveal {until}")


def set_notice_cookie(
    request: Request, response: Response, session: Session, value: str, path: str
) -> None:
    """Lets the next page of this session show a notice (features/console/notice.py). `path`: as for
    `set_session_cookie`."""
    sealed = f"{value}.{derived_token(session.token, f'notice {value}')}"
    _set_cookie(request, response, _NOTICE_COOKIE, sealed, path)


def delete_notice_cookie(request: Request, response: Response, path: str) -> None:
    """The notice is shown. `path`: as for `set_session_cookie`."""
    _delete_cookie(request, response, _NOTICE_COOKIE, path)


def notice_of(request: Request, session: Session) -> str | None:
    """The notice that this session is to be shown; None: there is none."""
    cookie = request.cookies.get(_cookie_name(request, _NOTICE_COOKIE), "")
    value, _, seal = cookie.partition(".")
    return value if value and is_token_of(seal, session.token, f"notice {value}") else None


def _set_cookie(request: Request, response: Response, name: str, value: str, path: str) -> None:
    is_https = _is_https(request)
    response.set_cookie(
        _cookie_name(request, name),
        value,
        path="/" if is_https else path,
        secure=is_https,
        httponly=True,
        samesite="strict",
    )


def _delete_cookie(request: Request, response: Response, name: str, path: str) -> None:
    is_https = _is_https(request)
    response.delete_cookie(
        _cookie_name(request, name),
        path="/" if is_https else path,
        secure=is_https,
        httponly=True,
        samesite="strict",
    )


def _is_https(request: Request) -> bool:
    return request.url.scheme == "https"


def _cookie_name(request: Request, name: str) -> str:
    return f"{_HOST_PREFIX}{name}" if _is_https(request) else name


def role_of_token(settings: ConsoleSettings, given: str) -> Role | None:
    """The role that a token of the settings gives; None if it is neither. In constant time."""
    is_operator = _is_secret(given, settings.operator_token)
    is_read_only = _is_secret(given, settings.read_only_token)
    if is_operator:
        return Role.OPERATOR
    return Role.READ_ONLY if is_read_only else None


def _is_secret(given: str, secret: SecretStr | None) -> bool:
    # The hashes have one length, whatever the length of what was given.
    wanted = hash_token("" if secret is None else secret.get_secret_value())
    return hmac.compare_digest(hash_token(given), wanted) and secret is not None


def is_same_origin(request: Request) -> bool:
    """Whether a page of this server has sent the request, as far as the browser says.

    `Sec-Fetch-Site` cannot be set by a page. Browsers send it on https and to this machine; where
    it is missing, `Origin` has to name the host of the request.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("origin", "")
    return bool(origin) and urlsplit(origin).netloc == request.headers.get("host")


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
    groups = {_ANY_GROUP}
    if settings.groups_header:
        for value in request.headers.getlist(settings.groups_header):
            groups.update(
                group.strip() for group in value.split(",") if group.strip() != _ANY_GROUP
            )
    return ProxyUser(names[0].strip()[:_MAX_NAME], _role_of_groups(groups, settings))


def _role_of_groups(groups: set[str], settings: ConsoleSettings) -> Role | None:
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
