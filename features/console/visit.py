"""One request for a page of the console: who asks, and how it is answered."""

import re
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from features.console.access import Role, Session, is_same_origin, is_token_of
from features.console.errors import PageError
from features.console.mount import CONSOLE
from features.console.templates import render
from models.config.console import ConsoleSettings
from models.db.database import Pool
from models.db.queries.audit import Actor, ActorKind
from web.http.request_record import request_record
from web.state import AppState, app_state

_MAX_FORM = 64 * 1024
"""Bytes of a form."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "cache-control": "no-store",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Of every page."""


_URL = re.compile(r"(https?://)(\S*?)(?=['\")]?[.,:;]*(?:\s|$))", re.IGNORECASE)


def _without_path(url: re.Match[str]) -> str:
    host = re.split(r"[/?#\\]", url[2], maxsplit=1)[0]
    shown = host.rpartition("@")[2]
    return f"{url[1]}{shown}{'' if url[2] == shown else '/…'}"


@dataclass
class Visit:
    """A request and its session."""

    request: Request
    session: Session | None
    """None: nobody is logged in; only the pages of the login are shown then"""
    path: str
    """the template of its path, for the menu"""

    @cached_property
    def state(self) -> AppState:
        """The state of this process."""
        return app_state(self.request)

    @property
    def pool(self) -> Pool:
        """The connections to Postgres."""
        return self.state.pool

    @property
    def settings(self) -> ConsoleSettings:
        """The settings of the console."""
        return self.state.settings.console

    @property
    def query(self) -> QueryParams:
        """The parameters of the URL."""
        return self.request.query_params

    @property
    def root(self) -> str:
        """The path of the console as the browser knows it."""
        return f"{self.settings.path_prefix}{CONSOLE}"

    @property
    def user(self) -> Session:
        """Who is logged in. Only for pages that need it."""
        assert self.session is not None
        return self.session

    @property
    def actor(self) -> Actor:
        """Who is logged in, for the audit log."""
        client = self.request.client
        return Actor(
            ActorKind.OPERATOR,
            os_user=self.user.name,
            address=client.host if client else None,
            request_id=request_record(self.request).id,
        )

    def url(self, path: str = "", **parameters: object) -> str:
        """The address of a page of the console. `path`: below the console. Parameters that are None
        or empty are left out."""
        given = [(name, value) for name, value in parameters.items() if value not in (None, "")]
        return f"{self.root}{path}{'?' if given else ''}{urlencode(given, doseq=True)}"

    def changed(self, **changes: object) -> str:
        """The address of this page with other parameters; None or an empty text removes one. It is
        the first page of a list."""
        names = changes.keys() | {"before"}
        kept = [(name, value) for name, value in self.query.multi_items() if name not in names]
        for name, value in changes.items():
            values = value if isinstance(value, list) else [value]
            kept += [(name, str(each)) for each in values if each not in (None, "")]
        path = self.request.url.path
        return f"{self.settings.path_prefix}{path}{'?' if kept else ''}{urlencode(kept)}"

    @property
    def address(self) -> str:
        """The address of this page, as the browser knows it."""
        url = self.request.url
        return f"{self.settings.path_prefix}{url.path}{'?' if url.query else ''}{url.query}"

    def page(self, template: str, *, status: int = 200, **values: object) -> Response:
        """The page that a template makes of these values."""
        html = render(template, visit=self, **values)
        return HTMLResponse(html, status_code=status, headers=HEADERS)

    def redirect(self, path: str = "", **parameters: object) -> Response:
        """Sends the browser to another page of the console, with a GET."""
        return RedirectResponse(self.url(path, **parameters), 303, headers=HEADERS)

    def shown(self, text: str) -> str:
        """A text with URLs in it. Who only looks does not see what is behind their hosts: it may be
        a secret, as in the address of a webhook."""
        return text if self.user.may_act else _URL.sub(_without_path, text)

    def require_operator(self) -> None:
        """Raises PageError (403) for somebody who only looks."""
        if self.user.role is not Role.OPERATOR:
            raise PageError(403, "Not allowed", "Your login only allows you to look.")

    async def form(self, token: str, purpose: str = "form") -> dict[str, list[str]]:
        """The fields of a form that a page of this server has sent. `token`, `purpose`: of which
        its field `form_token` must be derived. Raises PageError (403, 413)."""
        if not is_same_origin(self.request):
            raise PageError(
                403,
                "Not sent from this console",
                "The browser says that another site has sent this form. Behind a proxy, the "
                "header Host must be passed on unchanged.",
            )
        body = bytearray()
        async for chunk in self.request.stream():
            body += chunk
            if len(body) > _MAX_FORM:
                raise PageError(413, "Too large", "The form is too large.")
        fields: dict[str, list[str]] = {}
        for name, value in parse_qsl(body.decode(errors="replace"), keep_blank_values=True):
            fields.setdefault(name, []).append(value)
        given = fields.get("form_token", [""])[0]
        if not token or not is_token_of(given, token, purpose):
            raise PageError(
                403, "The form is too old", "Load the page again, and repeat what you did."
            )
        return fields
