"""`GET /metrics`: the figures of this process and of the open responses."""

from fastapi import APIRouter, Request
from prometheus_client import generate_latest
from starlette.responses import Response

from models.errors import Unauthenticated
from models.metrics import CONTENT_TYPE, scrape_allowed
from web.counters import REGISTRY
from web.gauges import BACKLOG
from web.http.errors import unknown_url
from web.http.own_host import require_own_host
from web.state import app_state

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """This process's figures and those of the open responses, in Prometheus' text format.

    Served on loopback, or to requests with the metrics token.
    """
    state = app_state(request)
    is_allowed = scrape_allowed(
        state.settings.metrics, state.host, request.headers.get("authorization")
    )
    if is_allowed is None:
        raise unknown_url(request)
    if not is_allowed:
        raise Unauthenticated("Send the metrics token: 'Authorization: Bearer TOKEN'.")
    if state.settings.metrics.token is None:
        require_own_host(request, state.settings.allowed_hosts)
    await BACKLOG.refresh(state.pool)
    for feature in state.features.values():
        await feature.refresh_gauges()
    return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE)
