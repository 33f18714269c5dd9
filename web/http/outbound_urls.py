"""Refuses URLs in requests by the egress rules: the one home of this check for creates over HTTP
and WebSockets, conversations and proxied requests (docs/tools.md, "What may be reached").

The messages do not repeat a URL: it may contain a key.
"""

import re
from collections.abc import Iterable
from typing import Any

from models.egress import EgressPolicy, EgressRefused, FetchTarget
from models.errors import InvalidRequest
from models.hosts import look_up
from models.wire.events import Item
from models.wire.urls import body_urls, item_urls, parameter_urls

MAX_URLS = 1_000
"""URLs in one request. Reading one takes some microseconds."""
_NAME_END = re.compile(r"[.\[]")
"""Ends the name of the parameter in a place such as `messages[0].content`."""


def require_fetchable(egress: EgressPolicy, url: str, param: str) -> None:
    """Raises InvalidRequest for a URL from which this server may not fetch.

    An address that a host name resolves to is checked when it is fetched.
    """
    try:
        egress.check_url(url)
    except EgressRefused as refusal:
        raise _refused(refusal, param) from None


def require_item_urls(egress: EgressPolicy, items: list[Item], where: str = "input") -> None:
    """Raises InvalidRequest for a URL in items that neither this server nor an upstream may fetch.

    `where` is the name of the list in the request. Host names are looked up in the run: items may
    wait in a conversation for long.
    """
    for number, place in enumerate(item_urls(items)):
        if number == MAX_URLS:
            raise _too_many(where)
        try:
            if place.is_fetched_here:
                egress.check_url(place.url)
            else:
                egress.check_handed_on(place.url)
        except EgressRefused as refusal:
            raise _refused(refusal, place.param(place.item, where)) from None


def require_parameter_urls(
    egress: EgressPolicy, parameters: dict[str, Any], passthrough: Iterable[str]
) -> dict[str, FetchTarget]:
    """The URLs in what an upstream gets as the client sent it, by their places: in tools that it
    runs itself, and in the parameters in `passthrough`. Their names are for `require_names`.

    Raises InvalidRequest for one that the upstream may not fetch.
    """
    return _require_handed_on(egress, parameter_urls(parameters, passthrough))


def require_body_urls(egress: EgressPolicy, body: dict[str, Any]) -> dict[str, FetchTarget]:
    """The same for the body of a request that an upstream gets unchanged."""
    return _require_handed_on(egress, body_urls(body))


def _require_handed_on(
    egress: EgressPolicy, urls: Iterable[tuple[str, str]]
) -> dict[str, FetchTarget]:
    targets: dict[str, FetchTarget] = {}
    for place, url in urls:
        if len(targets) == MAX_URLS:
            raise _too_many(_NAME_END.split(place, maxsplit=1)[0])
        try:
            targets[place] = egress.check_handed_on(url)
        except EgressRefused as refusal:
            raise _refused(refusal, place) from None
    return targets


async def require_names(egress: EgressPolicy, targets: dict[str, FetchTarget]) -> None:
    """Raises InvalidRequest if the host name of one of these URLs leads to an address that may not
    be reached."""
    if not targets or not egress.settings.resolve:
        return
    hosts = [target.host for target in targets.values()]
    found = await look_up(hosts, egress.settings.resolve_time.total_seconds())
    for place, target in targets.items():
        try:
            egress.check_handed_on_addresses(target, found.get(target.host, ()))
        except EgressRefused as refusal:
            raise _refused(refusal, place) from None


def _refused(refusal: EgressRefused, param: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid '{param}': {refusal}.", param=param, code="invalid_value")


def _too_many(param: str) -> InvalidRequest:
    message = f"Invalid '{param}': more than {MAX_URLS} URLs."
    return InvalidRequest(message, param=param, code="invalid_value")
