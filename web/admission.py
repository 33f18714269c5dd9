"""What a create passes before its route: the rate of its project, the memory for its body, a place
among the open requests, and a permit.

All creates of a burst become ready in the same iteration of the event loop. Checked one after
another, eight hundred would delay each running stream by a quarter of a second, and neither
Postgres nor the workers would have anything to do meanwhile.
"""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import structlog
from fastapi import Depends, FastAPI, Request
from starlette.requests import HTTPConnection

from models.config.groups import LimitSettings
from models.config.web import WebSettings
from models.db.queries.api_keys import ApiKey
from models.errors import Unavailable
from models.load.budget import SharedBudget
from models.load.fair_queue import FairQueue
from models.load.pacing import Pacer
from models.projects.policy import ProjectLimits
from models.wire.json_input import BodyLimits
from web.hooks import Hooks
from web.http.auth import Key
from web.http.body import JsonBody, read_json
from web.http.request_record import request_record

logger = structlog.get_logger()

MAX_CREATES = 64
"""Creates that are checked and stored at a time, two thirds of them of one project. With fewer, a
Postgres whose commits take long would limit the rate."""
IN_AN_ITERATION = 4
"""Creates that are checked in one iteration of the event loop: a millisecond or two."""
_MAX_WAIT = 5.0
"""Seconds: as long as a statement waits for a connection of the pool."""


class Budgets:
    """What the requests of one process share."""

    def __init__(self, web: WebSettings) -> None:
        wait = web.bodies_wait.total_seconds()
        self.bodies = SharedBudget("large requests", web.bodies, web.bodies_per_project, wait)
        """Bytes of the request bodies that are read and checked, and of what is made of them."""
        self.streams = SharedBudget(
            "open streams and waiting requests", web.streams, web.streams_per_project
        )
        """Streams, and requests that wait for the end of a response."""
        self.uploads = SharedBudget("uploads and downloads", web.uploads, web.uploads_per_project)
        """Files that are being received or sent."""


class CreateAdmission:
    """Admits the creates of one web process: round robin by project, those of a project in the
    order in which their bodies arrived."""

    def __init__(
        self,
        limits: LimitSettings,
        streams: SharedBudget,
        hooks: Hooks,
    ) -> None:
        """`streams`: the open streams and waiting requests."""
        self.body_limits = BodyLimits(limits.body, limits.text, limits.values)
        """How large a request body may be."""
        self._streams = streams
        self._hooks = hooks
        self._permits = FairQueue(MAX_CREATES)
        self._pacer = Pacer(IN_AN_ITERATION)

    async def read(self, request: Request, key: ApiKey) -> JsonBody:
        """The body of the create, which is admitted until the body is released. Raises
        QuotaExceeded, what `read_json` raises, ShareUsedUp and Unavailable."""
        limits = self._hooks.quotas.require_rate(key)
        body = await read_json(request, limits_of_project(self.body_limits, key.policy.limits))
        body.limits = limits
        if _keeps_connection(body.value):
            reserve_until_end(request, self._streams)
        await self._admit(body, key.project_id)
        return body

    async def admit(self, body: JsonBody, key: ApiKey) -> None:
        """Admits the create of a WebSocket until its body is released. Raises QuotaExceeded and
        Unavailable."""
        body.limits = self._hooks.quotas.require_rate(key)
        await self._admit(body, key.project_id)

    async def _admit(self, body: JsonBody, project: UUID) -> None:
        """Waits for a permit, which the body has until it is released, and for an iteration of the
        event loop. Raises Unavailable if there is no permit within five seconds."""
        try:
            async with asyncio.timeout(_MAX_WAIT):
                await self._permits.acquire(project)
        except TimeoutError:
            logger.warning("create_waited_too_long", seconds=_MAX_WAIT)
            raise Unavailable from None
        body.release_permit = partial(self._permits.release, project)
        try:
            await self._pacer.wait(project)
        except asyncio.CancelledError:
            body.release()
            raise


def reserve_until_end(connection: HTTPConnection, budget: SharedBudget) -> None:
    """Counts this request in the budget until it ends. Raises ShareUsedUp or Unavailable."""
    record = request_record(connection)
    record.at_end(budget.reserve(record.project or "").release)


def limits_of_project(limits: BodyLimits, own: ProjectLimits) -> BodyLimits:
    """`limits`, as far as those of a project are not smaller."""
    if own.body is None and own.text is None:
        return limits
    size, text = own.body or limits.size, own.text or limits.text
    return BodyLimits(min(limits.size, size), min(limits.text, text), limits.values)


def _keeps_connection(body: Any) -> bool:
    """Whether the answer to a create takes as long as its response."""
    is_background = type(body) is dict and body.get("background") is True
    return not is_background or body.get("stream") is True


def bind_admission(app: FastAPI, admission: CreateAdmission) -> None:
    """Makes `admitted_body` admit the creates of this application."""
    app.state.admission = admission


async def admitted_body(request: Request, key: Key) -> AsyncGenerator[JsonBody]:
    """The body of a create that was admitted, which is released at the end at the latest. Raises as
    `CreateAdmission.read` does."""
    admission: CreateAdmission = request.app.state.admission
    body = await admission.read(request, key)
    try:
        yield body
    finally:
        body.release()


AdmittedBody = Annotated[JsonBody, Depends(admitted_body)]
"""The body of a create that was admitted."""
