"""What readers were sent: I3 (one ending), I4 (one numbering, the same bytes for all), and that streams are not mixed up (I11)."""

from collections.abc import Iterator

from tests.chaos.audit.case import Case, Violation
from tests.chaos.audit.fold import words
from tests.chaos.audit.sse import EARLY_DONE, ENDINGS, SNAPSHOTS, Heard

_WEB_GONE = frozenset({"killed", "stopped", "frozen", "parted", "died"})


def check_streams(case: Case) -> Iterator[Violation]:
    """All rules about what readers got."""
    for heard in case.heard:
        yield from _framing(case, heard)
        yield from _numbering(case, heard)
        yield from _ending(case, heard)
        yield from _own(case, heard)
    if case.is_double_fault:
        return
    yield from _same_bytes(case)
    yield from _deltas(case)


def _where(heard: Heard) -> str:
    reading = heard.reading
    return f"read from {reading.web}, starting_after={reading.after}, {len(heard.events)} events, end {reading.end}"


def _framing(case: Case, heard: Heard) -> Iterator[Violation]:
    for fault in heard.faults:
        if fault != EARLY_DONE or not (case.is_double_fault or _starts_at_the_end(case, heard)):
            yield case.violation("I4", fault, _where(heard))
    if heard.done > 1:
        yield case.violation("I3", "[DONE] came more than once", _where(heard))
    if heard.rest and heard.reading.end == "clean":
        yield case.violation("I4", "the stream ended inside a frame", heard.rest[:200])


def _numbering(case: Case, heard: Heard) -> Iterator[Violation]:
    numbers = [event.number for event in heard.events]
    first = heard.reading.after + 1
    if numbers != list(range(first, first + len(numbers))):
        wrong = next(at for at, number in enumerate(numbers) if number != first + at)
        yield case.violation(
            "I4", f"event {first + wrong} was expected and {numbers[wrong]} came", _where(heard)
        )
    if first == 0 and heard.events and heard.events[0].kind != "response.created":
        yield case.violation("I4", f"the first event is {heard.events[0].kind}", _where(heard))


def _ending(case: Case, heard: Heard) -> Iterator[Violation]:
    endings = [at for at, event in enumerate(heard.events) if event.kind in ENDINGS]
    if len(endings) > 1:
        yield case.violation(
            "I3", f"{len(endings)} terminal events", [heard.events[at].kind for at in endings]
        )
    if endings and endings[0] != len(heard.events) - 1:
        yield case.violation(
            "I3", f"{heard.events[endings[0] + 1].kind} follows the terminal event", _where(heard)
        )
    reading = heard.reading
    if reading.end in ("open", "left") or endings or reading.closed is None:
        return
    web_gone = any(
        fault.touches(reading.opened, reading.closed, 1)
        for fault in case.faults(_WEB_GONE, reading.web)
    )
    gone = case.deleted is not None and case.deleted <= reading.closed
    past_its_end = _starts_at_the_end(case, heard)
    if not (web_gone or gone or past_its_end or case.is_double_fault):
        yield case.violation(
            "I3",
            f"the stream ended ({reading.end}) without a terminal event, though its web process lived",
            _where(heard),
        )


def _starts_at_the_end(case: Case, heard: Heard) -> bool:
    """Somebody asked for what follows the last event: an empty stream with `[DONE]` is right."""
    last = next(
        (event.number for other in case.heard for event in other.events if event.kind in ENDINGS),
        None,
    )
    return last is not None and heard.reading.after >= last and not heard.events


def _own(case: Case, heard: Heard) -> Iterator[Violation]:
    """Nothing in it is of another response."""
    for event in heard.events:
        if (
            event.kind in SNAPSHOTS
            and case.story.id is not None
            and event.data["response"]["id"] != case.story.id
        ):
            yield case.violation(
                "I11", f"event {event.number} is of {event.data['response']['id']}", _where(heard)
            )
            return


def _same_bytes(case: Case) -> Iterator[Violation]:
    first: dict[int, tuple[bytes, Heard]] = {}
    for heard in case.heard:
        for event in heard.events:
            raw, teller = first.setdefault(event.number, (event.raw, heard))
            if raw != event.raw:
                evidence = f"{raw!r} ({_where(teller)}) and {event.raw!r} ({_where(heard)})"
                yield case.violation(
                    "I4", f"event {event.number} has other bytes for another reader", evidence
                )
                return
    for heard in case.heard:
        if not heard.rest:
            continue
        following = heard.reading.after + 1 + len(heard.events)
        known = first.get(following)
        if known is not None and not (known[0] + b"\n\n").startswith(heard.rest):
            yield case.violation(
                "I4",
                f"the piece of event {following} before a cut is no piece of that event",
                heard.rest[:300],
            )


def _deltas(case: Case) -> Iterator[Violation]:
    """Deltas = final text, for each item of the final output."""
    if not case.events or case.events[-1].kind not in ENDINGS:
        return
    for item in case.events[-1].data["response"]["output"]:
        spoken = case.folded.spoken.get(item["id"])
        if spoken is None:
            yield case.violation(
                "I7", f"item {item['id']} of the final output was never told", item
            )
            continue
        if case.folded.items[item["id"]] != item:
            yield case.violation(
                "I7",
                f"item {item['id']} was done otherwise than the final output says",
                (case.folded.items[item["id"]], item),
            )
        told, heard = words(item), words(spoken)
        if any(heard.get(place, "") != text for place, text in told.items() if text):
            yield case.violation(
                "I7", f"the deltas of item {item['id']} are not its final text", (heard, told)
            )
