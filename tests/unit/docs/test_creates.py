"""docs/wire.md says of every POST whether a repeat makes something twice."""

import re
from pathlib import Path

from fastapi.routing import APIRoute

from tests.support.openapi_document import operations
from web.app import api_routes

PAGE = Path(__file__).parents[3] / "docs" / "wire.md"
_ROW = re.compile(r"^\| (`.*`) \|", re.MULTILINE)


def test_every_post_makes_its_object_once_or_is_in_the_list_of_those_that_make_none() -> None:
    _, _, rest = PAGE.read_text().partition("### Which requests make nothing twice")
    section, _, _ = rest.partition("\n## ")
    creates = {
        name
        for name, operation in operations().items()
        if "Idempotency-Key" in {each["name"] for each in operation["parameters"]}
    }
    without_key = set(re.findall(r"`(/v1/[^`]*|…/[^`]*)`", " ".join(_ROW.findall(section))))
    posts = {
        route.path: route.name
        for route in api_routes()
        if isinstance(route, APIRoute) and "POST" in (route.methods or ())
    }
    unlisted = {path for path, name in posts.items() if name not in creates}
    assert {path for path in unlisted if not any(_names(row, path) for row in without_key)} == set()
    assert {row for row in without_key if not any(_names(row, path) for path in unlisted)} == set()
    assert set(creates) <= set(posts.values())


def _names(row: str, path: str) -> bool:
    """Whether the row of the table names the path; `…` stands for what comes before."""
    return path.endswith(row.removeprefix("…")) if row.startswith("…") else path == row
