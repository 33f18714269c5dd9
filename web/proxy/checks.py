"""What a request may name: addresses that an upstream fetches (docs/tools.md, "What may be
reached"), and objects of the upstream's account (docs/upstreams.md)."""

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from models.db.queries.api_keys import ApiKey
from models.egress import EgressPolicy
from models.wire.account_ids import body_account_ids
from web.http.body import run_sized
from web.http.outbound_urls import require_body_urls, require_names
from web.proxy.endpoints import Endpoint
from web.responses.account_ids import AccountIds

_SEGMENT = re.compile(r"[^\[\]]+")


@dataclass(frozen=True, slots=True)
class RequestChecks:
    """The checks of one request. Each raises InvalidRequest."""

    endpoint: Endpoint
    model: str
    key: ApiKey
    account_ids: AccountIds
    egress: EgressPolicy
    """the rules of the key's project"""

    async def check_body(self, body: dict[str, Any], size: int) -> None:
        """Judges a JSON body of `size` bytes."""
        ids = self.endpoint.find_account_ids(body)
        self.account_ids.check_proxied(self.model, ids, self.key)
        if body.get("modality", "text") != "text":
            # Infinity takes addresses of images and of audio as plain inputs.
            body = {**body, "image": body.get("input")}
        urls = await run_sized(partial(require_body_urls, self.egress, body), size)
        await require_names(self.egress, urls)

    async def check_field(self, name: str, value: str) -> None:
        """Judges a field of a form as the same value in JSON. `name`: such as `images[][url]`."""
        segments = _SEGMENT.findall(name)
        body = {segments[-1] if segments else name: value}
        self.account_ids.check_proxied(self.model, body_account_ids(body), self.key)
        await require_names(self.egress, require_body_urls(self.egress, body))
