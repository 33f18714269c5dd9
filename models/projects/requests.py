"""What the policy of a project makes of its requests: projects that keep nothing (docs/projects.md,
"Zero retention"), and the highest service tier (ADR 0041)."""

from dataclasses import replace
from typing import Any

from models.errors import InvalidRequest
from models.projects.policy import HighestTier, ProjectPolicy
from models.wire.request import CreateRequest

_NORMAL = (None, "auto", "default")
_UP_TO: dict[HighestTier, tuple[str | None, ...]] = {
    "default": (*_NORMAL, "flex"),
    "flex": ("flex",),
}
_TIER = "service_tier"


def without_storage(request: CreateRequest) -> CreateRequest:
    """The request as a project with zero retention makes it: `store` counts as false, and the
    answer is not cached. Raises InvalidRequest for one in a conversation."""
    if request.conversation is not None:
        raise _no_conversations("conversation")
    return replace(request, store=False, cache=None)


def require_conversations(policy: ProjectPolicy) -> None:
    """Raises InvalidRequest if the project keeps nothing."""
    if policy.zero_retention:
        raise _no_conversations(None)


def _no_conversations(param: str | None) -> InvalidRequest:
    return InvalidRequest(
        "This project has zero retention: it has no conversations. "
        "Send the history as 'input' instead.",
        param=param,
        code="unsupported_parameter",
    )


def limit_tier(request: CreateRequest, highest: HighestTier | None) -> CreateRequest:
    """The request as its project may have it: one with a tier above `highest` gets that one, as if
    the client had sent it. None: every tier is allowed."""
    if highest is None or _is_allowed(request.parameters.get(_TIER), highest):
        return request
    return replace(request, parameters={**request.parameters, _TIER: highest})


def limit_body_tier(
    body: dict[str, Any], highest: HighestTier | None, *, is_known: bool
) -> dict[str, Any]:
    """The same for a body that is forwarded. `is_known`: its upstreams have the parameter, so it
    may be added to a body without it; others may refuse it."""
    named = body.get(_TIER)
    if highest is None or _is_allowed(named, highest) or (named is None and not is_known):
        return body
    return {**body, _TIER: highest}


def _is_allowed(named: Any, highest: HighestTier) -> bool:
    return named in _UP_TO[highest]
