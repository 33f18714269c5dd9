"""A client's request as it is sent to an upstream, and one with JSON; forms are in forms.py.

What a request may name: a model, a service tier, addresses that an upstream fetches
(docs/tools.md, "What may be reached"), and objects of the upstream's account (docs/upstreams.md).
"""

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
from starlette.types import Message, Receive

from features.proxy.endpoints import CHAT, ProxiedEndpoint
from models.config.routes import Destination, Routes
from models.db.queries.api_keys import ApiKey
from models.egress import EgressPolicy
from models.errors import ApiError
from models.projects.requests import limit_body_tier
from models.wire.account_ids import AccountId, body_account_ids
from models.wire.checks.faults import missing
from models.wire.checks.parameters import PARAMETERS
from models.wire.json_input import inline_size
from models.wire.token_counts import UsageKind, bounded_count
from web.http.auth import require_model
from web.http.body import JsonBody, run_sized
from web.http.errors import find_upstreams, model_not_found
from web.http.outbound_urls import require_body_urls, require_names
from web.responses.account_ids import AccountIds

MODEL = "model"
"""The field with the model's name."""
IMAGES = "n"
"""The field with the number of images."""


@dataclass(frozen=True, slots=True)
class OutgoingBody:
    """A body for one call of an upstream."""

    data: bytes | AsyncIterator[bytes]
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class RequestSize:
    """What a quota of tokens is estimated from."""

    characters: int
    """without inline files"""
    max_output: int | None
    """tokens to which the request limits the output"""


class ProxiedRequest(ABC):
    """A request whose model is known."""

    wants_stream = False
    """Whether the answer begins soon and comes piece by piece."""
    may_repeat = True
    """Whether all of it can be sent again, to another upstream."""
    failure: ApiError | None = None
    """The error of the client's that ended the sending of the body."""
    service_tier: str | None = None
    """The tier that it asks for, as far as that is known."""

    def __init__(self, receive: Receive) -> None:
        """`receive`: the client's messages behind the body."""
        self._receive = receive

    @abstractmethod
    async def measure(self, output_limits: tuple[str, ...], /) -> RequestSize:
        """Its size. `output_limits`: parameters, of which the first that is given counts."""

    @abstractmethod
    def units(self, kind: UsageKind, /) -> int:
        """How many images it asks for, or how many characters it lets be spoken; 0 for others."""

    @abstractmethod
    async def open(self, model: str) -> OutgoingBody:
        """The body with the model's name at the upstream."""

    async def receive(self) -> Message:
        """The client's next message behind the body."""
        return await self._receive()

    def stop(self) -> None:  # noqa: B027 - a body that was read needs no stop
        """The upstream does not read the body any more."""

    def release(self) -> None:  # noqa: B027 - a form holds nothing until then
        """An upstream has answered, or none will."""


class JsonRequest(ProxiedRequest):
    """A request with a JSON object."""

    def __init__(self, body: JsonBody, receive: Receive) -> None:
        """`body`: read completely."""
        super().__init__(receive)
        self._body = body
        # As chat completions and speech have it.
        value = body.value
        self.wants_stream = value.get("stream") is True or value.get("stream_format") == "sse"
        tier = value.get("service_tier")
        self.service_tier = tier if isinstance(tier, str) else None
        spoken = value.get("input")
        self._units = {
            UsageKind.IMAGES: image_count(value.get(IMAGES)),
            UsageKind.AUDIO_SPEECHES: len(spoken) if isinstance(spoken, str) else 0,
        }

    async def measure(self, output_limits: tuple[str, ...], /) -> RequestSize:
        """Other values than numbers are the upstream's to refuse."""
        named = [self._body.value.get(name) for name in output_limits]
        max_output = next((each for each in named if type(each) is int and each >= 0), None)
        inline = await self._body.run(partial(inline_size, self._body.value))
        return RequestSize(self._body.size - inline, max_output)

    def units(self, kind: UsageKind, /) -> int:
        """As the body has them."""
        return self._units.get(kind, 0)

    async def open(self, model: str) -> OutgoingBody:
        """The object with this model."""
        encode = partial(orjson.dumps, {**self._body.value, MODEL: model})
        encoded = await self._body.run(encode)
        return OutgoingBody(encoded, {"content-type": "application/json"})

    def release(self) -> None:
        """Frees the body."""
        self._body.release()


def image_count(number: object) -> int:
    """How many images a request for this number of them asks for, as usage counts them."""
    return bounded_count(number) if type(number) is int and number > 0 else 1


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
