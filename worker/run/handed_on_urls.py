"""URLs in the history that only the upstream fetches: images, screenshots.

They were checked when they were stored (web/http/outbound_urls.py). Before each run they are
checked once more, because the rules of the project may have changed since, and with what their
names mean.
"""

from models.egress import EgressPolicy, EgressRefused, FetchTarget
from models.errors import UpstreamFailed
from models.name_lookups import look_up
from models.wire.checks.faults import shorten
from models.wire.events import Item
from models.wire.urls import UrlPlace, item_urls


async def require_handed_on(
    history: list[Item],
    own_count: int,
    egress: EgressPolicy,
    *,
    history_parameter: str = "previous_response_id",
    skipped: int = 0,
) -> None:
    """Raises UpstreamFailed for a URL that the upstream may not fetch: a waiting client receives it
    as a 400. The parameters are those of worker/run/attachments.py."""
    targets: list[tuple[UrlPlace, FetchTarget]] = []

    def failure(place: UrlPlace, refusal: EgressRefused) -> UpstreamFailed:
        own = place.item - (len(history) - own_count)
        return UpstreamFailed(
            f"The upstream may not fetch '{shorten(place.url)}': {refusal}.",
            code="invalid_prompt",
            reason="url_refused",
            status=400,
            param=place.param(own + skipped) if own >= 0 else history_parameter,
            envelope_code="invalid_value",
        )

    for place in item_urls(history):
        if place.is_fetched_here:
            continue
        try:
            targets.append((place, egress.check_handed_on(place.url)))
        except EgressRefused as refusal:
            raise failure(place, refusal) from refusal
    if not targets or not egress.settings.resolve:
        return
    hosts = [target.host for _, target in targets]
    found = await look_up(hosts, egress.settings.resolve_time.total_seconds())
    for place, target in targets:
        try:
            egress.check_handed_on_addresses(target, found.get(target.host, ()))
        except EgressRefused as refusal:
            raise failure(place, refusal) from refusal
