"""URLs that only the upstream fetches: images and screenshots in the history, what is in tools that
it runs itself, and in a request that is forwarded.

They were checked when they were stored (web/http/outbound_urls.py). Before each run they are
checked once more, because the rules of the project may have changed since, and with what their
names mean now.
"""

from collections.abc import Iterable, Iterator

from models.egress import EgressPolicy, EgressRefused, FetchTarget
from models.errors import UpstreamFailed
from models.name_lookups import look_up
from models.wire.checks.faults import shorten
from models.wire.events import Item
from models.wire.urls import item_urls


def history_urls(
    history: list[Item], own_count: int, *, history_parameter: str, skipped: int
) -> Iterator[tuple[str, str]]:
    """The URLs in the history that the upstream fetches, each with the parameter that it came with.
    The parameters are those of worker/run/attachments.py."""
    for place in item_urls(history):
        if not place.is_fetched_here:
            own = place.item - (len(history) - own_count)
            yield place.param(own + skipped) if own >= 0 else history_parameter, place.url


async def require_handed_on(urls: Iterable[tuple[str, str]], egress: EgressPolicy) -> None:
    """Raises UpstreamFailed for a URL that the upstream may not fetch: a waiting client receives it
    as a 400. `urls`: each with its parameter."""
    targets: list[tuple[str, str, FetchTarget]] = []
    for param, url in urls:
        try:
            targets.append((param, url, egress.check_handed_on(url)))
        except EgressRefused as refusal:
            raise _refused(param, url, refusal) from refusal
    if not targets or not egress.settings.resolve:
        return
    hosts = [target.host for _, _, target in targets]
    found = await look_up(hosts, egress.settings.resolve_time.total_seconds())
    for param, url, target in targets:
        try:
            egress.check_handed_on_addresses(target, found.get(target.host, ()))
        except EgressRefused as refusal:
            raise _refused(param, url, refusal) from refusal


def _refused(param: str, url: str, refusal: EgressRefused) -> UpstreamFailed:
    return UpstreamFailed(
        f"The upstream may not fetch '{shorten(url)}': {refusal}.",
        code="invalid_prompt",
        reason="url_refused",
        status=400,
        param=param,
        envelope_code="invalid_value",
    )
