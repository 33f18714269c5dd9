"""Requests in batches: what they may have, and what becomes of them (docs/batches.md)."""

from dataclasses import replace
from typing import Any

from models.errors import InvalidRequest
from models.wire.request import CreateRequest, is_prewarm

UNSTORED_SECONDS = 3 * 24 * 3600
"""So long after its end a response with `store: false` is kept at most, until its result is in the
output file."""


def batch_request(request: CreateRequest, body: Any) -> CreateRequest:
    """The request in this body as a batch runs it: in the background, without the cache. Raises
    InvalidRequest for one that is streamed, in a conversation, or without an answer."""
    if is_prewarm(body):
        raise InvalidRequest(
            "A request in a batch cannot only prepare a prompt cache: leave 'prewarm' out.",
            param="prompt_cache_options.prewarm",
            code="unsupported_parameter",
        )
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
