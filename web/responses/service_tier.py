"""The service tier that a request has, where the policy of its project limits it (ADR 0041)."""

from dataclasses import replace
from typing import Any

from models.projects.policy import HighestTier
from models.wire.request import CreateRequest

_NORMAL = (None, "auto", "default")
_UP_TO: dict[HighestTier, tuple[str | None, ...]] = {
    "default": (*_NORMAL, "flex"),
    "flex": ("flex",),
}
_FIELD = "service_tier"


def limit_tier(request: CreateRequest, highest: HighestTier | None) -> CreateRequest:
    """The request as its project may have it: one with a tier above `highest` gets that one, as if
    the client had sent it. None: every tier is allowed."""
    if highest is None or _is_allowed(request.parameters.get(_FIELD), highest):
        return request
    return replace(request, parameters={**request.parameters, _FIELD: highest})


def limit_body_tier(
    body: dict[str, Any], highest: HighestTier | None, *, is_known: bool
) -> dict[str, Any]:
    """The same for a body that is forwarded. `is_known`: its upstreams have the parameter, so it
    may be added to a body without it; others may refuse it."""
    named = body.get(_FIELD)
    if highest is None or _is_allowed(named, highest) or (named is None and not is_known):
        return body
    return {**body, _FIELD: highest}


def _is_allowed(named: Any, highest: HighestTier) -> bool:
    return named in _UP_TO[highest]
