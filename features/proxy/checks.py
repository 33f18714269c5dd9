"""What a request may name: a model, a service tier, addresses that an upstream fetches
(docs/tools.md, "What may be reached"), and objects of the upstream's account (docs/upstreams.md).
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from features.proxy.endpoints import CHAT, ProxiedEndpoint
from models.config.routes import Destination, Routes
from models.db.queries.api_keys import ApiKey
from models.egress import EgressPolicy
from models.wire.account_ids import AccountId, body_account_ids
from models.wire.checks.faults import missing
from models.wire.checks.parameters import PARAMETERS
from web.http.auth import require_model
from web.http.body import run_sized
from web.http.errors import find_upstreams, model_not_found
from web.http.outbound_urls import require_body_urls, require_names
from web.responses.account_ids import AccountIds
from web.responses.project_policy import limit_body_tier

_MODEL_NAME = PARAMETERS["model"]
_SEGMENT = re.compile(r"[^\[\]]+")


def require_served_model(endpoint: ProxiedEndpoint, routes: Routes, key: ApiKey, named: Any) -> str:
    """The model that the key may use and an upstream serves; the upstream checks everything else.
    `routes`: those of the key's project. `named`: None if the request names none. Raises
    InvalidRequest, NotFound, ModelNotAllowed, UpstreamNotConfigured."""
    named_or_default = endpoint.default_model if named is None else named
    if named_or_default is None:
        raise missing("model")
    model: str = _MODEL_NAME(named_or_default, "model")
    if not find_upstreams(routes, model):
        raise missing("model") if named is None else model_not_found(model)
    require_model(key, model)
    return model


def within_highest_tier(
    endpoint: ProxiedEndpoint, key: ApiKey, upstreams: Sequence[Destination], body: dict[str, Any]
) -> dict[str, Any]:
    """The JSON body with the service tier that the key's project may have of these upstreams."""
    is_known = endpoint is CHAT and all(each.upstream.has_service_tier for each in upstreams)
    return limit_body_tier(body, key.policy.highest_tier, is_known=is_known)


@dataclass(frozen=True, slots=True)
class RequestChecks:
    """The checks of one request. Each raises InvalidRequest."""

    endpoint: ProxiedEndpoint
    model: str
    key: ApiKey
    account_ids: AccountIds
    egress: EgressPolicy
    """the rules of the key's project"""

    async def check_body(self, body: dict[str, Any], size: int) -> None:
        """Judges a JSON body of `size` bytes."""
        ids = self.endpoint.find_account_ids(body)
        self._check_ids(ids)
        urls = await run_sized(partial(require_body_urls, self.egress, body), size)
        await require_names(self.egress, urls)

    async def check_field(self, name: str, value: str) -> None:
        """Judges a field of a form as the same value in JSON. `name`: such as `images[][url]`."""
        segments = _SEGMENT.findall(name)
        body = {segments[-1] if segments else name: value}
        self._check_ids(body_account_ids(body))
        await require_names(self.egress, require_body_urls(self.egress, body))

    def _check_ids(self, ids: Iterable[AccountId]) -> None:
        natives_only = not self.endpoint.names_files
        self.account_ids.check_proxied(self.model, ids, self.key, natives_only=natives_only)
