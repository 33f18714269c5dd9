"""The endpoints that are forwarded to the upstream of the request's model; nothing is queued or
stored (docs/proxied-endpoints.md)."""

from collections.abc import Awaitable, Callable
from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from features.files.form import FormParser, form_boundary
from features.proxy.endpoints import ENDPOINTS, ProxiedEndpoint
from features.proxy.forms import FormRequest, Spool
from features.proxy.requests import (
    JsonRequest,
    ProxiedRequest,
    RequestChecks,
    require_served_model,
    within_highest_tier,
)
from features.proxy.response import ProxiedCall, ProxiedResponse
from features.proxy.web import Proxy
from models.db.queries.api_keys import ApiKey
from models.load.budget import Reservation
from models.projects.quotas import estimate_tokens
from models.redis.quota_counters import Demand
from models.wire.token_counts import NO_TOKENS, TokenUsage, UsageKind
from web.http.auth import Key
from web.http.body import body_pieces, json_object, read_json
from web.http.connection import cancel_on_disconnect
from web.http.request_record import request_record
from web.state import AppState, app_state

router = APIRouter(prefix="/v1")


def _route(endpoint: ProxiedEndpoint) -> Callable[..., Awaitable[Response]]:
    async def forward(request: Request, key: Key) -> Response:
        state = app_state(request)
        state.quotas.require_rate(key)
        if endpoint.takes_form:
            boundary = form_boundary(request.headers.get("content-type", ""))
            if boundary is not None:
                return await _forward_form(state, endpoint, request, key, boundary)
        return await _forward_json(state, endpoint, request, key)

    return forward


for _endpoint in ENDPOINTS:
    router.add_api_route(
        _endpoint.path,
        _route(_endpoint),
        methods=["POST"],
        name=_endpoint.name,
        description=_endpoint.description,
    )


async def _forward_json(
    state: AppState, endpoint: ProxiedEndpoint, request: Request, key: ApiKey
) -> Response:
    also = "multipart/form-data" if endpoint.takes_form else ""
    body = await read_json(request, state.body_limits_of(key), also)
    state.count_stream(request)
    value = json_object(body.value)
    model = require_served_model(endpoint, state.routes_of(key), key, value.get("model"))
    checks = _checks(state, endpoint, key, model)
    await checks.check_body(value, body.size)
    upstreams = state.routes_of(key).find(model)
    body.value = within_highest_tier(endpoint, key, upstreams, value)
    return await _admit(state, checks, JsonRequest(body, request.receive))


async def _forward_form(
    state: AppState, endpoint: ProxiedEndpoint, request: Request, key: ApiKey, boundary: bytes
) -> Response:
    # It counts from its beginning: an upload may take long.
    state.count_stream(request)
    form = _open_form(state, request, key, boundary)
    model = require_served_model(endpoint, state.routes_of(key), key, await form.read_model())
    checks = _checks(state, endpoint, key, model)
    await form.begin(checks.check_field)
    return await _admit(state, checks, form)


def _open_form(state: AppState, request: Request, key: ApiKey, boundary: bytes) -> FormRequest:
    limits = state.body_limits_of(key)
    record = request_record(request)
    project = record.project or ""
    fields = Reservation(state.budgets.bodies, project)
    spool = Spool(Reservation(Proxy.in_state(state).spools, project))
    record.at_end(fields.release)
    record.at_end(spool.close)
    parser = FormParser(boundary, limits.text)
    return FormRequest(body_pieces(request, limits.size), request.receive, parser, spool, fields)


def _checks(state: AppState, endpoint: ProxiedEndpoint, key: ApiKey, model: str) -> RequestChecks:
    egress = state.egress.of_project(key.policy.egress)
    return RequestChecks(endpoint, model, key, state.validation.account_ids, egress)


async def _admit(state: AppState, checks: RequestChecks, request: ProxiedRequest) -> Response:
    """Forwards a request that the quotas of its project admit."""
    endpoint, key = checks.endpoint, checks.key
    on_usage = partial(_record_usage, state, key)
    upstreams = state.routes_of(key).find(checks.model)
    call = ProxiedCall(endpoint, checks.model, upstreams, request, on_usage)
    limits = state.quotas.limits_of(key)
    if limits is None:
        return await _forward(state, call)
    size = await request.measure(endpoint.output_limits)
    max_output = size.max_output if endpoint.has_output else 0
    demand = Demand(tokens=estimate_tokens(size.characters, max_output, limits), open_streams=1)
    async with state.quotas.admitted(key.project_id, limits, demand) as admission:
        response = await _forward(state, call)
    response.end_connection = admission.end_connection
    return response


def _record_usage(
    state: AppState, key: ApiKey, call: ProxiedCall, upstream: str, usage: TokenUsage | None
) -> None:
    """A forwarded request was answered. `usage`: None if the upstream does not report it."""
    kind, used = call.endpoint.usage_kind, usage or NO_TOKENS
    is_audio = kind is UsageKind.AUDIO_TRANSCRIPTIONS
    units = used.seconds if is_audio else call.request.units(kind)
    usages, tier = Proxy.in_state(state).usage, call.request.service_tier
    usages.add_tokens(key, call.model, upstream, used, kind, units, tier)


async def _forward(state: AppState, call: ProxiedCall) -> ProxiedResponse:
    # The first byte may take long: if the client disconnects before it, the request is cancelled.
    try:
        return await cancel_on_disconnect(
            Proxy.in_state(state).forward(call), call.request.receive, state.grace_expired
        )
    finally:
        call.request.release()


ROUTERS = (router,)
