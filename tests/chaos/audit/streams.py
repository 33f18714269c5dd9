"""Rules about streams: I3 (one ending), I4 (one numbering, equal bytes, one item at a time), I11
(projects)."""

from collections.abc import Iterator

from tests.chaos.audit.case import Case, Violation
from tests.chaos.audit.fold import texts_of
from tests.chaos.audit.sse import EARLY_DONE, ENDINGS, SNAPSHOTS, ParsedStream

_WEB_FAULTS = frozenset({"killed", "stopped", "frozen", "disconnected", "exited"})


def check_streams(case: Case) -> Iterator[Violation]:
    """All rules about what readers got."""
    for stream in case.streams:
        yield from _check_framing(case, stream)
        yield from _check_numbering(case, stream)
        yield from _check_ending(case, stream)
        yield from _check_ids(case, stream)
    if case.is_double_fault:
        return
    yield from _check_same_bytes(case)
    yield from _check_open_items(case)
    yield from _check_deltas(case)


def _where(stream: ParsedStream) -> str:
    reading = stream.reading
    return (
        f"read from {reading.web}, starting_after={reading.after},"
        f" {len(stream.events)} events, end {reading.end}"
    )


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
        index_of_error = next(
            index for index, number in enumerate(numbers) if number != first + index
        )
        yield case.violation(
            "I4",
            f"event {first + index_of_error} was expected and {numbers[index_of_error]} came",
            _where(stream),
        )
    if first == 0 and stream.events and stream.events[0].kind != "response.created":
        yield case.violation("I4", f"the first event is {stream.events[0].kind}", _where(stream))


def _check_ending(case: Case, stream: ParsedStream) -> Iterator[Violation]:
    endings = [index for index, event in enumerate(stream.events) if event.kind in ENDINGS]
    if len(endings) > 1:
        yield case.violation(
            "I3",
            f"{len(endings)} terminal events",
            [stream.events[index].kind for index in endings],
        )
    if endings and endings[0] != len(stream.events) - 1:
        yield case.violation(
            "I3", f"{stream.events[endings[0] + 1].kind} follows the terminal event", _where(stream)
        )
    reading = stream.reading
    if reading.end in ("open", "left") or endings or reading.closed is None:
        return
    web_failed = any(
        fault.touches(reading.opened, reading.closed, 1)
        for fault in case.faults(_WEB_FAULTS, reading.web)
    )
    is_deleted = case.deleted_at is not None and case.deleted_at <= reading.closed
    starts_at_end = _starts_at_the_end(case, stream)
    if not (web_failed or is_deleted or starts_at_end or case.is_double_fault):
        yield case.violation(
            "I3",
            f"the stream ended ({reading.end}) without a terminal event; its web process was up",
            _where(stream),
        )


def _starts_at_the_end(case: Case, stream: ParsedStream) -> bool:
    """A reader asked for what follows the last event: an empty stream with `[DONE]` is right."""
    last = next(
        (event.number for other in case.streams for event in other.events if event.kind in ENDINGS),
        None,
    )
    return last is not None and stream.reading.after >= last and not stream.events


def _check_ids(case: Case, stream: ParsedStream) -> Iterator[Violation]:
    """I11: no event belongs to another response."""
    for event in stream.events:
        if (
            event.kind in SNAPSHOTS
            and case.trace.id is not None
            and event.data["response"]["id"] != case.trace.id
        ):
            yield case.violation(
                "I11",
                f"event {event.number} belongs to {event.data['response']['id']}",
                _where(stream),
            )
            return


def _check_same_bytes(case: Case) -> Iterator[Violation]:
    first: dict[int, tuple[bytes, ParsedStream]] = {}
    for stream in case.streams:
        for event in stream.events:
            raw, first_stream = first.setdefault(event.number, (event.raw, stream))
            if raw != event.raw:
                evidence = f"{raw!r} ({_where(first_stream)}) and {event.raw!r} ({_where(stream)})"
                yield case.violation(
                    "I4", f"event {event.number} has other bytes for another reader", evidence
                )
                return
    for stream in case.streams:
        if not stream.incomplete_frame:
            continue
        next_number = stream.reading.after + 1 + len(stream.events)
        first_event = first.get(next_number)
        if first_event is not None and not (first_event[0] + b"\n\n").startswith(
            stream.incomplete_frame
        ):
            yield case.violation(
                "I4",
                f"the bytes of event {next_number} before a cut are not the start of that event",
                stream.incomplete_frame[:300],
            )


def _check_open_items(case: Case) -> Iterator[Violation]:
    """At most one item is open at a time (docs/wire.md)."""
    open_items: set[int] = set()
    for event in case.events:
        if event.kind == "response.output_item.done":
            open_items.discard(event.data["output_index"])
        if event.kind == "response.output_item.added":
            if open_items:
                yield case.violation(
                    "I4", f"event {event.number} adds an item while {open_items} are open"
                )
                return
            open_items.add(event.data["output_index"])


def _check_deltas(case: Case) -> Iterator[Violation]:
    """I7: the deltas of each item of the final output are its final text."""
    if not case.events or case.events[-1].kind not in ENDINGS:
        return
    for item in case.events[-1].data["response"]["output"]:
        from_deltas = case.folded.from_deltas.get(item["id"])
        if from_deltas is None:
            yield case.violation(
                "I7", f"item {item['id']} of the final output was in no event", item
            )
            continue
        if case.folded.items[item["id"]] != item:
            yield case.violation(
                "I7",
                f"item {item['id']} was done with other content than in the final output",
                (case.folded.items[item["id"]], item),
            )
        final_texts, delta_texts = texts_of(item), texts_of(from_deltas)
        if any(
            delta_texts.get(position, "") != final_text
            for position, final_text in final_texts.items()
            if final_text
        ):
            yield case.violation(
                "I7",
                f"the deltas of item {item['id']} are not its final text",
                (delta_texts, final_texts),
            )
