"""Projects that keep nothing (docs/projects.md, "Zero retention")."""

from dataclasses import replace

from models.db.queries.api_keys import ApiKey
from models.errors import InvalidRequest
from models.wire.request import CreateRequest

ZERO_RETENTION_SECONDS = 15
"""So long after its end a response is kept, for a client that polls. Then the purge deletes it."""


def without_storage(request: CreateRequest) -> CreateRequest:
    """The request as a project with zero retention makes it: `store` counts as false, and the
    answer is not cached. Raises InvalidRequest for one in a conversation."""
    if request.conversation is not None:
        raise _no_conversations("conversation")
    return replace(request, store=False, cache=None)


def require_conversations(key: ApiKey) -> None:
    """Raises InvalidRequest if the project of this key keeps nothing."""
    if key.policy.zero_retention:
        raise _no_conversations(None)


def _no_conversations(param: str | None) -> InvalidRequest:
    return InvalidRequest(
        "This project has zero retention: it has no conversations. "
        "Send the history as 'input' instead.",
        param=param,
        code="unsupported_parameter",
    )
