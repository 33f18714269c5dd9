"""Why a response is in its state: a code and a sentence, from its row. Pure.

`live` counts the live processes by kind (leases.LIVE_WORKERS).
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.db.queries.line import MAX_COUNTED, PlaceInLine
from models.db.queries.operations import ResponseState
from models.errors import UNKNOWN_CONTENT
from models.ids import response_id
from models.lifecycle import TERMINAL, Lane
from models.redis.channels import QUARANTINE, queue_for
from models.time_text import format_seconds, seconds_between

SILENT_AFTER = 30.0
"""Seconds without progress after which a response with a live owner counts as silent."""

_AWAITED_IN_VAIN = (
    "its previous response has ended so that it cannot run, or an operator asked for it to fail"
)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`state` is one of a fixed set of codes, for programs; `why` is a sentence, for people."""

    state: str
    why: str


def diagnose(
    row: ResponseState, live: Mapping[str, int], place: PlaceInLine | None = None
) -> Diagnosis:
    """What a response is doing or waiting for. `place`: where it waits for a slot, if that was
    read."""
    if row.status in TERMINAL:
        return Diagnosis("ended", f"ended as {row.status}{_reason_suffix(row)}")
    if row.owner is None or row.owner.dead:
        return _unowned(row, live, place)
    owner = process_text(row.owner.kind, row.owner.pid, row.owner.host)
    if row.owner.expires_at < row.now:
        silence = seconds_between(row.owner.expires_at, row.now)
        return Diagnosis(
            "owner_silent",
            f"the lease of its {owner} expired {silence:.0f} s ago; "
            "the sweep of a live worker will declare it dead",
        )
    for what, requested_at in (
        ("cancel", row.cancel_requested_at),
        ("fail", row.fail_requested_at),
        ("requeue", row.requeue_requested_at),
    ):
        if requested_at is not None:
            since = seconds_between(requested_at, row.now)
            return Diagnosis(
                f"{what}_requested",
                f"a {what} was recorded {since:.1f} s ago; "
                f"its {owner} acts on it at its next heartbeat",
            )
    if row.deadline < row.now:
        return Diagnosis("late", f"it is past its deadline; its {owner} should end it soon")
    if row.is_retrying:
        return Diagnosis("retrying", f"{_retrying_text(row)}; its {owner} tries now")
    idle = seconds_between(row.progressed_at, row.now)
    if idle < SILENT_AFTER:
        return Diagnosis(
            "running", f"attempt {row.attempt} runs in {owner}; last event {idle:.1f} s ago"
        )
    return Diagnosis(
        "silent",
        f"its {owner} is alive, but produced nothing for {idle:.0f} s: "
        "it waits for its upstream or a tool",
    )


def _unowned(row: ResponseState, live: Mapping[str, int], place: PlaceInLine | None) -> Diagnosis:
    """Why a response without a live owner waits."""
    queue = queue_for(background=row.background, crashes=row.crashes)
    quarantined = queue == QUARANTINE
    dead = row.owner
    before = f"its {process_text(dead.kind, dead.pid, dead.host)} died; " if dead else ""
    end_cause = _end_cause(row)
    kind = "quarantine" if quarantined else "worker"
    workers = live.get("worker", 0) + live.get("quarantine", 0) if end_cause else live.get(kind, 0)
    if not workers:
        name = "quarantine worker" if quarantined else "worker"
        return Diagnosis("no_worker", f"{before}it waits in `{queue}`, and no {name} is alive")
    if end_cause:
        return Diagnosis("to_be_ended", f"{before}{end_cause}; the next sweep ends it")
    if quarantined:
        return Diagnosis(
            "quarantined",
            f"{before}{row.crashes} processes died with it; it waits for one of {workers} "
            "quarantine workers, which run such responses in small groups",
        )
    if row.waits and row.previous_response_id is not None:
        previous = response_id(row.previous_response_id)
        return Diagnosis("waits_for_previous", f"it waits for the end of {previous}")
    pause = 0.0 if row.resume_at is None else seconds_between(row.now, row.resume_at)
    if row.is_retrying:
        next_try = f"next try in {format_seconds(pause)}" if pause else "its next try is due"
        left = format_seconds(seconds_between(row.now, row.deadline))
        return Diagnosis(
            "retrying", f"{_retrying_text(row)}; {next_try}, and its deadline is in {left}"
        )
    if pause:
        return Diagnosis(
            "deferred",
            f"it was given up with an error; a worker claims it again in {format_seconds(pause)}",
        )
    if place is not None:
        since = seconds_between(row.created_at, row.now)
        return Diagnosis(
            "waiting",
            f"it waits for a slot of one of {workers} live workers in `{queue}`, lane "
            f"`{Lane(place.lane).name.lower()}`, created {since:.0f} s ago; "
            f"{_count_text(place.before)} of its project before it there",
        )
    times, last = row.enqueue_count + 1, seconds_between(row.enqueued_at, row.now)
    return Diagnosis(
        "orphaned" if dead else "waiting",
        f"{before}it waits in `{queue}`, enqueued {times} times, last {last:.0f} s ago; "
        f"{workers} live workers, none had a free slot",
    )


def _count_text(responses: int) -> str:
    if responses >= MAX_COUNTED:
        return f"{MAX_COUNTED} responses or more"
    return f"{responses or 'no'} response{'' if responses == 1 else 's'}"


def _end_cause(row: ResponseState) -> str | None:
    """Why the next sweep ends a response; None if it does not."""
    if row.cancel_requested_at is not None:
        return "a cancel was recorded"
    if row.fail_requested_at is not None:
        return _AWAITED_IN_VAIN if row.waits else "an operator asked for it to fail"
    return "it is past its deadline" if row.deadline < row.now else None


def _retrying_text(row: ResponseState) -> str:
    """Since when it waits for its upstream, how often it was tried, and what happened last."""
    tries = "1 try has" if row.failed_tries == 1 else f"{row.failed_tries} tries have"
    since = seconds_between(row.retrying_since or row.now, row.now)
    return f"{tries} failed in {format_seconds(since)}; {failures_text(row.failures)}"


def _reason_suffix(row: ResponseState) -> str:
    return f" ({row.reason})" if row.reason else ""


_ANSWERED_WITH = "The upstream answered with "


def cause_text(message: str) -> str:
    """A failure of an upstream in few words: `HTTP 500: out of memory`."""
    return message.removeprefix(_ANSWERED_WITH).rstrip(".")


def failures_text(failures: Sequence[Mapping[str, Any]] | None) -> str:
    """Why a response was deferred. None: no call of an upstream failed."""
    if not failures:
        return "its upstreams were down or at their limit"
    return "; ".join(map(_call_text, failures))


def _call_text(call: Mapping[str, Any]) -> str:
    if call["reason"] == UNKNOWN_CONTENT:
        return f"upstream {call['upstream']} sent content that is not understood: {call['message']}"
    message = call["message"].rstrip(".")
    return f"upstream {call['upstream']} failed ({call['reason']}): {message}{_tries_text(call)}"


def _tries_text(call: Mapping[str, Any]) -> str:
    tries, between = call.get("tries", 1), call.get("answered_between", 0)
    if tries < 2:
        return ""
    return f" ({tries} times in a row; it answered other requests of the model before {between})"


PROCESS_TEXT = re.compile(r"(\w+ process) \d+ on [^\s;,:]+")
"""What `process_text` makes; its group does not say where the process runs."""


def process_text(kind: str, pid: int, host: str) -> str:
    """The name of a process in sentences."""
    return f"{'quarantine worker' if kind == 'quarantine' else kind} process {pid} on {host}"
