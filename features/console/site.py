"""The console, and `/`, which sends browsers to it."""

from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from features.console.mount import CONSOLE, Console, wants_page
from models.config.settings import Settings
from web.http import errors


def routes(settings: Settings, host: str) -> list[BaseRoute]:
    """Those of a process that listens on `host`."""
    console = Console(settings, host)
    return [*console.routes(), Route("/", partial(_root, console, settings))]


async def _root(console: Console, settings: Settings, request: Request) -> Response:
    """Sends browsers to the console; for clients of the API there is nothing."""
    if not (console.is_enabled and wants_page(request)):
        raise errors.unknown_url(request)
    headers = {"vary": "accept", "cache-control": "no-store"}
    return RedirectResponse(f"{settings.console.path_prefix}{CONSOLE}", 303, headers=headers)
