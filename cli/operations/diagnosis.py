"""Why a response stands as it does: from facts to a code and a sentence. Pure.

`live` counts the live processes by kind (leases.LIVE_WORKERS).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from models.db.queries.operations import ResponseState
from models.lifecycle import TERMINAL
from models.redis.channels import QUARANTINE, queue_for

SILENT_AFTER = 30.0
"""Seconds without anything new after which a response with a live owner counts as silent."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`state` is one of a fixed set of words, for programs; `why` a sentence, for people."""

    state: str
    why: str


def diagnose(row: ResponseState, live: Mapping[str, int]) -> Diagnosis:
    """What a response is doing or waiting for."""
    if row.status in TERMINAL:
        return Diagnosis("ended", f"ended as {row.status}{_reason_suffix(row)}")
    if row.owner is None or row.owner.dead:
        return _unowned(row, live)
    owner = process_text(row.owner.kind, row.owner.pid, row.owner.host)
    if row.owner.expires_at < row.now:
        silence = seconds_between(row.owner.expires_at, row.now)
        return Diagnosis(
            "owner_silent",
            f"the lease of its {owner} ran out {silence:.0f} s ago; the sweep of a live worker will declare it dead",
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
                f"a {what} was recorded {since:.1f} s ago; its {owner} acts on it at its next heartbeat",
            )
    if row.deadline < row.now:
        return Diagnosis("late", f"it is past its deadline; its {owner} should be ending it")
    idle = seconds_between(row.progressed_at, row.now)
    if idle < SILENT_AFTER:
        return Diagnosis(
            "running",
            f"attempt {row.attempt} runs at {owner}; the last news is {idle:.1f} s old",
        )
    return Diagnosis(
        "silent",
        f"its {owner} lives, but nothing new came for {idle:.0f} s: it waits for its upstream or a tool",
    )


def _unowned(row: ResponseState, live: Mapping[str, int]) -> Diagnosis:
    queue = queue_for(background=row.background, crashes=row.crashes)
    alone = queue == QUARANTINE
    dead = row.owner
    before = f"its {process_text(dead.kind, dead.pid, dead.host)} died; " if dead else ""
    decided = _decided_end(row)
    takers = (
        live.get("worker", 0) + live.get("quarantine", 0)
        if decided
        else live.get("quarantine" if alone else "worker", 0)
    )
    if not takers:
        return Diagnosis(
            "no_worker",
            f"{before}it waits in `{queue}`, and no {'quarantine worker' if alone else 'worker'} lives",
        )
    if decided:
        return Diagnosis("to_be_ended", f"{before}{_END_CAUSES[decided]}; the next sweep ends it")
    if alone:
        return Diagnosis(
            "quarantined",
            f"{before}{row.crashes} processes died with it; it waits for one of {takers} that run such alone, one at a time",
        )
    if row.resume_at is not None and row.resume_at > row.now:
        pause = seconds_between(row.now, row.resume_at)
        return Diagnosis(
            "deferred",
            f"its upstreams were down or at their limit; a worker takes it again in {pause:.0f} s",
        )
    rung = f"rung {row.enqueue_count + 1} times, last {seconds_between(row.enqueued_at, row.now):.0f} s ago"
    return Diagnosis(
        "orphaned" if dead else "waiting",
        f"{before}it waits in `{queue}`, {rung}; {takers} live workers, none has had room for it",
    )


def _decided_end(row: ResponseState) -> str | None:
    if row.cancel_requested_at is not None:
        return "cancel"
    if row.fail_requested_at is not None:
        return "fail"
    return "deadline" if row.deadline < row.now else None


_END_CAUSES = {
    "cancel": "a cancel was recorded",
    "fail": "an operator asked for it to fail",
    "deadline": "it is past its deadline",
}


def _reason_suffix(row: ResponseState) -> str:
    return f" ({row.reason})" if row.reason else ""


def process_text(kind: str, pid: int, host: str) -> str:
    """How a process is named in sentences."""
    return f"{'quarantine worker' if kind == 'quarantine' else kind} process {pid} on {host}"


def seconds_between(earlier: datetime, later: datetime) -> float:
    """Never negative: a creation time comes from another clock, and in whole seconds."""
    return max(0.0, (later - earlier).total_seconds())
