"""What pages of the console are made of: their addresses, the request for one, lists, and questions
before a change.

A feature has its pages in `features/<feature>/pages.py` and their templates in
`features/<feature>/templates/` (docs/console.md).
"""

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar
from urllib.parse import urlencode
from uuid import UUID

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from features.console.access import (
    OPERATORS,
    STAFF,
    Role,
    Session,
    Sessions,
    delete_notice_cookie,
    is_revealed,
    is_same_origin,
    is_token_of,
    notice_of,
    set_notice_cookie,
)
from features.console.notice import Notice
from features.console.site import CONSOLE
from features.console.templates import render
from features.operator.diagnosis import PROCESS_TEXT
from features.operator.filter import LAST_ID
from models.config.feature_groups import ConsoleSettings
from models.db.database import Connection, Pool, fetch_idempotent
from models.db.queries.audit import Actor, ActorKind
from models.db.queries.organization import FIND_PROJECTS
from models.db.statement import Query
from web.http.request_record import request_record
from web.state import AppState, app_state

RowT = TypeVar("RowT")

PAGE_SIZE = 50
"""Rows of a page of a list."""
PROJECT_PAGE = "/project"
"""Where the console begins for somebody of a project (features/tenants/project_pages.py)."""
_MAX_FIELD = 200
"""Characters of a filter."""
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


class PageError(Exception):
    """A page that says what is wrong."""

    def __init__(self, status: int, title: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.title = title
        self.message = message


def not_found(what: str) -> PageError:
    """The page about something that does not exist."""
    return PageError(404, f"No such {what}", f"There is no {what} of this id. It may be deleted.")


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong, in one sentence: for the overview."""

    text: str
    link: str | None = None
    """below the console"""
    is_note: bool = False
    """It may be intended."""


@dataclass(frozen=True, slots=True)
class Page:
    """One route, and the function that answers."""

    path: str
    """below the console; empty: the console itself"""
    respond: "Callable[[Visit], Awaitable[Response]]"
    method: str = "GET"
    needs_login: bool = True
    roles: Collection[Role] | None = None
    """who may use it; None: STAFF, and for a POST only OPERATORS.

    A page that is also for PROJECT is a list whose query has the parameter `project` (`Visit.query`
    has that of the login), or it is about one thing whose project it gives to `Visit.owns`.
    """
    menu: str | None = None
    """its name in the menu; None: it is not there"""
    is_by_project: bool = False
    """It is a list, and its parameter `project` names the project whose rows it shows. The page of
    a project has a link to it."""

    @property
    def allowed(self) -> Collection[Role]:
        """The roles that may use it."""
        if self.roles is not None:
            return self.roles
        return STAFF if self.method == "GET" else OPERATORS


@dataclass
class Visit:
    """A request for a page, and its session."""

    request: Request
    session: Session | None
    """None: nobody is logged in; only the pages of the login are shown then"""
    path: str
    """the template of its path, for the menu"""
    menu: Sequence[Page] = ()
    """the pages in the menu"""
    has_compared: bool = False
    """The page has found that what it shows belongs to the project of the login (`owns`)."""

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
    def sessions(self) -> Sessions:
        """The sessions of this deployment."""
        return Sessions(self.pool, self.settings.session_time)

    @property
    def query(self) -> QueryParams:
        """The parameters of the URL. For somebody of a project, `project` is always the name of
        that one, so no list has rows of another."""
        given = self.request.query_params
        login = None if self.session is None else self.session.of_project
        if login is None:
            return given
        others = [(name, value) for name, value in given.multi_items() if name != "project"]
        return QueryParams([*others, ("project", login.project)])

    def owns(self, project: UUID | str) -> bool:
        """Whether the user may see something of this project, given by its id or name. If not,
        the page answers as if there was no such thing.

        For somebody of a project, a page about one thing is not shown unless it has asked.
        """
        login = self.user.of_project
        if login is not None and project not in (login.project_id, login.project):
            return False
        self.has_compared = True
        return True

    def text(self, name: str) -> str | None:
        """A filter of the URL; None if it is not set."""
        return self.query.get(name, "").strip()[:_MAX_FIELD] or None

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
        if (login := self.user.of_project) is not None:
            return Actor(
                ActorKind.KEY,
                key_id=login.key_id,
                key_prefix=login.prefix,
                project=login.project,
                address=client.host if client else None,
                request_id=request_record(self.request).id,
            )
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
        the first page of a list, unless a position is among them."""
        names = changes.keys() | {"before", "after"}
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

    def own_path(self, address: str) -> str:
        """The path below the console, and the parameters, of an address of a form; empty, the
        overview, for an address that leads elsewhere."""
        below = address.removeprefix(self.root)
        is_ours = address.startswith(self.root) and below[:1] in ("", "/", "?")
        has_trick = any(mark in address for mark in ("\\", "\r", "\n", "//"))
        return below if is_ours and not has_trick else ""

    def has_page(self, path: str) -> bool:
        """Whether a page is there: those of a feature that is not there are not. `path`: of a page
        in the menu."""
        return any(page.path == path for page in self.menu)

    def page(self, template: str, *, status: int = 200, **values: object) -> Response:
        """The page that a template makes of these values."""
        html = render(template, visit=self, **values)
        answer = HTMLResponse(html, status_code=status, headers=HEADERS)
        if self.notice is not None:
            delete_notice_cookie(self.request, answer, self.root)
        return answer

    @cached_property
    def notice(self) -> Notice | None:
        """What the action before has done, for this page to show once. A refresh takes only a part
        of a page, which has no notice."""
        if self.session is None or "hx-request" in self.request.headers:
            return None
        value = notice_of(self.request, self.session)
        return None if value is None else Notice.from_cookie(value)

    def redirect(self, path: str = "", **parameters: object) -> Response:
        """Sends the browser to another page of the console, with a GET."""
        return RedirectResponse(self.url(path, **parameters), 303, headers=HEADERS)

    def done(self, path: str, notice: Notice) -> Response:
        """Sends the browser to a page of the console, which shows the notice. `path`: below the
        console, with its parameters."""
        answer = RedirectResponse(f"{self.root}{path}", 303, headers=HEADERS)
        set_notice_cookie(self.request, answer, self.user, notice.to_cookie(), self.root)
        return answer

    def shown(self, text: str) -> str:
        """A text with URLs and processes in it. Who only looks does not see what is behind the
        hosts of URLs: it may be a secret, as in the address of a webhook. Somebody of a project
        does not see where processes run."""
        if self.user.of_project is not None:
            text = PROCESS_TEXT.sub(r"\1", text)
        return text if self.user.may_act else _URL.sub(_without_path, text)

    @cached_property
    def may_read(self) -> bool:
        """Whether inputs and outputs are shown: the role allows it, and they were asked for in this
        session (features/console/login.py). A page that shows those of one response also
        records it (`record_reveal` in features/operator/service.py)."""
        return is_revealed(self.request, self.user)

    def require_operator(self) -> None:
        """Raises PageError (403) for somebody who only looks."""
        if self.user.role is not Role.OPERATOR:
            raise PageError(403, "Not allowed", "Your login only allows you to look.")

    async def form(self, token: str, purpose: str = "form") -> QueryParams:
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
        fields = QueryParams(body.decode(errors="replace"))
        if not token or not is_token_of(fields.get("form_token", ""), token, purpose):
            raise PageError(
                403, "The form is too old", "Load the page again, and repeat what you did."
            )
        return fields


def _without_path(url: re.Match[str]) -> str:
    host = re.split(r"[/?#\\]", url[2], maxsplit=1)[0]
    shown = host.rpartition("@")[2]
    return f"{url[1]}{shown}{'' if url[2] == shown else '/…'}"


def back_path(visit: Visit, fields: QueryParams, default: str) -> str:
    """Where an action leads to: the page that it comes from, with its filter, if the field `back`
    has its address. The path is below the console, with its parameters."""
    return visit.own_path(fields.get("back", "")) or default


def choice(fields: QueryParams, name: str, among: Collection[str], default: str = "") -> str:
    """A parameter that has one of a few values. Raises PageError (400) for another value, and if it
    is not set and has no default."""
    value = fields.get(name) or default
    if value not in among:
        raise PageError(400, f"No such {name}", f"There are {', '.join(among)}.")
    return value


async def project_of(visit: Visit, name: str) -> UUID | None:
    """The project with this name; None: there is none."""
    rows = await fetch_idempotent(visit.pool, FIND_PROJECTS, {"name": name, "digits": None})
    return rows[0].id if rows else None


@dataclass(frozen=True, slots=True)
class Listed(Generic[RowT]):
    """A page of a list whose rows have ids that grow with time."""

    rows: list[tuple[str, RowT]]
    """each with its public id"""
    is_first: bool
    next: str | None
    """the position of the next page, the id of the last row; None: this is the last page"""


async def read_list(
    visit: Visit,
    query: Query[RowT],
    values: Mapping[str, object],
    public_id: Callable[[RowT], str],
    parse: Callable[[str], UUID | None],
    position: str = "before",
) -> Listed[RowT]:
    """The page of a list that the URL wants.

    `query` has the parameters `max_rows`, and `before` or `after`: the id of the last row of the
    page before; at the start LAST_ID or null. `public_id`: of a row; `parse` is its reverse.
    `position`: the parameter of the URL. Raises PageError (400) for a text that is no id.
    """
    text, at = visit.query.get(position), None
    if text is not None and (at := parse(text)) is None:
        raise PageError(400, "No such page", "The position of this page is no id.")
    limits = {"after": at, "before": at or LAST_ID, "max_rows": PAGE_SIZE + 1}
    found = await fetch_idempotent(visit.pool, query, {**values, **limits})
    rows = [(public_id(row), row) for row in found[:PAGE_SIZE]]
    return Listed(rows, text is None, rows[-1][0] if len(found) > PAGE_SIZE else None)


@dataclass(frozen=True, slots=True)
class Made:
    """Something new that a change has made."""

    path: str
    """of its page, below the console"""
    notice: str


@dataclass(frozen=True, slots=True)
class Change:
    """A change, and what a person reads before it is made."""

    title: str
    """a question"""
    meaning: str
    """what will happen"""
    label: str
    """of the button"""
    back: str
    """below the console: where it comes from, and leads to"""
    make: Callable[[Connection], Awaitable[object]]
    """in a transaction of this connection; may return a Made, to lead elsewhere than back"""
    done: str = ""
    """what the page after it says; empty: the label"""
    is_harmless: bool = False
    facts: Sequence[tuple[str, str]] = ()
    """what it is about, by name"""


def confirmed(
    path: str, read: Callable[[Visit, QueryParams], Awaitable[Change]]
) -> tuple[Page, Page]:
    """The two pages of a change: one that asks, one that makes it. `read`: the change that the
    parameters name. The form has the parameters of the URL, so what is made is what was shown."""

    async def ask(visit: Visit) -> Response:
        visit.require_operator()
        return visit.page("confirm_change.html", change=await read(visit, visit.query), path=path)

    async def make(visit: Visit) -> Response:
        fields = await visit.form(visit.user.token)
        change = await read(visit, fields)
        async with visit.pool.connection() as connection:
            made = await change.make(connection)
        if isinstance(made, Made):
            return visit.done(made.path, Notice(made.notice))
        notice = Notice(change.done or f"Done: {change.label}.")
        return visit.done(back_path(visit, fields, change.back), notice)

    return Page(path, ask), Page(path, make, method="POST")
