"""What readers were sent: I3 (one ending), I4 (one numbering, the same bytes for all), and that streams are not mixed up (I11)."""

from collections.abc import Iterator

from tests.chaos.audit.case import Case, Violation
from tests.chaos.audit.fold import texts_of
from tests.chaos.audit.sse import EARLY_DONE, ENDINGS, SNAPSHOTS, ParsedStream

_WEB_FAULTS = frozenset({"killed", "stopped", "frozen", "parted", "died"})


def check_streams(case: Case) -> Iterator[Violation]:
    """All rules about what readers got."""
    for heard in case.streams:
        yield from _check_framing(case, heard)
        yield from _check_numbering(case, heard)
        yield from _check_ending(case, heard)
        yield from _check_ids(case, heard)
    if case.is_double_fault:
        return
    yield from _check_same_bytes(case)
    yield from _check_deltas(case)


def _where(stream: ParsedStream) -> str:
    reading = stream.reading
    return f"read from {reading.web}, starting_after={reading.after}, {len(stream.events)} events, end {reading.end}"


def _check_framing(case: Case, stream: ParsedStream) -> Iterator[Violation]:
    for fault in stream.faults:
        if fault != EARLY_DONE or not (case.is_double_fault or _starts_at_the_end(case, stream)):
            yield case.violation("I4", fault, _where(stream))
    if stream.done_count > 1:
        yield case.violation("I3", "[DONE] came more than once", _where(stream))
    if stream.incomplete_frame and stream.reading.end == "clean":
        yield case.violation("I4", "the stream ended inside a frame", stream.incomplete_frame[:200])


def _check_numbering(case: Case, stream: ParsedStream) -> Iterator[Violation]:
    numbers = [event.number for event in stream.events]
    first = stream.reading.after + 1
    if numbers != list(range(first, first + len(numbers))):
        wrong = next(at for at, number in enumerate(numbers) if number != first + at)
        yield case.violation(
            "I4", f"event {first + wrong} was expected and {numbers[wrong]} came", _where(stream)
        )
    if first == 0 and stream.events and stream.events[0].kind != "response.created":
        yield case.violation("I4", f"the first event is {stream.events[0].kind}", _where(stream))


def _check_ending(case: Case, stream: ParsedStream) -> Iterator[Violation]:
    endings = [at for at, event in enumerate(stream.events) if event.kind in ENDINGS]
    if len(endings) > 1:
        yield case.violation(
            "I3", f"{len(endings)} terminal events", [stream.events[at].kind for at in endings]
        )
    if endings and endings[0] != len(stream.events) - 1:
        yield case.violation(
            "I3", f"{stream.events[endings[0] + 1].kind} follows the terminal event", _where(stream)
        )
    reading = stream.reading
    if reading.end in ("open", "left") or endings or reading.closed is None:
        return
    web_gone = any(
        fault.touches(reading.opened, reading.closed, 1)
        for fault in case.faults(_WEB_FAULTS, reading.web)
    )
    gone = case.deleted_at is not None and case.deleted_at <= reading.closed
    past_its_end = _starts_at_the_end(case, stream)
    if not (web_gone or gone or past_its_end or case.is_double_fault):
        yield case.violation(
            "I3",
            f"the stream ended ({reading.end}) without a terminal event, though its web process lived",
            _where(stream),
        )


def _starts_at_the_end(case: Case, stream: ParsedStream) -> bool:
    """Somebody asked for what follows the last event: an empty stream with `[DONE]` is right."""
    last = next(
        (event.number for other in case.streams for event in other.events if event.kind in ENDINGS),
        None,
    )
    return last is not None and stream.reading.after >= last and not stream.events


def _check_ids(case: Case, stream: ParsedStream) -> Iterator[Violation]:
    """Nothing in it is of another response."""
    for event in stream.events:
        if (
            event.kind in SNAPSHOTS
            and case.trace.id is not None
            and event.data["response"]["id"] != case.trace.id
        ):
            yield case.violation(
                "I11", f"event {event.number} is of {event.data['response']['id']}", _where(stream)
            )
            return


def _check_same_bytes(case: Case) -> Iterator[Violation]:
    first: dict[int, tuple[bytes, ParsedStream]] = {}
    for heard in case.streams:
        for event in heard.events:
            raw, teller = first.setdefault(event.number, (event.raw, heard))
            if raw != event.raw:
                evidence = f"{raw!r} ({_where(teller)}) and {event.raw!r} ({_where(heard)})"
                yield case.violation(
                    "I4", f"event {event.number} has other bytes for another reader", evidence
                )
                return
    for heard in case.streams:
        if not heard.incomplete_frame:
            continue
        following = heard.reading.after + 1 + len(heard.events)
        known = first.get(following)
        if known is not None and not (known[0] + b"\n\n").startswith(heard.incomplete_frame):
            yield case.violation(
                "I4",
                f"the piece of event {following} before a cut is no piece of that event",
                heard.incomplete_frame[:300],
            )


def _check_deltas(case: Case) -> Iterator[Violation]:
    """Deltas = final text, for each item of the final output."""
    if not case.events or case.events[-1].kind not in ENDINGS:
        return
    for item in case.events[-1].data["response"]["output"]:
        spoken = case.folded.from_deltas.get(item["id"])
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
        told, heard = texts_of(item), texts_of(spoken)
        if any(heard.get(place, "") != text for place, text in told.items() if text):
            yield case.violation(
                "I7", f"the deltas of item {item['id']} are not its final text", (heard, told)
            )
