"""Requests in batches: what they may have, and the responses that are made of those which workers
forward to upstreams (docs/batches.md)."""

from dataclasses import replace
from functools import partial
from typing import Any, Final

import orjson

from features.proxy.endpoints import ENDPOINTS, ProxiedEndpoint
from features.proxy.requests import RequestChecks, require_served_model, within_highest_tier
from models.config.routes import Routes
from models.db.queries.api_keys import ApiKey
from models.db.queries.create import NewRow
from models.errors import InvalidRequest
from models.ids import new_item_id, new_uuid
from models.lifecycle import Lane
from models.wire.purpose import forward_parameters, request_item
from models.wire.request import CreateRequest, is_prewarm
from web.http.body import JsonBody
from web.responses.opening import Opening
from web.state import AppState

UNSTORED_SECONDS = 3 * 24 * 3600
"""So long after its end a response with `store: false` is kept at most, until its result is in the
output file."""
_ENDPOINTS: Final = {f"/v1{endpoint.path}": endpoint for endpoint in ENDPOINTS}


class PrepareForwarded:
    """Makes responses of requests that workers forward."""

    def __init__(self, state: AppState) -> None:
        self._state = state

    async def prepare_line(self, key: ApiKey, path: str, body: JsonBody, request_id: str) -> NewRow:
        """The response to the request in a line of a batch for the endpoint `path`, which the
        caller stores. It is checked as a POST is, without quotas. `request_id` is stored.

        Raises InvalidRequest, NotFound, ModelNotAllowed or UpstreamNotConfigured.
        """
        endpoint = _ENDPOINTS[path]
        routes = self._state.routes_of(key)
        model = await self._check(endpoint, routes, key, body)
        sent = within_highest_tier(endpoint, key, routes.find(model), body.value)
        request = CreateRequest(model, [], {}, background=True, store=False)
        opening = Opening.of(request, new_uuid(), self._state.lease.clock.now())
        item = await body.run(partial(request_item, new_item_id, sent))
        return NewRow(
            id=opening.id,
            project=key.project_id,
            background=True,
            store=False,
            model=model,
            parameters=orjson.dumps(forward_parameters(endpoint.path)),
            created_at=opening.facts.created_at,
            waiter=None,
            request_id=request_id,
            lane=Lane.BATCH,
            items=orjson.dumps([item]),
            last=len(opening.frames) - 1,
            frames=b"".join(opening.frames),
            api_key=key.id,
            kept_for=UNSTORED_SECONDS,
        )

    async def _check(
        self, endpoint: ProxiedEndpoint, routes: Routes, key: ApiKey, body: JsonBody
    ) -> str:
        """The model of the request."""
        if body.value.get("stream"):
            raise InvalidRequest(
                "A request in a batch cannot be streamed.",
                param="stream",
                code="unsupported_parameter",
            )
        named = body.value.get("model")
        model = require_served_model(endpoint, routes, key, named)
        egress = self._state.egress.of_project(key.policy.egress)
        checks = RequestChecks(endpoint, model, key, self._state.validation.account_ids, egress)
        await checks.check_body(body.value, body.size)
        return model


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
    if "background_options" in request.parameters:
        raise InvalidRequest(
            "A request in a batch has the batch's 'completion_window': leave "
            "'background_options' out.",
            param="background_options",
            code="unsupported_parameter",
        )
    if request.conversation is not None:
        raise InvalidRequest(
            "A request in a batch cannot be in a conversation. Send 'previous_response_id' or the "
            "history as 'input' instead.",
            param="conversation",
            code="unsupported_parameter",
        )
    return replace(request, background=True, cache=None)
