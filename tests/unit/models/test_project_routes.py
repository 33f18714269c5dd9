"""Routes of projects: what is accepted, kept and found."""

from typing import Any

import pytest
from structlog.testing import capture_logs

from models.config.settings import Settings
from models.ids import new_uuid
from models.projects.changes import BadPolicy, changed_policy
from models.projects.policy import ProjectPolicy
from models.projects.routes import ProjectRoutes

UPSTREAMS = {name: {"base_url": f"http://{name}.example/v1"} for name in ("a", "b", "own")}


def _settings() -> Settings:
    return Settings.model_validate(
        {
            "database_url": "postgresql://x",
            "redis_url": "redis://x",
            "upstreams": UPSTREAMS,
            "routes": {"*": "a"},
        }
    )


def _names(routes: ProjectRoutes, policy: dict[str, Any], model: str) -> list[tuple[str, str]]:
    own = ProjectPolicy.from_json(policy).routes
    found = routes.of(new_uuid(), own).find(model)
    return [(destination.upstream.name, destination.model) for destination in found]


def test_a_patch_changes_single_routes_and_they_are_kept_as_an_operator_writes_them() -> None:
    stored = changed_policy({}, {"routes": {"x-*": "own", "y": {"upstream": "b", "model": "z"}}})
    assert stored == {"routes": {"x-*": ["own"], "y": [{"upstream": "b", "model": "z"}]}}
    patched = changed_policy(stored, {"routes": {"y": None, "*": ["own", "b"]}})
    assert patched == {"routes": {"x-*": ["own"], "*": ["own", "b"]}}
    assert changed_policy(patched, {"routes": {"x-*": None, "*": None}}) == {"routes": {}}
    assert changed_policy(patched, {"routes": None}) == {}


@pytest.mark.parametrize(
    "routes",
    [
        {"": "a"},
        {"x": {"upstream": "a", "model": "*"}},
        {"x": []},
        {"x": "Not A Name"},
        {"x": {"upstream": "a", "key": "secret"}},
        {"x": 1},
        ["a"],
    ],
)
def test_a_wrong_route_is_refused(routes: object) -> None:
    with pytest.raises(BadPolicy):
        changed_policy({}, {"routes": routes})


def test_own_routes_replace_those_of_the_server() -> None:
    routes = ProjectRoutes(_settings())
    assert _names(routes, {}, "m") == [("a", "m")]
    own = {"routes": {"m-*": ["gone", "own"], "alias": [{"upstream": "b", "model": "real"}]}}
    assert _names(routes, own, "m-1") == [("own", "m-1")]
    assert _names(routes, own, "alias") == [("b", "real")]
    assert _names(routes, own, "m") == []
    assert _names(routes, {"routes": {}}, "m") == [], "an empty object: nothing"


def test_an_upstream_that_is_not_configured_is_logged_once_for_each_change() -> None:
    routes, project = ProjectRoutes(_settings()), new_uuid()
    with capture_logs() as logs:
        for own in ({"*": "gone"}, {"*": "gone"}, {"*": "a"}, {"*": "gone"}):
            policy = ProjectPolicy.from_json({"routes": own})
            found = routes.of(project, policy.routes)
            assert found.has_route("m")
            assert bool(found.find("m")) == (own["*"] == "a")
    assert [log["upstreams"] for log in logs] == [["gone"], ["gone"]]
