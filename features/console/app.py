"""The application of the console: its pages and static files, its errors, and who may call.

A role sees the pages that name it (`Page.roles`); the role of a project none that does not.
"""

from dataclasses import dataclass

import structlog
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route, Router

from features.console import (
    activity,
    audit,
    capacity,
    compare,
    content,
    login,
    overview,
    response,
    responses,
    saved_filters,
    tail,
)
from features.console.access import Session, proxy_user, set_session_cookie
from features.console.page import PROJECT_PAGE, Page, PageError, Visit
from features.console.site import CONSOLE
from features.console.templates import STATIC, static_hash
from models.db.connection import ACTING_PROJECT
from models.db.database import DATABASE_UNAVAILABLE
from models.errors import ApiError
from models.features import feature_parts
from web.http.browsers import require_own_host
from web.http.request_record import request_record
from web.state import app_state

logger = structlog.get_logger()

_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_STATIC_FILES = {
    file.name: _MEDIA_TYPES[file.suffix] for file in STATIC.iterdir() if file.suffix in _MEDIA_TYPES
}
_FOREVER = "public, max-age=31536000, immutable"
_SHORT = "public, max-age=60"


async def _static_file(visit: Visit) -> Response:
    """A script, the style sheet or the icon. If the address has its hash, browsers keep it for
    ever."""
    name = visit.request.path_params["name"]
    if name not in _STATIC_FILES:
        raise PageError(404, "No such file", "There is no file at this address.")
    is_named_by_hash = visit.query.get("v") == static_hash(name)
    return FileResponse(
        STATIC / name,
        media_type=_STATIC_FILES[name],
        headers={
            "cache-control": _FOREVER if is_named_by_hash else _SHORT,
            "x-content-type-options": "nosniff",
        },
    )


def _no_page() -> PageError:
    return PageError(404, "No such page", "There is no page at this address.")


async def _no_such_page(_visit: Visit) -> Response:
    raise _no_page()


PAGES: tuple[Page, ...] = (
    *overview.PAGES,
    *activity.PAGES,
    *responses.PAGES,
    *saved_filters.PAGES,
    *tail.PAGES,
    *compare.PAGES,
    *content.PAGES,
    *response.PAGES,
    *capacity.PAGES,
    *login.PAGES,
    Page("/static/{name}", _static_file, needs_login=False),
    *(page for part in feature_parts("pages") for page in part.PAGES),
    *audit.PAGES,
    Page("/{rest:path}", _no_such_page),
)
MENU = tuple(page for page in PAGES if page.menu is not None)


def create_app() -> Router:
    """The application. Its paths begin with `/console`."""
    routes = [
        Route(f"{CONSOLE}{page.path}", _Endpoint(page).respond, methods=[page.method])
        for page in PAGES
    ]
    return Router(routes, redirect_slashes=False)


@dataclass(frozen=True, slots=True)
class _Endpoint:
    page: Page

    async def respond(self, request: Request) -> Response:
        """The answer, or the page that says what is wrong."""
        request_record(request).direct_route = f"{CONSOLE}{self.page.path}"
        visit = Visit(request, None, self.page.path, MENU)
        try:
            require_own_host(request, app_state(request).settings.allowed_hosts)
            return await self._respond(visit)
        except Exception as error:  # noqa: BLE001  (every error becomes a page)
            return _error_page(visit, error)

    async def _respond(self, visit: Visit) -> Response:
        if not self.page.needs_login:
            return await self.page.respond(visit)
        session = await visit.sessions.find(visit.request)
        user = proxy_user(visit.request, visit.settings)
        if user is None:
            if session is None or session.needs_proxy:
                return login.ask(visit)
            return await self._respond_to(visit, session)
        if user.role is None:
            raise PageError(403, "No access", f"No group of {user.name} has access to the console.")
        if session is not None and (session.name, session.role) == (user.name, user.role):
            return await self._respond_to(visit, session)
        session = await login.open_session(visit, user.role, user.name)
        answer = await self._respond_to(visit, session)
        set_session_cookie(visit.request, answer, session, visit.root)
        return answer

    async def _respond_to(self, visit: Visit, session: Session) -> Response:
        visit.session = session
        trust_connection = visit.request.scope.get("state", {}).get("trust_connection")
        if trust_connection is not None:
            trust_connection()
        own_first = sorted(MENU, key=lambda page: page.path != PROJECT_PAGE)
        visit.menu = [page for page in own_first if session.role in page.allowed]
        if session.of_project is not None and not self.page.path.strip("/"):
            return visit.redirect(PROJECT_PAGE)
        if session.role not in self.page.allowed:
            raise _refused(session)
        if session.of_project is None:
            return await self.page.respond(visit)
        ACTING_PROJECT.set(session.of_project.project_id)
        answer = await self.page.respond(visit)
        if "{" in self.page.path and not visit.has_compared:
            logger.error("console_page_without_project", page=self.page.path)
            raise _no_page()
        return answer


def _refused(session: Session) -> PageError:
    """For a page that the role does not have. Somebody of a project does not learn that there is
    one."""
    if session.of_project is not None:
        return _no_page()
    return PageError(403, "Not allowed", "Your login only allows you to look.")


def _error_page(visit: Visit, error: Exception) -> Response:
    title, status, message = _described(visit, error)
    request_record(visit.request).note_error_code(f"console_{status}")
    headers = error.headers if isinstance(error, ApiError) else {}
    page = visit.page(
        "error.html",
        status=status,
        title=title,
        message=message,
        request_id=request_record(visit.request).id,
    )
    page.headers.update(headers)
    return page


def _described(visit: Visit, error: Exception) -> tuple[str, int, str]:
    """The title of the page, its status and its message."""
    if isinstance(error, PageError):
        return error.title, error.status, error.message
    if isinstance(error, ApiError):
        return "Not possible", error.status, error.message
    if isinstance(error, DATABASE_UNAVAILABLE):
        logger.warning("database_unavailable", error=str(error).strip())
        message = "The console reads everything from there. Load the page again in some seconds."
        return "PostgreSQL does not answer", 503, message
    logger.error("console_failed", path=visit.request.url.path, exc_info=error)
    return "An error of this server", 500, "The log of this web process says what happened."
