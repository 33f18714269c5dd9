"""Logging in and out: by a token of the settings, by a key of a project with the scope `console`,
or by a link that is valid once. Inputs and outputs of clients are hidden, until somebody asks to
see them in this session.

The audit log has an entry when a session asks (`console.reveal`), and one for each response whose
page shows them then (`response.reveal`).
"""

import asyncio

from starlette.datastructures import QueryParams
from starlette.responses import HTMLResponse, Response

from features.console.access import (
    EVERYONE,
    LINK,
    OPERATOR_TOKEN,
    READ_ONLY_TOKEN,
    ProjectLogin,
    Role,
    Session,
    delete_reveal_cookie,
    delete_session_cookie,
    derived_token,
    role_of_token,
    set_reveal_cookie,
    set_session_cookie,
)
from features.console.page import Page, Visit
from models.console_links import new_token
from models.db.arrays import Byteas
from models.db.database import execute, fetch_idempotent
from models.db.queries.api_keys import FIND_API_KEYS, TOUCH_API_KEY, ApiKey
from models.db.queries.audit import RECORD, AuditEntry
from models.keys import hash_key
from models.projects.scopes import Scope
from web.http.clients import KeyGuesses

_LOGIN_COOKIE = "backburner-console-login"
"""A random value of the browser from which the token of the login form is derived."""
_PURPOSE = "login"
_GUESSES = KeyGuesses(20)
"""Of this process. They count apart from those of API keys."""
_LOOKUPS = asyncio.Semaphore(2)
"""Links and keys that are looked up at a time: wrong ones take no more of the pool."""
_TOKEN_NAMES = {Role.OPERATOR: OPERATOR_TOKEN, Role.READ_ONLY: READ_ONLY_TOKEN}


def ask(visit: Visit) -> Response:
    """Sends somebody who is not logged in to the login."""
    headers = visit.request.headers
    if "hx-request" in headers:
        return HTMLResponse("", 401, headers={"hx-refresh": "true", "cache-control": "no-store"})
    if visit.request.method == "GET" and headers.get("sec-fetch-site") == "cross-site":
        # A link of another site: the browser sends the cookie only if this page opens the address.
        return visit.page("again.html", address=visit.address)
    return visit.redirect("/login", next=visit.address if visit.path else None)


async def show_login(visit: Visit) -> Response:
    """The form; or, with a link, the login itself."""
    if (link := visit.query.get("link")) is not None:
        return await _log_in_by_link(visit, link)
    return _form(visit)


def _form(visit: Visit, *, status: int = 200, problem: str | None = None) -> Response:
    secret = visit.request.cookies.get(_LOGIN_COOKIE) or new_token()
    page = visit.page(
        "login.html",
        status=status,
        problem=problem,
        form_token=derived_token(secret, _PURPOSE),
        next=visit.query.get("next", ""),
        has_tokens=visit.settings.operator_token is not None
        or visit.settings.read_only_token is not None,
    )
    page.set_cookie(_LOGIN_COOKIE, secret, path=visit.root, httponly=True, samesite="strict")
    return page


async def log_in(visit: Visit) -> Response:
    """Logs in with a token, or with a key of a project."""
    fields = await visit.form(visit.request.cookies.get(_LOGIN_COOKIE, ""), _PURPOSE)
    given = fields.get("token", "").strip()
    role = role_of_token(visit.settings, given)
    if role is not None:
        await open_session(visit, role, _TOKEN_NAMES[role])
        return _logged_in(visit, fields)
    key = await _find_key(visit, given)
    if key is None:
        return await _refuse(visit, "This token is not valid.")
    if Scope.CONSOLE not in key.scopes:
        return await _refuse(visit, "This key has not the scope console: it is for the API.")
    login = ProjectLogin(key.id, key.prefix, key.project_id, key.project)
    await open_session(visit, Role.PROJECT, f"console (key {key.prefix})", login)
    return _logged_in(visit, fields)


async def _find_key(visit: Visit, given: str) -> ApiKey | None:
    """A valid key; None: it is none. Its use is noted."""
    async with _LOOKUPS:
        values = {"hashes": Byteas([hash_key(given)])}
        for key in await fetch_idempotent(visit.pool, FIND_API_KEYS, values):
            await execute(visit.pool, TOUCH_API_KEY, {"id": key.id})
            return key
    return None


def _logged_in(visit: Visit, fields: QueryParams) -> Response:
    """Leads to the page that was wanted."""
    answer = visit.redirect(visit.own_path(fields.get("next", "")))
    set_session_cookie(visit.request, answer, visit.user, visit.root)
    return answer


async def _log_in_by_link(visit: Visit, link: str) -> Response:
    async with _LOOKUPS:
        is_valid = await visit.sessions.use_link(link)
    if not is_valid:
        return await _refuse(
            visit,
            "This link was used, or is older than ten minutes. "
            "`backburner console`, in a checkout `./dev run console`, prints another one.",
        )
    await open_session(visit, Role.OPERATOR, LINK)
    # Not a redirect: if another site has led here, the browser would not send the cookie.
    answer = visit.page("again.html", address=visit.root)
    set_session_cookie(visit.request, answer, visit.user, visit.root)
    return answer


async def _refuse(visit: Visit, problem: str) -> Response:
    """Shows the form again. Who guesses waits longer for it each time."""
    address = visit.request.client.host if visit.request.client else ""
    visit.state.keys.refused.add_unauthenticated(address)
    await _GUESSES.delay(address)
    return _form(visit, status=403, problem=problem)


async def open_session(
    visit: Visit, role: Role, name: str, of_project: ProjectLogin | None = None
) -> Session:
    """The session of somebody who has just logged in. The audit log says so."""
    visit.session = await visit.sessions.open(role, name, of_project)
    await record(visit, "console.login")
    return visit.session


async def log_out(visit: Visit) -> Response:
    """Ends the session."""
    await visit.form(visit.user.token)
    await visit.sessions.end(visit.user)
    await record(visit, "console.logout")
    answer = visit.redirect("/login")
    delete_session_cookie(visit.request, answer, visit.root)
    delete_reveal_cookie(visit.request, answer, visit.root)
    return answer


async def record(visit: Visit, action: str) -> None:
    """Adds an entry about the session to the audit log."""
    entry = AuditEntry(visit.actor, action, details={"role": visit.user.role.value})
    await execute(visit.pool, RECORD, entry.values())


async def reveal(visit: Visit) -> Response:
    """Shows inputs and outputs in this session, and leads back to the page of the form."""
    fields = await visit.form(visit.user.token)
    await record(visit, "console.reveal")
    answer = visit.redirect(visit.own_path(fields.get("next", "")))
    set_reveal_cookie(visit.request, answer, visit.user, visit.root)
    return answer


async def hide(visit: Visit) -> Response:
    """Hides them again."""
    fields = await visit.form(visit.user.token)
    answer = visit.redirect(visit.own_path(fields.get("next", "")))
    delete_reveal_cookie(visit.request, answer, visit.root)
    return answer


_REVEALING = frozenset((Role.OPERATOR, Role.PROJECT))
PAGES = (
    Page("/login", show_login, needs_login=False),
    Page("/login", log_in, method="POST", needs_login=False),
    Page("/logout", log_out, method="POST", roles=EVERYONE),
    Page("/reveal", reveal, method="POST", roles=_REVEALING),
    Page("/hide", hide, method="POST", roles=_REVEALING),
)
