"""/v1/chat/completions: forwarded to the upstream; nothing is queued or stored (ADR 0016)."""

from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.projects.quotas import Limits, estimate_tokens
from models.redis.quota_counters import Demand
from models.wire.checks.faults import missing, wrong_type
from models.wire.json_input import inline_size
from web.chat_proxy import ProxiedResponse
from web.http.auth import Key, require_model
from web.http.body import JsonBody, json_object, read_json, run_sized
from web.http.connection import cancel_on_disconnect
from web.http.errors import model_not_found
from web.http.outbound_urls import require_body_urls, require_names
from web.state import AppState, app_state

router = APIRouter(prefix="/v1/chat/completions")

_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens")


@router.post("")
async def chat(request: Request, key: Key) -> Response:
    """Forwards a chat completion to the model's upstream, streamed or not, and its response to the
    client, unchanged. When the client disconnects, the connection to the upstream is closed."""
    state = app_state(request)
    state.quotas.require_rate(key)
    body = await read_json(request, state.body_limits_of(key))
    state.count_stream(request)
    model = _model_of(json_object(body.value))
    if not state.chat_proxy.has_route(model):
        raise model_not_found(model)
    require_model(key, model)
    state.account_ids.check_chat(body.value, key)
    egress = state.egress.of_project(key.policy.egress)
    urls = await run_sized(partial(require_body_urls, egress, body.value), body.size)
    await require_names(egress, urls)
    limits = state.quotas.limits_of(key)
    if limits is None:
        return await _forward(state, request, body, key)
    tokens = await run_sized(partial(_estimate, body, limits), body.size)
    demand = Demand(tokens=tokens, open_streams=1)
    async with state.quotas.admitted(key.project_id, limits, demand) as admission:
        response = await _forward(state, request, body, key)
    response.connection = admission.connection
    return response


async def _forward(state: AppState, request: Request, body: JsonBody, key: Key) -> ProxiedResponse:
    on_usage = partial(state.proxied_usage.add, key, body.value["model"])
    # The first byte may take long: if the client disconnects before it, the request is cancelled.
    try:
        return await cancel_on_disconnect(
            state.chat_proxy.forward(body.value, size=body.size, on_usage=on_usage),
            request.receive,
            state.grace_expired,
        )
    finally:
        body.release()


def _estimate(body: JsonBody, limits: Limits) -> int:
    """The tokens that are reserved for the request. Other values than numbers are the upstream's to
    refuse."""
    named = [body.value.get(name) for name in _OUTPUT_LIMITS]
    max_output = next((value for value in named if type(value) is int and value >= 0), None)
    return estimate_tokens(body.size - inline_size(body.value), max_output, limits)


def _model_of(body: dict[str, Any]) -> str:
    """The model; the upstream checks everything else. Raises InvalidRequest."""
    model = body.get("model")
    if model is None:
        raise missing("model")
    if not isinstance(model, str):
        raise wrong_type("model", "a string", model)
    return model
