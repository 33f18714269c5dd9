"""Rules about the answers to GET, cancel and delete.

I1 (kept), I2 (ends), I3 (one ending), I7 (GET agrees), I9 (503), I10 (cancel), I11 (projects).
"""

from collections.abc import Iterator

from tests.chaos.audit.case import TERMINAL, Case, Violation
from tests.chaos.audit.fold import Fold, texts_of
from tests.chaos.audit.record import FATAL_FAULTS, JSON, ClientRequest


def check_states(case: Case) -> Iterator[Violation]:
    """All rules about answers that are not streams."""
    yield from _check_statuses(case)
    yield from _check_kept(case)
    yield from _check_one_ending(case)
    yield from _check_get_matches_events(case)
    yield from _check_cancelled(case)
    yield from _check_input_items(case)
    yield from _check_chained(case)


def _check_statuses(case: Case) -> Iterator[Violation]:
    for request in [case.trace.create, *case.trace.requests]:
        if request.status is None:
            continue
        if request.status == 503 and request.retry_after is None:
            yield case.violation(
                "I9", f"{request.what} was answered 503 without Retry-After", request.body
            )
        is_upstream_error = (
            request.what == "create" and not case.trace.background and request.status in (502, 504)
        )
        if request.status >= 500 and request.status != 503 and not is_upstream_error:
            yield case.violation(
                "I9", f"{request.what} was answered {request.status}", request.body
            )
        if request.what == "other_project" and request.status not in (404, 503):
            yield case.violation(
                "I11", f"another project was answered {request.status}", request.body
            )


def _check_kept(case: Case) -> Iterator[Violation]:
    """I1 and I2: it can be read until it is deleted, and it ends."""
    if not case.accepted or case.trace.id is None:
        return
    if not case.trace.stored:
        if any(get.status == 200 for get in case.trace.requests_of("get")):
            yield case.violation("I11", "a response that is not stored was shown")
        return
    for get in case.trace.requests_of("get"):
        if (
            get.status == 404
            and (case.deleted_at is None or (get.answered or get.sent) < case.deleted_at)
            and case.trace.background
        ):
            yield case.violation("I1", "an accepted response was answered 404", get.body)
    last = max(
        (get for get in case.trace.requests_of("get") if get.status in (200, 404)),
        key=lambda get: get.sent,
        default=None,
    )
    if case.deleted_at is not None:
        if (
            case.trace.requests_of("delete")[-1].status == 200
            and last is not None
            and last.sent > case.deleted_at
            and last.status != 404
        ):
            done = max(request.answered or 0 for request in case.trace.requests_of("delete"))
            if last.sent > done:
                yield case.violation("I1", "a deleted response is still shown", last.body)
        return
    if last is None or last.status == 404:
        yield case.violation(
            "I1", "an accepted response could not be read at the end", last and last.body
        )
    elif case.final is None:
        yield case.violation("I2", f"it has not ended: {last.body.get('status')}", last.body)


def _check_one_ending(case: Case) -> Iterator[Violation]:
    """I3: a response that has ended never changes."""
    ended: ClientRequest | None = None
    for get in case.successful_gets:
        if ended is not None and get.sent >= (ended.answered or 0) and get.body != ended.body:
            yield case.violation("I3", "a response changed after its end", (ended.body, get.body))
            return
        if ended is None and get.body["status"] in TERMINAL:
            ended = get
    for stream in case.streams:
        if (
            stream.terminal_event is not None
            and case.final is not None
            and stream.terminal_event.data["response"] != case.final
        ):
            yield case.violation(
                "I7",
                "the terminal event and GET differ",
                (stream.terminal_event.data["response"], case.final),
            )
            return


def _check_get_matches_events(case: Case) -> Iterator[Violation]:
    """I7: a GET is the fold of the events so far, and not older than what a reader had before it.

    After a crash of PostgreSQL it may be older until the workers have written their journal again.
    A response that was deleted before its readers had its last events is not checked.
    """
    is_log_known = any(stream.terminal_event is not None for stream in case.streams)
    if case.is_double_fault or (case.deleted_at is not None and not is_log_known):
        return
    for stream in case.streams:
        ending = stream.terminal_event
        for get in case.successful_gets:
            if ending is not None and get.sent > ending.time and get.body["status"] not in TERMINAL:
                yield case.violation(
                    "I7", f"after the terminal event GET returned {get.body['status']}", get.body
                )
                return
    # The answer was built before it arrived; it cannot be newer than the log at that time.
    running = [get for get in case.successful_gets if get.body["status"] not in TERMINAL]
    final_ids = {item["id"] for item in (case.final or {}).get("output", [])}
    for get in running:
        last_number = max(
            (
                event.number
                for stream in case.streams
                for event in stream.events
                if event.time < get.sent
            ),
            default=-1,
        )
        if _may_lack_journal(case, get):
            last_number = -1
        if (
            case.events
            and case.final is not None
            and not _is_some_fold(case, get.body["output"], last_number, final_ids)
        ):
            yield case.violation(
                "I7",
                f"GET while running is not a fold of the events; {last_number} were read before",
                get.body["output"],
            )


def _may_lack_journal(case: Case, get: ClientRequest) -> bool:
    """Whether PostgreSQL has crashed, and the workers may not have written their journal again.

    They cannot while it refuses to write. The web process reads again if the crash comes while the
    request waits.
    """
    begin, answered = get.sent - case.bounds.rejournal, get.answered or get.sent
    refusals = case.faults(frozenset({"disk_full", "restarted", "read_only"}), "postgres")
    for refusal in sorted(refusals, key=lambda fault: fault.begin, reverse=True):
        if refusal.touches(begin, answered):
            begin = min(begin, refusal.begin - case.bounds.rejournal)
    return case.outage("postgres", begin, answered, kinds=frozenset({"crashed"}))


def _is_some_fold(case: Case, output: list[JSON], last_number: int, final_ids: set[str]) -> bool:
    """Returns whether `output` is the fold of at least the events up to number `seen`.

    Abandoned items may be missing.
    """
    fold = Fold()
    for event in case.events:
        fold.feed(event.data)
        if event.number >= last_number and _matches(fold, output, final_ids):
            return True
    return last_number < 0 and not output


def _matches(fold: Fold, output: list[JSON], final_ids: set[str]) -> bool:
    ids = [item["id"] for item in output]
    if ids != [item_id for item_id in fold.items if item_id in ids]:
        return False
    if any(item_id in final_ids and item_id not in ids for item_id in fold.items):
        return False
    return all(texts_of(fold.items[item["id"]]) == texts_of(item) for item in output)


def _check_cancelled(case: Case) -> Iterator[Violation]:
    """I10: once a cancel is recorded, no other ending is possible."""
    for request in case.trace.requests_of("cancel"):
        if request.status != 200 or case.final is None:
            continue
        if case.final["status"] != "cancelled":
            yield case.violation(
                "I10",
                f"a cancel was answered 200, and it ended as {case.final['status']}",
                case.final,
            )
    if case.final is not None and case.final["status"] == "cancelled" and case.trace.background:
        requests = [
            *case.trace.requests_of("cancel"),
            *case.trace.requests_of("delete"),
            *([case.trace.create] if case.trace.create.status != 200 else []),
        ]
        if not requests:
            yield case.violation("I10", "it was cancelled without a request", case.final)
    if case.final is not None and case.final["status"] == "cancelled" and not case.trace.background:
        yield from _check_cancelled_foreground(case, case.final)


def _check_cancelled_foreground(case: Case, final: JSON) -> Iterator[Violation]:
    """I10: it is cancelled only if its client left, its create failed or its web process did."""
    create = case.trace.create
    until = case.seen_ended_at or case.record.ended
    web_failed = any(
        fault.touches(create.sent, until, 1) for fault in case.faults(FATAL_FAULTS, create.web)
    )
    left = any(reading.end == "left" for reading in case.trace.readings)
    if not (web_failed or left or case.is_double_fault) and create.status == 200:
        yield case.violation("I10", "its client stayed, and it was cancelled", final)


def _check_input_items(case: Case) -> Iterator[Violation]:
    for request in case.trace.requests_of("input_items"):
        if request.status != 200:
            continue
        texts = [
            part.get("text")
            for item in request.body["data"]
            if item.get("type") == "message"
            for part in item["content"]
        ]
        sent = [text for item in case.trace.history for text in _texts(item)]
        if texts != [*sent, case.trace.input_text]:
            yield case.violation("I7", "the input items are not those that were sent", request.body)


def _texts(item: JSON) -> list[str]:
    """The texts of an input item as it was sent."""
    content = item.get("content", [])
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def _check_chained(case: Case) -> Iterator[Violation]:
    """I7: a response that has ended can be continued at once."""
    create = case.trace.create
    if case.trace.previous is not None and create.status == 400:
        yield case.violation("I7", "a response that had ended could not be continued", create.body)
