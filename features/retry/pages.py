"""The console: run a response again, as it was sent or with another model."""

from starlette.datastructures import QueryParams

from features.console.page import Change, PageError, Visit, confirmed, not_found
from features.retry.service import NotRetried, StoreTimes, run_again
from models.db.database import Connection, find_by_id
from models.db.queries.listing import RESPONSE_DETAILS
from models.ids import parse_response_id, response_id
from models.redis.channels import BACKGROUND


async def _retry(visit: Visit, fields: QueryParams) -> Change:
    identifier = parse_response_id(fields.get("id", ""))
    details = await find_by_id(visit.pool, RESPONSE_DETAILS, identifier)
    if identifier is None or details is None:
        raise not_found("response")
    settings, model = visit.state.settings, fields.get("model", "").strip() or details.model

    async def make(connection: Connection) -> None:
        times = StoreTimes(settings.retention, settings.limits.queue_wait)
        try:
            new = await run_again(connection, identifier, model, visit.actor, times)
        except NotRetried as refused:
            raise PageError(409, "It is not run again", f"The reason: {refused}.") from None
        visit.state.job_queue.enqueue(new, BACKGROUND)

    return Change(
        title="Run this response again?",
        meaning="The same request runs as a new response in the background. The old one stays as "
        "it is, and names the new one.",
        label="Run again",
        back=f"/responses/{response_id(identifier)}",
        make=make,
        is_harmless=True,
        facts=[
            ("Response", response_id(identifier)),
            ("Project", details.project),
            ("Ended as", details.status),
            ("Model", model),
        ],
    )


PAGES = confirmed("/retry", _retry)
