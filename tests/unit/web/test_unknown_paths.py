"""No path of OpenAI's API is a bare 404: each has a route, or a sentence on what to use."""

import re
from pathlib import Path

import openai
from starlette.routing import Match

from web.app import api_routes
from web.http.unknown_paths import path_hint

RESOURCES = Path(openai.__file__).parent / "resources"
_PATH = re.compile(r'"(/[a-z_]+(?:/[a-z_{}]+)*)(?:\?[a-z=]+)?"')
ROUTES = list(api_routes())


def paths() -> list[str]:
    """Every path that the installed official client calls."""
    found = {
        path.removeprefix("/v1")
        for file in RESOURCES.rglob("*.py")
        for path in _PATH.findall(file.read_text())
    }
    return sorted(found)


def has_route(path: str) -> bool:
    """Whether a route matches, with any method."""
    scope = {"type": "http", "method": "GET", "path": f"/v1{path}", "headers": []}
    return any(route.matches(scope)[0] is not Match.NONE for route in ROUTES)


def test_the_list_of_paths_is_that_of_the_official_client() -> None:
    assert {"/assistants", "/chat/completions/{completion_id}", "/embeddings"} < set(paths())
    assert len(paths()) > 150


def test_a_path_of_openai_has_a_route_or_says_what_to_use() -> None:
    hints = {path: path_hint(f"/v1{path}", ()) for path in paths() if not has_route(path)}
    begin = " This server does not offer this API: "
    assert [path for path, hint in hints.items() if not hint.startswith(begin)] == []
    assert len(hints) > 100
