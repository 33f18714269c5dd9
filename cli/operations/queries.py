"""The operator's commands: each function uses one connection and returns facts.

No function here changes a response. Requests are recorded, and the owner or a sweep acts on them.
`cli/operations/report.py` prints the facts.
"""

import re
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar
from uuid import UUID

from cli.operations.diagnosis import diagnose
from cli.operations.facts import (
    Attempt,
    DrainResult,
    Explanation,
    OperatorRequest,
    ProcessState,
    ResponseState,
    StuckResponses,
)
from cli.operations.timeline import timeline
from models.db.database import SyncConnection, fetch_sync
from models.db.queries import operations
from models.db.queries.leases import LIVE_WORKERS
from models.ids import parse_response_id, response_id
from models.lifecycle import TERMINAL

MAX_LISTED = 200
"""Most responses that `stuck` shows."""
_POLL_INTERVAL = 0.1
"""Seconds between two checks whether a request was acted on."""
_MIN_PREFIX_LENGTH = 6

Database = SyncConnection
PolledT = TypeVar("PolledT")


class RequestRefused(Exception):
    """There is no such response or process, or the request is impossible.

    The message is one sentence for the operator.
    """


def explain(database: Database, id_text: str) -> Explanation:
    """A response's timeline. Raises RequestRefused if there is no response of that id."""
    row = _response_row(database, id_text)
    response = {"id": row.id}
    attempts = fetch_sync(database, operations.ATTEMPTS, response)
    stored = fetch_sync(database, operations.LOG_SUMMARY, response)
    blocks = {block.attempt: block for block in stored}
    return Explanation(
        response=ResponseState.from_row(row, _live_counts(database)),
        journalled=fetch_sync(database, operations.LAST_JOURNALLED, response)[0].last,
        attempts=[Attempt.from_rows(row, blocks.get(row.attempt)) for row in attempts],
        timeline=timeline(row, attempts, stored),
    )


def stuck(database: Database, idle: float) -> StuckResponses:
    """The open responses without progress for longer than `idle` seconds."""
    rows = fetch_sync(
        database, operations.STUCK, {"idle": timedelta(seconds=idle), "max_rows": MAX_LISTED + 1}
    )
    live = _live_counts(database)
    responses = [ResponseState.from_row(row, live) for row in rows[:MAX_LISTED]]
    return StuckResponses(idle, responses, more=len(rows) > MAX_LISTED)


def workers(database: Database, since: float) -> list[ProcessState]:
    """The live processes, then those that ended within `since` seconds."""
    rows = fetch_sync(database, operations.WORKERS, {"since": timedelta(seconds=since)})
    return [ProcessState.from_row(row) for row in rows]


def requeue(database: Database, id_text: str, wait: float) -> OperatorRequest:
    """Records that the owner shall release a response; waits up to `wait` seconds for that.

    Raises RequestRefused.
    """
    return _record_request(
        database,
        id_text,
        "requeue",
        wait,
        lambda row: row.requeue_requested_at is None or row.status in TERMINAL,
    )


def fail(database: Database, id_text: str, wait: float) -> OperatorRequest:
    """Records that a response shall end as failed; waits up to `wait` seconds for its end.

    Raises RequestRefused, also if the response ended in another way.
    """
    result = _record_request(database, id_text, "fail", wait, lambda row: row.status in TERMINAL)
    if result.acted and result.status != "failed":
        raise RequestRefused(f"{result.id} ended as {result.status} before the request was seen")
    return result


def drain(database: Database, name: str, wait: float) -> list[DrainResult]:
    """Records that processes shall hand over and exit; waits up to `wait` seconds for their end.

    `name` is an id, the beginning of one, or a host name. Raises RequestRefused.
    """
    rows = fetch_sync(database, operations.FIND_WORKERS, {"name": name, "prefix": _prefix(name)})
    processes = [row for row in rows if not row.dead]
    if not processes:
        raise RequestRefused(
            f"no live process has the id or host name {name}; `backburner workers` lists them"
        )
    if len(processes) > 1 and any(row.host != name for row in processes):
        raise RequestRefused(
            f"{name} is the beginning of {len(processes)} processes' ids; use a longer one"
        )
    ids = [row.id for row in processes]
    fetch_sync(database, operations.REQUEST_DRAIN, {"ids": ids})
    left = _poll_until(
        lambda: set(fetch_sync(database, operations.STILL_RUNNING, {"ids": ids})),
        lambda running: not running,
        wait,
    )
    return [
        DrainResult(row.id, row.kind, row.host, row.pid, gone=row.id not in left)
        for row in processes
    ]


def _record_request(
    database: Database,
    id_text: str,
    what: str,
    wait: float,
    is_done: Callable[[operations.ResponseState], bool],
) -> OperatorRequest:
    row = _response_row(database, id_text)
    statement = operations.REQUEST_FAIL if what == "fail" else operations.REQUEST_REQUEUE
    if not fetch_sync(database, statement, {"id": row.id}):
        raise RequestRefused(_why_refused(_response_row(database, id_text)))
    row = _poll_until(lambda: _response_row(database, id_text), is_done, wait)
    return OperatorRequest(
        response_id(row.id),
        what,
        is_done(row),
        row.status,
        diagnose(row, _live_counts(database)).why,
    )


def _why_refused(row: operations.ResponseState) -> str:
    name = response_id(row.id)
    if row.status in TERMINAL:
        return f"{name} has already ended as {row.status}"
    if row.cancel_requested_at is not None:
        return f"a cancel of {name} is recorded; it cannot end in another way"
    return f"{name} was already asked to fail"


def _poll_until(
    poll: Callable[[], PolledT], is_done: Callable[[PolledT], bool], wait: float
) -> PolledT:
    """The first value for which `is_done` is true, or the last value after `wait` seconds."""
    deadline = time.monotonic() + wait
    while not is_done(value := poll()) and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL)
    return value


def _response_row(database: Database, id_text: str) -> operations.ResponseState:
    identifier = _parse_id(id_text)
    rows = fetch_sync(database, operations.STATE, {"id": identifier}) if identifier else []
    if not rows:
        raise RequestRefused(
            f"there is no response {id_text[:100]}: "
            "it was never created, or its retention has ended"
        )
    return rows[0]


def _parse_id(id_text: str) -> UUID | None:
    """The id in its form of the API (`resp_…`) or of logs (a UUID); None if it is neither."""
    try:
        return parse_response_id(id_text) or UUID(id_text)
    except ValueError:
        return None


def _prefix(name: str) -> str | None:
    """The hexadecimal digits of the beginning of an id; None if `name` is not one."""
    digits = name.replace("-", "").lower()
    return digits if re.fullmatch(rf"[0-9a-f]{{{_MIN_PREFIX_LENGTH},32}}", digits) else None


def _live_counts(database: Database) -> dict[str, int]:
    return {row.kind: row.live for row in fetch_sync(database, LIVE_WORKERS, {})}
