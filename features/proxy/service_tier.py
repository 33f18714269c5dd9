"""The service tier of a request that is forwarded, where the policy of its project limits it."""

from collections.abc import Sequence
from typing import Any

from features.proxy.endpoints import CHAT, ProxiedEndpoint
from models.config.routes import Destination
from models.db.queries.api_keys import ApiKey
from web.responses.project_policy import limit_body_tier


def within_highest_tier(
    endpoint: ProxiedEndpoint, key: ApiKey, upstreams: Sequence[Destination], body: dict[str, Any]
) -> dict[str, Any]:
    """The JSON body as the key's project may send it to these upstreams."""
    is_known = endpoint is CHAT and all(each.upstream.has_service_tier for each in upstreams)
    return limit_body_tier(body, key.policy.highest_tier, is_known=is_known)
