"""What becomes of the input that has arrived while a response ran: a successor has it as its input,
or it waits for what the client has to send first (ADR 0075)."""

from collections.abc import Sequence

import structlog

from models.db.queries.steers import QueuedSteer
from models.ids import new_uuid, response_id
from models.lifecycle import Status
from models.ownership.steps import Steering, Successor
from models.secrets import NoKey, Sealed, Sealer, Unreadable
from models.wire.response import OWN_PARAMETERS, opening_frames
from models.wire.steering import required_input
from worker.run.attempt import Attempt

logger = structlog.get_logger()


def steering_of(
    attempt: Attempt, queued: Sequence[QueuedSteer], sealer: Sealer, created_at: int
) -> Steering | None:
    """What the ending of a response stores beside it, if it ends now. None: it has no steers.

    `created_at`: of the successor, whole seconds since the epoch.
    """
    items = [item for steer in queued for item in steer.items or ()]
    if not items:
        return None
    steers = queued[0].steers
    required = required_input(attempt.final_output().items)
    if required:
        return Steering(steers, required_input=required)
    new_id, row, facts = new_uuid(), attempt.claim.row, attempt.facts
    secrets = None
    if row.secrets_key_id is not None and row.sealed_secrets is not None:
        # They are sealed for one response alone.
        try:
            opened = sealer.open(row.id, Sealed(row.secrets_key_id, row.sealed_secrets))
            secrets = sealer.seal(new_id, opened)
        except (Unreadable, NoKey):
            logger.warning("successor_without_secrets", response=facts.id)
            return Steering(steers)
    parameters = {
        name: value for name, value in facts.parameters.items() if name not in OWN_PARAMETERS
    }
    _, frames = opening_frames(
        facts.evolve(
            id=response_id(new_id),
            parameters=parameters,
            created_at=created_at,
            status=(Status.QUEUED if facts.background else Status.IN_PROGRESS).value,
            previous_response_id=facts.id,
        )
    )
    is_changed = len(parameters) < len(facts.parameters)
    successor = Successor(
        new_id, items, created_at, frames, secrets, parameters if is_changed else None
    )
    return Steering(steers, successor)
