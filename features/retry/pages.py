"""The console: run responses again, as they were sent or with another model."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from uuid import UUID

from starlette.responses import Response

from features.console.notice import Notice, outcome
from features.console.page import Page, PageError, Visit, back_path, not_found
from features.console.responses import selected_ids
from features.model_list.web import ModelList
from features.retry.service import Candidate, NotRetried, StoreTimes, find_candidate, run_again
from models.config.routes import Routes
from models.errors import RunFailed
from models.ids import response_id
from models.redis.channels import BACKGROUND

_LISTS_TIME = 0.15
"""Seconds for the lists of models of upstreams: without them the page has the configured names."""


async def ask(visit: Visit) -> Response:
    """Shows which responses are meant, and lets choose a model."""
    visit.require_operator()
    candidates = await _candidates(visit, visit.query.getlist("id"))
    one = response_id(candidates[0].id) if len(candidates) == 1 else None
    return visit.page(
        "retry.html",
        candidates=candidates,
        runnable=sum(each.refusal is None for each in candidates),
        models=await _known_models(visit, candidates),
        model=visit.text("model"),
        back=visit.own_path(visit.query.get("back", "")),
        leads_back=back_path(
            visit, visit.query, "/responses" if one is None else f"/responses/{one}"
        ),
    )


async def make(visit: Visit) -> Response:
    """Runs them again, each with its entry in the audit log. Leads back to the list; without one,
    to the new response."""
    fields = await visit.form(visit.user.token)
    model = fields.get("model", "").strip() or None
    candidates = await _candidates(visit, fields.getlist("id"))
    if model is not None:
        _require_route(visit, candidates, model)
    made, refused = [], []
    for each in candidates:
        try:
            made.append(await _run_again(visit, each.id, model))
        except NotRetried as refusal:
            refused.append(str(refusal))
    if len(candidates) == 1 and refused:
        raise PageError(409, "It is not run again", f"The reason: {refused[0]}.")
    notice = Notice(_notice_text(len(made), refused), is_warning=bool(refused))
    new = f"/responses/{response_id(made[0])}" if len(made) == 1 else ""
    if not visit.own_path(fields.get("back", "")) and new:
        return visit.done(new, notice)
    return visit.done(
        back_path(visit, fields, "/responses"),
        Notice(notice.text, new, "Show the new one", notice.is_warning),
    )


def _notice_text(made: int, refused: list[str]) -> str:
    subject = {0: "", 1: "One response runs again in the background. "}
    done = subject.get(made, f"{made} responses run again in the background. ")
    return f"{done}{outcome([], refused)}".strip()


async def _candidates(visit: Visit, ids: list[str]) -> list[Candidate]:
    """Raises PageError if there are none."""
    found = [await find_candidate(visit.pool, each) for each in selected_ids(ids)]
    candidates = [each for each in found if each is not None]
    if not candidates:
        raise not_found("response")
    return candidates


async def _run_again(visit: Visit, response: UUID, model: str | None) -> UUID:
    """The new response. Raises NotRetried."""
    settings = visit.state.settings
    times = StoreTimes(settings.retention, settings.limits.queue_wait)
    async with visit.pool.connection() as connection:
        new = await run_again(connection, response, model, visit.actor, times)
    visit.state.job_queue.enqueue(new, BACKGROUND)
    return new


def _routes(visit: Visit, candidate: Candidate) -> Routes:
    return visit.state.routes.of(candidate.project_id, candidate.policy.routes)


def _require_route(visit: Visit, candidates: Sequence[Candidate], model: str) -> None:
    """Raises PageError (400) if the projects have no upstream for the model."""
    for each in candidates:
        if not _routes(visit, each).has_route(model):
            raise PageError(
                400, "No such model", f"No upstream of the project {each.project} serves {model}."
            )


async def _known_models(visit: Visit, candidates: Sequence[Candidate]) -> list[str]:
    """The models that the project of the first response can name, as far as they are known now."""
    routes = _routes(visit, candidates[0])
    catalog = ModelList.in_state(visit.state).catalog
    listing = asyncio.create_task(catalog.models(routes))
    # A list that comes later is kept for the next page.
    listing.add_done_callback(lambda task: task.cancelled() or task.exception())
    await asyncio.wait([listing], timeout=_LISTS_TIME)
    names = {name for name in routes.patterns if "*" not in name}
    names |= {each.model for each in candidates}
    if listing.done():
        with suppress(RunFailed):
            names |= {one["id"] for one in listing.result()}
    return sorted(names)


PAGES = (Page("/retry", ask), Page("/retry", make, method="POST"))
