"""The retry by an operator, from the console or the command line: the stored request is stored once
more, for a worker. Clients use the API, where it is checked as a new create (routes.py)."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import orjson

from features.audit import record
from features.retry.body import mcp_servers
from features.retry.queries import (
    MAX_INPUT,
    REQUEST_WITHOUT_INPUT,
    STORED_REQUEST,
    StoredRequest,
)
from models.db.database import Connection, Pool, execute, fetch, find_by_id
from models.db.queries import create
from models.db.queries.audit import Actor, AuditEntry
from models.db.queries.create import NewRow, insert_values
from models.ids import new_uuid, response_id
from models.lifecycle import TERMINAL, Lane, OperatorStatus, Status
from models.projects.policy import ZERO_RETENTION_SECONDS, ProjectPolicy, may_use
from models.wire.events import ResponseCreated, ResponseQueued, frame
from models.wire.purpose import Purpose, split_stored_parameters
from models.wire.response import RETRY_OF, ResponseFacts, response_object

_MAX_MODEL = 512
"""Characters of the name of a model, as in a create."""
_NOT_CONTINUED = (Status.FAILED, Status.CANCELLED)
_DELETED = "it was deleted"
NOT_COMPLETED = [OperatorStatus(each) for each in Status if each in TERMINAL - {Status.COMPLETED}]
"""What is run again of a selection by a filter without a status."""


class NotRetried(Exception):
    """A response is not run again; the text says why."""


@dataclass(frozen=True, slots=True)
class StoreTimes:
    """For how long a new response is kept and may wait, by the settings."""

    retention: timedelta
    queue_wait: timedelta


@dataclass(frozen=True, slots=True)
class Candidate:
    """A response that somebody wants to run again."""

    id: UUID
    project_id: UUID
    project: str
    policy: ProjectPolicy
    status: str
    model: str
    retried_by: UUID | None
    """the response that runs it again already"""
    refusal: str | None
    """why it cannot be run again; None: it can"""


async def find_candidate(on: Pool | Connection, response: UUID) -> Candidate | None:
    """What would be run again. None: it is deleted, or its project is archived."""
    stored = await find_by_id(on, REQUEST_WITHOUT_INPUT, response)
    if stored is None:
        return None
    return Candidate(
        stored.id,
        stored.project_id,
        stored.project,
        ProjectPolicy.from_json(stored.policy),
        stored.status,
        stored.model,
        stored.retried_by,
        _refusal(stored),
    )


async def run_again(
    connection: Connection, retried: UUID, model: str | None, actor: Actor, times: StoreTimes
) -> UUID:
    """Stores a new background response with the request of `retried`, and the entry in the audit
    log, in a transaction. Returns its id; a sweep finds it, if nobody enqueues it. `model`: another
    one. Raises NotRetried."""
    async with connection.transaction():
        stored = await find_by_id(connection, STORED_REQUEST, retried)
        if stored is None or (refusal := _refusal(stored)) is not None:
            raise NotRetried(_DELETED if stored is None else refusal)
        if model is not None:
            _require_model(stored, model)
        row = _new_row(stored, model or stored.model)
        values = insert_values([row], None, times.retention, times.queue_wait)
        await fetch(connection, create.INSERT, values)
        await execute(connection, create.NOTE_RETRY, {"id": retried, "new": row.id})
        details = {"retry": response_id(row.id), "model": row.model}
        entry = AuditEntry(actor, "response.retry", response_id(retried), details=details)
        await record(connection, entry.of_project(stored.project))
    return row.id


def _require_model(stored: StoredRequest, model: str) -> None:
    """Raises NotRetried for what is no name of a model, or of one that the project may not use."""
    if not (0 < len(model) <= _MAX_MODEL and model.isprintable()):
        raise NotRetried("that is no name of a model")
    if not may_use(model, ProjectPolicy.from_json(stored.policy).models):
        raise NotRetried(f"its project may not use the model {model}")


def _refusal(stored: StoredRequest) -> str | None:
    """Why the response is not run again; None: it can be."""
    if stored.status not in TERMINAL:
        return "it has not ended"
    if split_stored_parameters(stored.parameters).purpose is not Purpose.ANSWER:
        return "it is no response of a client"
    if mcp_servers(stored.parameters):
        return (
            "the credentials of its MCP servers were deleted with its end; its client can send "
            "them again (POST /v1/responses/{id}/retry)"
        )
    if stored.conversation_id is not None:
        return "it is in a conversation, where only its client can run it again"
    if stored.input_size > MAX_INPUT:
        return "its input is too large for this; its client can run it again"
    return _refusal_of_previous(stored)


def _refusal_of_previous(stored: StoredRequest) -> str | None:
    if stored.previous_response_id is None:
        return None
    if stored.previous_status is None:
        return "its previous response was deleted"
    if stored.previous_status not in TERMINAL:
        return "its previous response has not ended"
    if "wait_for_previous" in stored.parameters and stored.previous_status in _NOT_CONTINUED:
        return (
            f"its previous response has ended as {stored.previous_status}; its client can name "
            "another one (POST /v1/responses/{id}/retry)"
        )
    return None


def _new_row(stored: StoredRequest, model: str) -> NewRow:
    new_id, policy = new_uuid(), ProjectPolicy.from_json(stored.policy)
    parameters = stored.parameters | {RETRY_OF: response_id(stored.id)}
    previous = stored.previous_response_id
    facts = ResponseFacts(
        id=response_id(new_id),
        created_at=stored.now,
        status=Status.QUEUED.value,
        model=model,
        parameters=parameters,
        background=True,
        store=stored.store,
        previous_response_id=None if previous is None else response_id(previous),
    )
    shown = response_object(facts, [])
    frames = frame(ResponseCreated(shown), 0) + frame(ResponseQueued(shown), 1)
    retention = policy.retention
    return NewRow(
        id=new_id,
        project=stored.project_id,
        background=True,
        store=stored.store,
        model=model,
        parameters=orjson.dumps(parameters),
        previous=previous,
        created_at=stored.now,
        waiter=None,
        lane=Lane.DEFAULT if stored.lane == Lane.BATCH else stored.lane,
        items=orjson.dumps(stored.input),
        last=1,
        frames=frames,
        api_key=stored.api_key_id,
        retention=None if retention is None else int(retention.total_seconds()),
        kept_for=ZERO_RETENTION_SECONDS if policy.zero_retention else None,
    )
