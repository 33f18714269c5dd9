"""Rules about everything that is no response: files, batches, vector stores, conversations, proxied
requests, and responses with a short retention.

I1 (kept, deleted), I2 (ends), I6 (nothing twice), I9 (503), I10 (nothing after a delete),
I11 (projects).
"""

from collections import Counter
from collections.abc import Iterator

from tests.chaos.audit.case import TERMINAL, Violation
from tests.chaos.audit.record import (
    FATAL_FAULTS,
    BatchTrace,
    ClientRequest,
    KeptTrace,
    ObjectTrace,
    ProxiedTrace,
    RunRecord,
    StoreTrace,
    UpstreamCall,
)

_USAGE_LOST = 3.0
"""Seconds of usage that a web process may lose when it is killed, on a busy machine."""
_EXCUSES = FATAL_FAULTS | {"replies_lost", "crashed", "restarted"}
"""Faults after which the request of a batch may be sent to the upstream again."""
_SDK_SECONDS = 120.0
"""The longest time for which an official SDK repeats a create in a campaign."""
_RETRY_WINDOW = 10.0
"""Seconds after a lost answer or a start of PostgreSQL that decide about a retry without a key."""


def check_objects(record: RunRecord) -> Iterator[Violation]:
    """All rules."""
    for trace in record.objects:
        yield from _check_answers(trace)
        yield from _check_kept(trace)
        yield from _check_made_once(trace, record)
    for batch in record.batches:
        yield from _check_batch(batch)
        yield from _check_lines(batch, record)
    for store in record.stores:
        yield from _check_chunks(store)
        yield from _check_searches(store)
    for proxied in record.proxied:
        yield from _check_proxied(proxied, record)
    for kept in record.kept:
        yield from _check_retention(kept)


def _violation(trace: ObjectTrace, rule: str, sentence: str, evidence: object = "") -> Violation:
    return Violation(rule, f"{trace.kind} {trace.name}", sentence, str(evidence))


def _check_answers(trace: ObjectTrace) -> Iterator[Violation]:
    """I9 and I11."""
    for request in [*trace.creates, *trace.requests]:
        if request.status == 503 and request.retry_after is None:
            yield _violation(trace, "I9", f"{request.what} was answered 503 without Retry-After")
        if request.status is not None and request.status >= 500 and request.status != 503:
            sentence = f"{request.what} was answered {request.status}"
            yield _violation(trace, "I9", sentence, request.body)
        if request.what == "other_project" and request.status not in (404, 503, None):
            sentence = f"another project was answered {request.status}"
            yield _violation(trace, "I11", sentence, request.body)


def _check_kept(trace: ObjectTrace) -> Iterator[Violation]:
    """I1: it can be read until it is deleted, and not afterwards."""
    if trace.kind == "kept response":
        return
    deletes = trace.requests_of("delete")
    first = min((one.sent for one in deletes), default=float("inf"))
    done = min((one.answered or 0 for one in deletes if one.status == 200), default=float("inf"))
    for request in trace.requests_of("get"):
        if request.status == 404 and (request.answered or 0) < first:
            yield _violation(trace, "I1", "it was answered 404 and nobody had deleted it")
        if request.status == 200 and request.sent > done:
            yield _violation(trace, "I1", "it is shown after its delete", request.body)
    if trace.listed is None or trace.id is None:
        return
    if done != float("inf") and trace.id in trace.listed:
        yield _violation(trace, "I1", "it is listed after its delete")
    if first == float("inf") and trace.id not in trace.listed:
        yield _violation(trace, "I1", "a list does not have it")


def _check_made_once(trace: ObjectTrace, record: RunRecord) -> Iterator[Violation]:
    """I6: a create that is repeated makes one object. Without a key the server has to see that the
    answer was lost, and a fault at that time may hide it (docs/wire.md, "Repeated creates")."""
    ids = {one.body["id"] for one in trace.creates if one.status == 200}
    ids |= set(trace.listed or ())
    if trace.retry == "none" or (trace.retry == "sdk" and _is_hidden(trace.creates[0], record)):
        return
    if len(ids) > 1:
        yield _violation(trace, "I6", f"repeated by {trace.retry}, and {len(ids)} were made", ids)
    # A schedule runs at each of its slots: its runs are judged by tests/chaos/audit/background.py.
    calls = [] if trace.kind == "schedule" else _calls(record, trace.name)
    if len(calls) > 1 and not _is_excused(record, calls[0].started, calls[-1].started):
        yield _violation(trace, "I6", f"repeated by {trace.retry}, and it ran {len(calls)} times")


def _is_hidden(create: ClientRequest, record: RunRecord) -> bool:
    """Whether a fault of anything but the upstream was there while an SDK repeated its create."""
    end = create.sent + _SDK_SECONDS if create.answered is None else create.answered
    return any(
        fault.target != "upstream" and fault.touches(create.sent, end, _RETRY_WINDOW)
        for fault in record.faults
    )


# --- batches ---


def _check_batch(batch: BatchTrace) -> Iterator[Violation]:
    """I2 and I6: each request has one result."""
    trace = batch.created
    cancelled = bool(trace.requests_of("cancel"))
    if not batch.status:
        if trace.id is not None:
            yield _violation(trace, "I2", "it has not ended")
        return
    if batch.status != "completed" and not (cancelled and batch.status == "cancelled"):
        yield _violation(trace, "I2", f"it is {batch.status}")
        return
    results = Counter([*batch.output, *batch.errors])
    if twice := sorted(name for name, count in results.items() if count > 1):
        yield _violation(trace, "I6", "requests have two results", twice)
    if strange := sorted(results.keys() - set(batch.lines)):
        yield _violation(trace, "I11", "its files have requests of others", strange)
    was_checked = bool(results) or not cancelled  # its lines may not have been checked yet
    if was_checked and (missing := sorted(set(batch.lines) - results.keys())):
        yield _violation(trace, "I1", "requests have no result", missing)
    if batch.errors and not cancelled:
        yield _violation(trace, "I1", "requests failed without a reason", batch.errors)


def _check_lines(batch: BatchTrace, record: RunRecord) -> Iterator[Violation]:
    """I6: no request is run twice without a fault; I10: none after the end of a cancelled batch."""
    trace = batch.created
    ended = [one for one in trace.requests_of("get") if one.body.get("status") == "cancelled"]
    was_made_twice = len(set(trace.listed or ())) > 1  # judged by _check_made_once
    for name in batch.lines:
        calls = _calls(record, name)
        if (
            len(calls) > 1
            and not was_made_twice
            and not _is_excused(record, calls[0].started, calls[-1].started)
        ):
            yield _violation(trace, "I6", f"the request {name} was run {len(calls)} times")
        if any(ended and call.started > (ended[0].answered or 0) + 6 for call in calls):
            yield _violation(trace, "I10", f"the request {name} was run after its batch's end")


def _calls(record: RunRecord, marker: str) -> list[UpstreamCall]:
    calls = [call for call in record.object_calls if call.marker == marker]
    return sorted(calls, key=lambda call: call.started)


def _is_excused(record: RunRecord, begin: float, end: float) -> bool:
    return any(fault.what in _EXCUSES and fault.touches(begin, end, 6) for fault in record.faults)


# --- vector stores ---


def _check_chunks(store: StoreTrace) -> Iterator[Violation]:
    """I2, I6: each file was ingested, and each of its chunks is there once."""
    for file in store.files:
        if file.removed is not None and not file.status:
            continue
        if file.status != "completed":
            yield _violation(store.created, "I2", f"{file.id} is {file.status or 'not read'}")
            continue
        words = Counter(word for chunk in file.chunks for word in chunk.split())
        if twice := [word for word in file.words if words[word] > 1]:
            yield _violation(store.created, "I6", f"{file.id} has chunks twice", twice)
        if missing := [word for word in file.words if not words[word]]:
            yield _violation(store.created, "I1", f"{file.id} lacks chunks", missing)


def _check_searches(store: StoreTrace) -> Iterator[Violation]:
    """I6, I10 and I11: no result twice, none of a file that was removed, or is of another store."""
    files = {file.id: file for file in store.files}
    for search in store.searches:
        if any(count > 1 for count in Counter(search.found).values()):
            yield _violation(store.created, "I6", "a search has a chunk twice", search.found)
        for file_id in {file_id for file_id, _ in search.found}:
            removed = files[file_id].removed if file_id in files else 0.0
            if file_id not in files:
                yield _violation(store.created, "I11", f"a search has {file_id} of another store")
            elif removed is not None and removed < search.sent:
                yield _violation(store.created, "I1", f"a search has {file_id}, which was removed")


# --- proxied requests ---


def _check_proxied(proxied: ProxiedTrace, record: RunRecord) -> Iterator[Violation]:
    """I6: a request that the upstream has answered is counted once."""
    name, request = f"{proxied.path} {proxied.marker}", proxied.request
    answered = sum(call.finished is not None for call in _calls(record, proxied.marker))
    if request.status is not None and request.status >= 500 and request.status not in (502, 503):
        yield Violation("I9", name, f"it was answered {request.status}", str(request.body))
    if request.status == 200 and not answered:
        yield Violation("I6", name, "it was answered, and the upstream was not called")
    if proxied.counted > answered:
        yield Violation("I6", name, f"{answered} were answered, {proxied.counted} counted")
    if request.status == 200 and not proxied.counted and not _usage_may_be_lost(request, record):
        yield Violation("I6", name, "it was answered, and is not counted")


def _usage_may_be_lost(request: ClientRequest, record: RunRecord) -> bool:
    """A web process that is killed loses the usage of its last second, and of an outage."""
    answered = request.answered or request.sent
    return any(
        death.what in FATAL_FAULTS
        and death.target == request.web
        and death.begin >= request.sent
        and (
            death.begin <= answered + _USAGE_LOST
            or any(
                outage.target == "postgres" and outage.touches(answered, death.begin, _USAGE_LOST)
                for outage in record.faults
            )
        )
        for death in record.faults
    )


# --- a short retention ---


def _check_retention(kept: KeptTrace) -> Iterator[Violation]:
    """I1: it is kept until it has ended, and for its retention from then on."""
    created = next((one for one in kept.created.creates if one.status == 200), None)
    gets = [get for get in kept.created.requests_of("get") if get.status in (200, 404)]
    gone = next((get for get in gets if get.status == 404), None)
    if created is None or gone is None:
        if created is not None and not (gets and gets[-1].body.get("status") in TERMINAL):
            yield _violation(kept.created, "I2", "it has not ended")
        return
    shown = [get for get in gets if get.status == 200 and get.sent < gone.sent]
    until = gone.answered or gone.sent
    if until < created.sent + kept.retention:
        yield _violation(kept.created, "I1", f"purged after {until - created.sent:.1f} s")
    unended = [get.sent for get in shown if get.body["status"] not in TERMINAL]
    seen_open = max(unended, default=created.sent)
    if until < seen_open + kept.retention:
        sentence = f"purged {until - seen_open:.1f} s after it was seen to run"
        yield _violation(kept.created, "I1", sentence)
