"""What GET, cancel and delete said: I1 (kept), I2 (ends), I3 (one ending), I7 (GET agrees), I9 (503), I10 (cancel), I11 (strangers)."""

from collections.abc import Iterator

from tests.chaos.audit.case import TERMINAL, Case, Violation
from tests.chaos.audit.fold import Fold, words
from tests.chaos.audit.record import JSON, Asked


def check_states(case: Case) -> Iterator[Violation]:
    """All rules about answers that are no streams."""
    yield from _answers(case)
    yield from _kept(case)
    yield from _one_ending(case)
    yield from _agrees(case)
    yield from _cancelled(case)
    yield from _own_input(case)
    yield from _chained(case)


def _answers(case: Case) -> Iterator[Violation]:
    for asked in [case.story.create, *case.story.asked]:
        if asked.status is None:
            continue
        if asked.status == 503 and asked.retry_after is None:
            yield case.violation(
                "I9", f"{asked.what} was answered 503 without Retry-After", asked.body
            )
        upstreams_fault = (
            asked.what == "create" and not case.story.background and asked.status in (502, 504)
        )
        if asked.status >= 500 and asked.status != 503 and not upstreams_fault:
            yield case.violation("I9", f"{asked.what} was answered {asked.status}", asked.body)
        if asked.what == "stranger" and asked.status not in (404, 503):
            yield case.violation("I11", f"a stranger was answered {asked.status}", asked.body)


def _kept(case: Case) -> Iterator[Violation]:
    """I1 and I2: it is there until it is deleted, and it ends."""
    if not case.accepted or case.story.id is None:
        return
    for look in case.story.of("get"):
        if (
            look.status == 404
            and (case.deleted is None or (look.answered or look.sent) < case.deleted)
            and case.story.background
        ):
            yield case.violation("I1", "an accepted response was answered 404", look.body)
    last = max(
        (look for look in case.story.of("get") if look.status in (200, 404)),
        key=lambda look: look.sent,
        default=None,
    )
    if case.deleted is not None:
        if (
            case.story.of("delete")[-1].status == 200
            and last is not None
            and last.sent > case.deleted
            and last.status != 404
        ):
            done = max(asked.answered or 0 for asked in case.story.of("delete"))
            if last.sent > done:
                yield case.violation("I1", "a deleted response is still shown", last.body)
        return
    if last is None or last.status == 404:
        yield case.violation(
            "I1", "an accepted response was not there at the end", last and last.body
        )
    elif case.final is None:
        yield case.violation("I2", f"it has not ended: {last.body.get('status')}", last.body)


def _one_ending(case: Case) -> Iterator[Violation]:
    """I3: what has ended once stays exactly as it is."""
    ended: Asked | None = None
    for look in case.looks:
        if ended is not None and look.sent >= (ended.answered or 0) and look.body != ended.body:
            yield case.violation("I3", "a response changed after its end", (ended.body, look.body))
            return
        if ended is None and look.body["status"] in TERMINAL:
            ended = look
    for heard in case.heard:
        if (
            heard.ending is not None
            and case.final is not None
            and heard.ending.data["response"] != case.final
        ):
            yield case.violation(
                "I7",
                "the terminal event and GET differ",
                (heard.ending.data["response"], case.final),
            )
            return


def _agrees(case: Case) -> Iterator[Violation]:
    """I7: a GET is the fold of the events so far, and not older than what a reader had been sent when it was asked; right after a crash
    of Postgres it may be, until the worker has stored the last second again."""
    if case.is_double_fault:
        return
    for heard in case.heard:
        ending = heard.ending
        for look in case.looks:
            if ending is not None and look.sent > ending.at and look.body["status"] not in TERMINAL:
                yield case.violation(
                    "I7", f"after the terminal event GET said {look.body['status']}", look.body
                )
                return
    # An answer was put together before it arrived; nothing of it can be newer than what the log held then.
    running = [look for look in case.looks if look.body["status"] not in TERMINAL]
    kept = {item["id"] for item in (case.final or {}).get("output", [])}
    for look in running:
        seen = max(
            (
                event.number
                for heard in case.heard
                for event in heard.events
                if event.at < look.sent
            ),
            default=-1,
        )
        if case.outage(
            "postgres", look.sent - case.promise.retell, look.sent, kinds=frozenset({"crashed"})
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
    return all(words(fold.items[item["id"]]) == words(item) for item in output)


def _cancelled(case: Case) -> Iterator[Violation]:
    """I10: once a cancel is recorded, no other ending is possible."""
    for asked in case.story.of("cancel"):
        if asked.status != 200 or case.final is None:
            continue
        if case.final["status"] != "cancelled":
            yield case.violation(
                "I10",
                f"a cancel was answered 200, and it ended as {case.final['status']}",
                case.final,
            )
    if case.final is not None and case.final["status"] == "cancelled" and case.story.background:
        tried = [
            *case.story.of("cancel"),
            *case.story.of("delete"),
            *([case.story.create] if case.story.create.status != 200 else []),
        ]
        if not tried:
            yield case.violation(
                "I10", "it is cancelled, and nobody has asked for that", case.final
            )


def _own_input(case: Case) -> Iterator[Violation]:
    for asked in case.story.of("input_items"):
        if asked.status != 200:
            continue
        told = [part.get("text") for item in asked.body["data"] for part in item["content"]]
        if told != [case.story.said]:
            yield case.violation("I7", "input_items are not what was sent", asked.body)


def _chained(case: Case) -> Iterator[Violation]:
    """I7: a response that ended can be continued at once."""
    create = case.story.create
    if case.story.previous is not None and create.status == 400:
        yield case.violation(
            "I7", "a response whose end was seen could not be continued", create.body
        )
