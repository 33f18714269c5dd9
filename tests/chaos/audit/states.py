"""What GET, cancel and delete said: I1 (kept), I2 (ends), I3 (one ending), I7 (GET agrees), I9 (503), I10 (cancel), I11 (strangers)."""

from collections.abc import Iterator

from tests.chaos.audit.case import TERMINAL, Case, Violation
from tests.chaos.audit.fold import Fold, texts_of
from tests.chaos.audit.record import JSON, ClientRequest


def check_states(case: Case) -> Iterator[Violation]:
    """All rules about answers that are no streams."""
    yield from _check_statuses(case)
    yield from _check_kept(case)
    yield from _check_one_ending(case)
    yield from _check_get_matches_events(case)
    yield from _check_cancelled(case)
    yield from _check_input_items(case)
    yield from _check_chained(case)


def _check_statuses(case: Case) -> Iterator[Violation]:
    for asked in [case.trace.create, *case.trace.requests]:
        if asked.status is None:
            continue
        if asked.status == 503 and asked.retry_after is None:
            yield case.violation(
                "I9", f"{asked.what} was answered 503 without Retry-After", asked.body
            )
        upstreams_fault = (
            asked.what == "create" and not case.trace.background and asked.status in (502, 504)
        )
        if asked.status >= 500 and asked.status != 503 and not upstreams_fault:
            yield case.violation("I9", f"{asked.what} was answered {asked.status}", asked.body)
        if asked.what == "stranger" and asked.status not in (404, 503):
            yield case.violation("I11", f"a stranger was answered {asked.status}", asked.body)


def _check_kept(case: Case) -> Iterator[Violation]:
    """I1 and I2: it is there until it is deleted, and it ends."""
    if not case.accepted or case.trace.id is None:
        return
    for look in case.trace.requests_of("get"):
        if (
            look.status == 404
            and (case.deleted_at is None or (look.answered or look.sent) < case.deleted_at)
            and case.trace.background
        ):
            yield case.violation("I1", "an accepted response was answered 404", look.body)
    last = max(
        (look for look in case.trace.requests_of("get") if look.status in (200, 404)),
        key=lambda look: look.sent,
        default=None,
    )
    if case.deleted_at is not None:
        if (
            case.trace.requests_of("delete")[-1].status == 200
            and last is not None
            and last.sent > case.deleted_at
            and last.status != 404
        ):
            done = max(asked.answered or 0 for asked in case.trace.requests_of("delete"))
            if last.sent > done:
                yield case.violation("I1", "a deleted response is still shown", last.body)
        return
    if last is None or last.status == 404:
        yield case.violation(
            "I1", "an accepted response was not there at the end", last and last.body
        )
    elif case.final is None:
        yield case.violation("I2", f"it has not ended: {last.body.get('status')}", last.body)


def _check_one_ending(case: Case) -> Iterator[Violation]:
    """I3: what has ended once stays exactly as it is."""
    ended: ClientRequest | None = None
    for look in case.successful_gets:
        if ended is not None and look.sent >= (ended.answered or 0) and look.body != ended.body:
            yield case.violation("I3", "a response changed after its end", (ended.body, look.body))
            return
        if ended is None and look.body["status"] in TERMINAL:
            ended = look
    for heard in case.streams:
        if (
            heard.terminal_event is not None
            and case.final is not None
            and heard.terminal_event.data["response"] != case.final
        ):
            yield case.violation(
                "I7",
                "the terminal event and GET differ",
                (heard.terminal_event.data["response"], case.final),
            )
            return


def _check_get_matches_events(case: Case) -> Iterator[Violation]:
    """I7: a GET is the fold of the events so far, and not older than what a reader had been sent when it was asked; right after a crash
    of Postgres it may be, until the worker has stored the last second again."""
    if case.is_double_fault:
        return
    for heard in case.streams:
        ending = heard.terminal_event
        for look in case.successful_gets:
            if ending is not None and look.sent > ending.at and look.body["status"] not in TERMINAL:
                yield case.violation(
                    "I7", f"after the terminal event GET said {look.body['status']}", look.body
                )
                return
    # An answer was put together before it arrived; nothing of it can be newer than what the log held then.
    running = [look for look in case.successful_gets if look.body["status"] not in TERMINAL]
    kept = {item["id"] for item in (case.final or {}).get("output", [])}
    for look in running:
        seen = max(
            (
                event.number
                for heard in case.streams
                for event in heard.events
                if event.at < look.sent
            ),
            default=-1,
        )
        if case.outage(
            "postgres", look.sent - case.bounds.rejournal, look.sent, kinds=frozenset({"crashed"})
        ):
            seen = -1
        if (
            case.events
            and case.final is not None
            and not _is_some_fold(case, look.body["output"], seen, kept)
        ):
            yield case.violation(
                "I7",
                f"GET while running is no fold of the events, of which {seen} had been seen",
                look.body["output"],
            )


def _is_some_fold(case: Case, output: list[JSON], seen: int, kept: set[str]) -> bool:
    """Whether the output is what the items are after some number of events, at least `seen`. Items that were given up may be missing."""
    fold = Fold()
    for event in case.events:
        fold.feed(event.data)
        if event.number >= seen and _matches(fold, output, kept):
            return True
    return seen < 0 and not output


def _matches(fold: Fold, output: list[JSON], kept: set[str]) -> bool:
    shown = [item["id"] for item in output]
    if shown != [name for name in fold.items if name in shown]:
        return False
    if any(name in kept and name not in shown for name in fold.items):
        return False
    return all(texts_of(fold.items[item["id"]]) == texts_of(item) for item in output)


def _check_cancelled(case: Case) -> Iterator[Violation]:
    """I10: once a cancel is recorded, no other ending is possible."""
    for asked in case.trace.requests_of("cancel"):
        if asked.status != 200 or case.final is None:
            continue
        if case.final["status"] != "cancelled":
            yield case.violation(
                "I10",
                f"a cancel was answered 200, and it ended as {case.final['status']}",
                case.final,
            )
    if case.final is not None and case.final["status"] == "cancelled" and case.trace.background:
        tried = [
            *case.trace.requests_of("cancel"),
            *case.trace.requests_of("delete"),
            *([case.trace.create] if case.trace.create.status != 200 else []),
        ]
        if not tried:
            yield case.violation(
                "I10", "it is cancelled, and nobody has asked for that", case.final
            )


def _check_input_items(case: Case) -> Iterator[Violation]:
    for asked in case.trace.requests_of("input_items"):
        if asked.status != 200:
            continue
        told = [part.get("text") for item in asked.body["data"] for part in item["content"]]
        if told != [case.trace.input_text]:
            yield case.violation("I7", "input_items are not what was sent", asked.body)


def _check_chained(case: Case) -> Iterator[Violation]:
    """I7: a response that ended can be continued at once."""
    create = case.trace.create
    if case.trace.previous is not None and create.status == 400:
        yield case.violation(
            "I7", "a response whose end was seen could not be continued", create.body
        )
