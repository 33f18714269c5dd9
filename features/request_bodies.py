"""The bodies of requests to features, which count against the quotas of their project."""

from starlette.requests import Request

from models.db.queries.api_keys import ApiKey
from models.redis.quota_counters import Demand
from web.http.body import JsonBody, read_json
from web.state import app_state


async def counted_body(
    request: Request, key: ApiKey, *, is_stored: bool = False, conversations: int = 0
) -> JsonBody:
    """The JSON body of a request that the quotas of its project admit. `is_stored`: its bytes count
    as stored. `conversations`: how many it makes. Raises QuotaExceeded, and what `read_json`
    raises."""
    state = app_state(request)
    state.quotas.require_rate(key)
    body = await read_json(request, state.body_limits_of(key))
    demand = Demand(bytes=body.size if is_stored else 0, conversations=conversations)
    await state.quotas.admit_if_limited(key, demand)
    return body
