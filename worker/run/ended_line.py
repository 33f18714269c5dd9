"""The line of a response that this worker has ended."""

import time

from models.ended_line import EndedLine
from models.ownership.steps import Ending
from models.ownership.timeline import attempts_on_timeline
from worker.log.event_log import EventLog
from worker.run.attempt import Attempt


def ended_line(attempt: Attempt, log: EventLog, ending: Ending) -> EndedLine:
    """The line for this ending, which is stored.

    The times until the claim and until the first output are known of a first attempt only. The
    duration of a response with more attempts comes from times in whole seconds.
    """
    row = attempt.claim.row
    attempts = attempts_on_timeline(row.attempt)
    is_first = attempts == 1
    seconds: float = max(0, ending.completed_at - row.created_at)
    if is_first:
        seconds = row.seconds_queued + time.monotonic() - log.started_at
    return EndedLine(
        response=row.id,
        request=row.request_id,
        status=ending.status,
        reason=ending.reason,
        model=row.model,
        background=row.background,
        attempts=attempts,
        upstream=ending.upstream,
        queued_seconds=row.seconds_queued if is_first else None,
        first_token_seconds=log.first_event_seconds,
        seconds=seconds,
        usage=ending.usage,
        output=attempt.final_output().items,
    )
