"""/v1/schedules: background responses at given times (docs/background.md)."""

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from features.request_bodies import counted_body
from features.schedules.web import Schedules, ScheduleStore
from web.http.auth import Key
from web.http.body import counted_json
from web.http.json_responses import json_response
from web.http.params import paging
from web.http.request_record import actor_of
from web.state import app_state

router = APIRouter(prefix="/v1/schedules")


@router.post("")
async def create_schedule(request: Request, key: Key) -> Response:
    """Creates a schedule; its template is checked at once."""
    body = await counted_body(request, key)
    store = _store(request)
    make = partial(store.create, key, body.value, actor_of(request))
    show = partial(store.show, key.project_id)
    creates = app_state(request).creates
    return json_response(await creates.once(request, body.value, make, show))


@router.get("")
async def list_schedules(request: Request, key: Key) -> Response:
    """The schedules of the project."""
    return await counted_json(request, await _store(request).page(key.project_id, paging(request)))


@router.get("/{schedule_id}")
async def retrieve_schedule(schedule_id: str, request: Request, key: Key) -> Response:
    """The schedule, with its next slots."""
    return await counted_json(request, await _store(request).show(key.project_id, schedule_id))


@router.post("/{schedule_id}")
async def update_schedule(schedule_id: str, request: Request, key: Key) -> Response:
    """Changes the schedule. From then on it runs with the key of this request."""
    body = await counted_body(request, key)
    changed = await _store(request).update(key, schedule_id, body.value, actor_of(request))
    return json_response(changed)


@router.delete("/{schedule_id}")
async def delete_schedule(schedule_id: str, request: Request, key: Key) -> Response:
    """Deletes the schedule and its runs. Responses that it has made stay."""
    deleted = await _store(request).delete(key.project_id, schedule_id, actor_of(request))
    return json_response(deleted)


@router.post("/{schedule_id}/pause")
async def pause_schedule(schedule_id: str, request: Request, key: Key) -> Response:
    """Pauses the schedule. A second pause changes nothing."""
    paused = await _store(request).pause(key.project_id, schedule_id, actor_of(request))
    return json_response(paused)


@router.post("/{schedule_id}/resume")
async def resume_schedule(schedule_id: str, request: Request, key: Key) -> Response:
    """Resumes the schedule; what becomes of slots that have passed is its `missed`."""
    resumed = await _store(request).resume(key.project_id, schedule_id, actor_of(request))
    return json_response(resumed)


@router.post("/{schedule_id}/run")
async def run_schedule(schedule_id: str, request: Request, key: Key) -> Response:
    """Runs the schedule now, beside its slots."""
    store, project = _store(request), key.project_id
    make = partial(store.run, project, schedule_id, actor_of(request))
    show = partial(store.show_run, project, schedule_id)
    return json_response(await app_state(request).creates.once(request, {}, make, show))


@router.get("/{schedule_id}/runs")
async def list_schedule_runs(schedule_id: str, request: Request, key: Key) -> Response:
    """The runs of the schedule."""
    page = await _store(request).runs(key.project_id, schedule_id, paging(request))
    return await counted_json(request, page)


def _store(request: Request) -> ScheduleStore:
    return Schedules.of(request).store


ROUTERS = (router,)
