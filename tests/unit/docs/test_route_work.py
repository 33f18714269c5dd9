"""docs/limits.md, "Work of each route", has each route whose work grows, and `_LIGHT` all others.

So the author of a new route says what it costs, and what bounds that.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from starlette.routing import BaseRoute, WebSocketRoute

from features.console.app import PAGES
from features.console.site import CONSOLE
from models.config.settings import Settings
from web.app import create_app

PAGE = Path(__file__).parents[3] / "docs" / "limits.md"
_ROUTE = re.compile(r"`([A-Z/]+|\*) ((?:…)?[^`\s]+)`")
"""`GET/POST …/files` is two routes."""
_LIGHT = """
GET/POST /v1/conversations/{}
DELETE /v1/conversations/{}/items/{}
GET/DELETE /v1/files/{}
POST /v1/uploads
POST /v1/uploads/{}/cancel
GET /v1/models
GET /v1/models/{}
GET /v1/webhook_event_types
GET/POST /v1/organization/projects/{}/service_accounts
GET/DELETE /v1/organization/projects/{}/service_accounts/{}
POST /v1/organization/projects/{}/service_accounts/{}/api_keys
* /v1/{}
GET /healthz
GET /readyz
GET /
GET /metrics
GET /docs
GET /openapi.json
GET/POST /console/responses/act
GET/POST /console/retry
POST /console/reveal
POST /console/hide
POST /console/webhooks/test
GET/POST /console/webhooks/new
POST /console/responses/filters
POST /console/responses/filters/delete
GET/POST /console/workers/drain
GET/POST /console/projects/keys/revoke
GET/POST /console/projects/new
GET/POST /console/projects/delete
GET/POST /console/projects/{}/edit
GET/POST /console/projects/{}/keys/new
GET/POST /console/webhooks/change
GET/POST /console/webhooks/resend
GET/POST /console/batches/cancel
GET/POST /console/schedules/change
GET/POST /console/code/stop
POST /console/upstreams/check
GET/POST /console/login
POST /console/logout
GET /console/static/{}
* /console/{}
"""
"""Routes without work that grows: a few statements of a few rows, or something that is kept."""
_BELOW = re.compile(r"and below `(…[^`]+)`")
_ANY_METHOD = "*"
_WITHOUT_PARAMETERS = "{}"
_TWICE = {"GET /v1/responses/{}"}
"""With `stream`, and without."""


def _entries() -> list[str]:
    part = PAGE.read_text().partition("\n## Work of each route\n")[2].partition("\n## ")[0]
    return [line for line in part.splitlines() if line.startswith("- ")]


def _listed() -> Iterator[str]:
    for entry in _entries():
        routes = _ROUTE.findall(entry)
        for below in ("…", *_BELOW.findall(entry)):
            for methods, path in routes:
                for method in methods.split("/"):
                    yield f"{method} {path.replace('…', below, 1).replace('…', '/v1')}"


def _light() -> Iterator[str]:
    for line in _LIGHT.split("\n")[1:-1]:
        methods, path = line.split()
        yield from (f"{method} {path}" for method in methods.split("/"))


def _all_routes(routes: Iterable[BaseRoute]) -> Iterator[BaseRoute]:
    """Those of included routers too."""
    for route in routes:
        if hasattr(route, "path"):
            yield route
        else:
            yield from _all_routes(route.original_router.routes)  # type: ignore[attr-defined]


def _served() -> Iterator[str]:
    settings = Settings(database_url="postgresql://unused", redis_url="redis://unused")
    for route in _all_routes(create_app(settings).router.routes):
        path = _without_names(route.path)  # type: ignore[attr-defined]
        methods = set(getattr(route, "methods", None) or ()) - {"HEAD"}
        if isinstance(route, WebSocketRoute):
            methods = {"WS"}
        if not path.startswith(CONSOLE):
            yield from _named(methods, path)
    for page in PAGES:
        yield from _named({page.method}, CONSOLE + _without_names(page.path))


def _named(methods: set[str], path: str) -> Iterator[str]:
    is_other_path = path.endswith(("/v1/{}", f"{CONSOLE}/{{}}"))
    for method in [_ANY_METHOD] if is_other_path else methods:
        yield f"{method} {path}"


def _without_names(path: str) -> str:
    """Usage has a route for each kind; the table has one."""
    path = re.sub(r"\{[^}]*\}", _WITHOUT_PARAMETERS, path)
    return re.sub(r"(/organization/usage)/\w+", r"\1/{}", path)


def test_the_list_has_each_route_once() -> None:
    served, listed = set(_served()), Counter([*_listed(), *_light()])
    assert len(served) > 100
    assert not served - listed.keys(), "add what it costs, and what bounds that"
    assert not listed.keys() - served, "there is no such route"
    assert {route for route, count in listed.items() if count > 1} == _TWICE


def test_each_entry_has_the_work_and_its_bound() -> None:
    assert all(re.fullmatch(r"- `.+`.*?: .+; .+", entry) for entry in _entries())
