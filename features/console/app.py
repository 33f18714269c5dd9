"""The application of the console: its routes, its errors, and who may call them."""

from dataclasses import dataclass

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from features.console import (
    actions,
    activity,
    content,
    login,
    overview,
    response,
    responses,
    static_files,
    tail,
    upstreams,
    workers,
)
from features.console.access import Session, Sessions, set_session_cookie
from features.console.errors import PageError
from features.console.mount import CONSOLE
from features.console.page import Page
from features.console.single_sign_on import proxy_user
from features.console.visit import Visit
from models.db.database import DATABASE_UNAVAILABLE
from models.errors import ApiError
from models.features import feature_parts
from web.http.own_host import require_own_host
from web.http.request_record import request_record
from web.state import app_state

logger = structlog.get_logger()


async def _no_such_page(_visit: Visit) -> Response:
    raise PageError(404, "No such page", "There is no page at this address.")


PAGES: tuple[Page, ...] = (
    *overview.PAGES,
    *activity.PAGES,
    *responses.PAGES,
    *actions.PAGES,
    *content.PAGES,
    *tail.PAGES,
    *response.PAGES,
    *workers.PAGES,
    *upstreams.PAGES,
    *login.PAGES,
    *static_files.PAGES,
    *(page for part in feature_parts("pages") for page in part.PAGES),
    Page("/{rest:path}", _no_such_page),
)


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
        visit = Visit(request, None, self.page.path)
        try:
            require_own_host(request, app_state(request).settings.allowed_hosts)
            return await self._respond(visit)
        except Exception as error:  # noqa: BLE001  (every error becomes a page)
            return _error_page(visit, error)

    async def _respond(self, visit: Visit) -> Response:
        if not self.page.needs_login:
            return await self.page.respond(visit)
        sessions = Sessions(visit.pool, visit.settings.session_time)
        session = await sessions.find(visit.request)
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
        if self.page.method == "POST" and not self.page.is_for_all:
            visit.require_operator()
        return await self.page.respond(visit)


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
