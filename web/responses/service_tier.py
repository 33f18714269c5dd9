"""The service tier that a request has, where the policy of its project limits it (ADR 0041)."""

from dataclasses import replace

from models.projects.policy import HighestTier
from models.wire.request import CreateRequest

_NORMAL = (None, "auto", "default")
_UP_TO: dict[HighestTier, tuple[str | None, ...]] = {
    "default": (*_NORMAL, "flex"),
    "flex": ("flex",),
}


def limit_tier(request: CreateRequest, highest: HighestTier | None) -> CreateRequest:
    """The request as its project may have it: one with a tier above `highest` gets that one, as if
    the client had sent it. None: every tier is allowed."""
    if highest is None or request.parameters.get("service_tier") in _UP_TO[highest]:
        return request
    return replace(request, parameters={**request.parameters, "service_tier": highest})
