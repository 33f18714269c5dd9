"""Routes in the policy of a project (docs/projects.md). Commands import this module: it
needs no log."""

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import AfterValidator, PlainSerializer

from models.config.routes import Route, pattern_problem, upstream_name_problem


def _check(routes: dict[str, Route]) -> dict[str, Route]:
    for pattern, targets in routes.items():
        for target in targets:
            problem = pattern_problem(pattern, target.model)
            if problem := problem or upstream_name_problem(target.upstream):
                raise ValueError(f"{pattern!r}: {problem}")
    return routes


def _as_written(routes: dict[str, Route]) -> dict[str, list[Any]]:
    """As an operator writes them: an upstream is its name if the model's name is not changed."""
    return {
        pattern: [
            target.upstream if target.model is None else target.model_dump() for target in targets
        ]
        for pattern, targets in routes.items()
    }


def unconfigured_upstreams(own: dict[str, Route] | None, configured: Collection[str]) -> list[str]:
    """The upstreams that a project's routes name and that are not among the configured ones,
    sorted."""
    named = {target.upstream for targets in (own or {}).values() for target in targets}
    return sorted(named.difference(configured))


PolicyRoutes = Annotated[
    dict[str, Route], AfterValidator(_check), PlainSerializer(_as_written, when_used="json")
]
"""Upstreams by pattern, in the form of `[routes]`. The upstreams need not be configured: a policy
is judged where there may be no configuration."""
