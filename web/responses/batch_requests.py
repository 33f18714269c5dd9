"""Requests in batches: what they may have, and what becomes of them (docs/batches.md)."""

from dataclasses import replace

from models.errors import InvalidRequest
from models.wire.request import CreateRequest

UNSTORED_SECONDS = 3 * 24 * 3600
"""So long after its end a response with `store: false` is kept at most, until its result is in the
output file."""


def batch_request(request: CreateRequest) -> CreateRequest:
    """The request as a batch runs it: in the background, without the cache. Raises InvalidRequest
    for one that is streamed, or in a conversation."""
    if request.stream:
        raise InvalidRequest(
            "A request in a batch cannot be streamed.", param="stream", code="unsupported_parameter"
        )
    if request.conversation is not None:
        raise InvalidRequest(
            "A request in a batch cannot be in a conversation. Send 'previous_response_id' or the "
            "history as 'input' instead.",
            param="conversation",
            code="unsupported_parameter",
        )
    return replace(request, background=True, cache=None)
