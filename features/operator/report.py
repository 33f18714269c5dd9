"""Responses and processes as text for people, and as objects for programs (`--json`). Reads nothing
but the terminal's width."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from cli.output import (
    GREEN,
    GREY,
    RED,
    YELLOW,
    as_json,
    clean,
    clean_lines,
    fitted_table,
    paint,
    wrap,
)
from features.operator.connection import Fields, fields_of
from features.operator.diagnosis import Diagnosis, cause_text
from features.operator.history import History
from features.operator.operations import (
    OperatorRequest,
    ResponseList,
    ResponseReport,
    StuckResponses,
)
from models.db.queries.listing import ListedResponseRow, ResponseDetails
from models.db.queries.operations import AttemptRow, LogSummary, ResponseState, WorkerRow
from models.ids import conversation_id, response_id
from models.redis.channels import queue_for
from models.time_text import format_date, format_seconds, format_time, seconds_between

SHORT_ID = 16
"""Hexadecimal digits of a short id: its time, to a quarter of a microsecond."""
_SHORT_RESPONSE_ID = len("resp_") + SHORT_ID
_SHORT_PROCESS_ID = SHORT_ID + 2
"""With two dashes."""
_INDENT = "    "
_COLOURS = {
    "completed": GREEN,
    "live": GREEN,
    "in_progress": YELLOW,
    "retrying": YELLOW,
    "draining": YELLOW,
    "silent": YELLOW,
    "failed": RED,
    "dead": RED,
    "incomplete": RED,
    "cancelled": GREY,
    "stopped": GREY,
}


def state_text(state: str) -> str:
    """A status of a response or a state of a process, in its colour."""
    return paint(state, _COLOURS.get(state))


def explanation(history: History) -> str:
    """The timeline, and the present state below it."""
    first = history.timeline[0].at
    lines = [f"{response_id(history.state.id)}, created {format_time(first)}"]
    lines += [
        _timeline_line(f"{(event.at - first) / timedelta(seconds=1):>+12.3f} s", event.text)
        for event in history.timeline
    ]
    last = history.journalled
    published = "" if last is None else f"; events up to {last} were published"
    return "\n".join([*lines, _timeline_line("now", f"{history.why}{published}")])


def explanation_fields(history: History) -> Fields:
    """What happened to one response. `journalled`: the last event that was published and not yet
    flushed."""
    return {
        "response": _state_fields(history.state, history.diagnosis),
        "journalled": history.journalled,
        "attempts": [
            _attempt_fields(each, history.logs.get(each.attempt)) for each in history.attempts
        ],
        "timeline": history.timeline,
    }


def _state_fields(row: ResponseState, diagnosis: Diagnosis) -> Fields:
    """One response now. `idle_seconds`: since its last progress; of an ended response, until its
    end. `next_try_at`: of a `retrying` one; null also while it is tried."""
    return fields_of(
        row,
        "id status state why background model conversation queue attempt crashes turns"
        " enqueue_count worker idle_seconds created_at completed_at deadline reason error"
        " operator_status failed_upstream retrying_since failed_tries next_try_at",
        id=response_id(row.id),
        state=diagnosis.state,
        why=diagnosis.why,
        conversation=row.conversation_id and conversation_id(row.conversation_id),
        queue=queue_for(background=row.background, crashes=row.crashes),
        idle_seconds=_idle_seconds(row),
        retrying_since=row.retrying_since if row.is_retrying else None,
        failed_tries=row.failed_tries if row.is_retrying else None,
        next_try_at=row.resume_at if row.is_retrying else None,
    )


def _idle_seconds(row: ResponseState) -> float:
    return round(seconds_between(row.progressed_at, row.now), 3)


def _attempt_fields(row: AttemptRow, log: LogSummary | None) -> Fields:
    """One claim. `outcome` is null while it runs, and if it ended the response. `failures`:
    `upstream`, `reason`, `message` of each call that failed; a deferred attempt waited for the last
    one. The reason `unknown_content`: the answer had content in the fields that `message` names,
    which nobody knows."""
    return fields_of(
        row,
        "attempt worker kind host pid claimed_at turns outcome ended_at first_event last_event"
        " flushes bytes failures",
        turns=len(row.turns_ended_at),
        first_event=log.first if log else None,
        last_event=log.last if log else None,
        flushes=log.blocks if log else 0,
        bytes=log.bytes if log else 0,
    )


def _timeline_line(when: str, text: str) -> str:
    return wrap(clean(text), " " * 16, f"{when:>14}  ")


def stuck(found: StuckResponses) -> str:
    """One line per response; on a terminal one more with the reason."""

    def row(each: tuple[ResponseState, Diagnosis], short: bool) -> tuple[str, ...]:
        state, diagnosis = each
        return (
            _response_id(response_id(state.id), short=short),
            diagnosis.state,
            format_seconds(_idle_seconds(state)),
            str(state.attempt),
            clean(diagnosis.why),
        )

    head = ("RESPONSE", "STATE", "IDLE", "ATTEMPT", "WHY")
    seconds = f"{found.idle_seconds:g} s"
    empty = f"no open response has been without progress for longer than {seconds}"
    text = fitted_table(found.responses, head, row, empty=empty)
    return f"{text}\n… and more" if found.more else text


def stuck_fields(found: StuckResponses) -> Fields:
    """Responses without progress."""
    return fields_of(
        found,
        "idle_seconds responses more",
        responses=[_state_fields(row, diagnosis) for row, diagnosis in found.responses],
    )


def workers(processes: Sequence[WorkerRow]) -> str:
    """One line per process."""

    def row(process: WorkerRow, short: bool) -> tuple[str, ...]:
        return (
            str(process.id)[:_SHORT_PROCESS_ID] if short else str(process.id),
            process.kind,
            process.host,
            str(process.pid),
            state_text(process.state),
            format_seconds(process.age_seconds) if short else format_time(process.started_at),
            f"{process.lease_seconds:.1f} s" if process.ended is None else "",
            str(process.running),
            _ended_text(process),
        )

    head = ("ID", "KIND", "HOST", "PID", "STATE", "STARTED", "LEASE", "RUNS", "ENDED")
    return fitted_table(processes, head, row, ["HOST"], empty="no process has registered")


def worker_fields(process: WorkerRow) -> Fields:
    """One process. `running`: responses that it owns; `slots`: that it runs at most, null if it
    states none."""
    return fields_of(
        process,
        "id kind host pid state started_at age_seconds lease_seconds running slots version ended",
    )


def _ended_text(process: WorkerRow) -> str:
    """How it ended, where its state does not show that."""
    return "" if process.state == "stopped" else process.ended or ""


def _response_id(public_id: str, *, short: bool) -> str:
    """A response's id, or its beginning, which commands accept if it is unique."""
    return public_id[:_SHORT_RESPONSE_ID] if short else public_id


def _request(facts: OperatorRequest) -> str:
    """What happened to a request."""
    if facts.refused:
        return f"{facts.id}: {paint('not done', RED)}: {clean(facts.why)}"
    outcome = "done" if facts.acted else "recorded, not acted on yet"
    return f"{facts.id}: {outcome}: {clean(facts.why)}"


def requests(facts: Sequence[OperatorRequest]) -> str:
    """One line per response."""
    return "\n".join(map(_request, facts))


def intention(action: str, found: ResponseList) -> str:
    """What an action with a filter would do."""
    if not found.responses:
        return "No open response fits; nothing was done."
    count = f"{'more than ' if found.more else ''}{len(found.responses)}"
    return f"Nothing was done. With --yes: {action} {count} {_noun(len(found.responses))}."


def _noun(count: int) -> str:
    return "response" if count == 1 else "responses"


def responses(found: ResponseList) -> str:
    """One line per response."""
    empty = "no response fits"
    if found.since_seconds is not None:
        since = format_seconds(found.since_seconds)
        empty = f"no response of the last {since} fits; --since 30d looks further back"

    def row(each: ListedResponseRow, short: bool) -> tuple[str, ...]:
        return (
            _response_id(each.public_id, short=short),
            state_text(each.operator_status),
            format_seconds(each.age_seconds) if short else format_date(each.created_at),
            "" if each.run_seconds is None else format_seconds(each.run_seconds),
            clean(each.model),
            clean(each.project),
            each.upstream or "",
            _window(each.window, missed=each.missed_window),
            _list_reason(each),
        )

    head = (
        "RESPONSE",
        "STATUS",
        "CREATED",
        "RAN",
        "MODEL",
        "PROJECT",
        "UPSTREAM",
        "WINDOW",
        "REASON",
    )
    text = fitted_table(found.responses, head, row, ["MODEL", "PROJECT", "UPSTREAM"], empty=empty)
    return f"{text}\n… and more; --limit shows them" if found.more else text


def _list_reason(row: ListedResponseRow) -> str:
    """Why it failed, is incomplete, or waits for its upstream."""
    if row.failed_tries is not None:
        tries = "1 try" if row.failed_tries == 1 else f"{row.failed_tries} tries"
        next_try = row.next_try_seconds
        pause = f"next in {format_seconds(next_try)}" if next_try else "next now"
        return f"{tries}, {pause}: {clean(cause_text(row.last_error or ''))}"
    return row.reason if row.reason and row.reason != row.status else ""


def _window(window: str | None, *, missed: bool | None) -> str:
    """A completion window, and whether it was missed."""
    return f"{window} missed" if missed else window or ""


def responses_fields(found: ResponseList) -> Fields:
    """A list of responses."""
    listed = [_listed_fields(each) for each in found.responses]
    return fields_of(found, "responses more since_seconds", responses=listed)


def _listed_fields(row: ListedResponseRow) -> Fields:
    return fields_of(
        row,
        "id status background project model upstream reason attempt input_tokens output_tokens"
        " created_at completed_at age_seconds run_seconds window missed_window continuation_id"
        " operator_status retrying_since failed_tries next_try_at last_error",
        id=row.public_id,
    )


def response(report: ResponseReport) -> str:
    """One line per fact."""
    facts = report.row
    previous, conversation = _continued(facts)
    input_tokens, output_tokens = _tokens(facts)
    mode = "background" if facts.background else "foreground"
    shown = {
        "status": state_text(facts.operator_status),
        "now": clean(report.why),
        "reason": facts.reason,
        "error": clean(facts.error["message"]) if facts.error else None,
        "model": clean(facts.model),
        "upstream": facts.upstream,
        "project": facts.project,
        "mode": mode if facts.store else f"{mode}, not to be stored",
        "waits for" if facts.waits else "continues": conversation or previous,
        "runs again": facts.retry_of,
        "run again": None if facts.retried_by is None else f"by {response_id(facts.retried_by)}",
        "window": _window(facts.window, missed=facts.missed_window) or None,
        "window ends": format_date(facts.window_ends_at) if facts.window_ends_at else None,
        "thread": clean(facts.continuation_id) if facts.continuation_id else None,
        "created": format_date(facts.created_at),
        "first claim": format_date(facts.started_at) if facts.started_at else None,
        "ended": format_date(facts.completed_at) if facts.completed_at else None,
        "deadline": None if facts.completed_at or facts.waits else format_date(facts.deadline),
        "kept until": format_date(facts.expires_at) if facts.store else None,
        "attempts": str(facts.attempt),
        "turns": str(facts.turns),
        "tool calls": str(facts.tool_calls),
        "items": f"{facts.input_items} input, {facts.output_items} output",
        "tokens": None if input_tokens is None else f"{input_tokens} input, {output_tokens} output",
        "deleted": "hidden from the API; the purge deletes it" if facts.deleted else None,
    }
    lines = [response_id(facts.id)]
    lines += [
        wrap(text, " " * 13, f"{name:>11}  ") for name, text in shown.items() if text is not None
    ]
    for item in report.output or ():
        lines.append(f"{item.get('type', 'item')}:")
        lines += [_INDENT + line for line in _item_text(item).split("\n")]
    return "\n".join(lines)


def response_fields(report: ResponseReport) -> Fields:
    """One response. `output_items`: those that are stored: all of a response that has ended, else
    those of finished turns. `output`: the output items; null unless they were requested."""
    row = report.row
    previous, conversation = _continued(row)
    input_tokens, output_tokens = _tokens(row)
    return fields_of(
        row,
        "id status why background project model upstream reason error attempt turns input_tokens"
        " output_tokens input_items output_items tool_calls store deleted previous_response waits"
        " retry_of retried_by conversation created_at started_at completed_at deadline expires_at"
        " window window_ends_at missed_window continuation_id output",
        id=response_id(row.id),
        why=report.why,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        previous_response=previous,
        retried_by=None if row.retried_by is None else response_id(row.retried_by),
        conversation=conversation,
        output=report.output,
    )


def _continued(row: ResponseDetails) -> tuple[str | None, str | None]:
    """The response and the conversation that it continues."""
    previous, conversation = row.previous_response_id, row.conversation_id
    return (
        None if previous is None else response_id(previous),
        None if conversation is None else conversation_id(conversation),
    )


def _tokens(row: ResponseDetails) -> tuple[int | None, int | None]:
    """Of its input, and of its output."""
    usage = row.usage or {}
    return usage.get("input_tokens"), usage.get("output_tokens")


def _item_text(item: Mapping[str, Any]) -> str:
    """What a person reads of an item: the text of a message, or its JSON."""
    parts = item.get("content")
    texts = [part.get("text") or part.get("refusal") for part in parts or ()]
    if item.get("type") != "message" or None in texts:
        return as_json(item)
    return "\n".join(clean_lines(text) for text in texts)
