"""Violations put into a clean record of what is no response, each of which the auditor reports."""

import copy
from collections.abc import Callable
from typing import Literal

import pytest

from tests.chaos.audit.case import Violation
from tests.chaos.audit.events import EventLedger
from tests.chaos.audit.objects import check_objects
from tests.chaos.audit.record import (
    BatchTrace,
    ClientRequest,
    Fault,
    KeptTrace,
    ObjectTrace,
    ProxiedTrace,
    ReceivedEvent,
    RunRecord,
    SearchTrace,
    StoredFile,
    StoreTrace,
    UpstreamCall,
)


def _request(what: str, at: float, code: int = 200, **body: object) -> ClientRequest:
    made = ClientRequest("create", "web-1", at, at + 0.01, code, body)
    made.what = what  # type: ignore[assignment]
    return made


def _object(kind: str, name: str) -> ObjectTrace:
    trace = ObjectTrace("file", name, "key", [_request("create", 1, id=f"id_{name}")])
    trace.kind = kind  # type: ignore[assignment]
    trace.requests = [_request("get", 2), _request("other_project", 3, 404)]
    trace.listed = [f"id_{name}"]
    return trace


def _clean() -> RunRecord:
    """A file that is there, one that was deleted, a batch, a store, a proxied request."""
    deleted = _object("file", "deleted")
    deleted.requests += [_request("delete", 4), _request("get", 5, 404)]
    deleted.listed = []
    batch = _object("batch", "batch")
    store = _object("vector store", "store")
    kept = ObjectTrace("kept response", "kept", creates=[_request("create", 1, id="resp_k")])
    kept.requests = [
        _request("get", 2, status="in_progress"),
        _request("get", 9, status="completed"),
        _request("get", 16, 404),
    ]
    file = StoredFile("file_1", ["w1", "w2"], "completed", ["w1", "w2"])
    removed = StoredFile("file_2", ["w3"], "completed", ["w3"], removed=20)
    found = [("file_1", "w1"), ("file_2", "w3")]
    return RunRecord(
        objects=[_object("file", "there"), deleted, batch, store, kept],
        batches=[BatchTrace(batch, ["a", "b"], "completed", ["a", "b"])],
        stores=[StoreTrace(store, [file, removed], [SearchTrace(10, found)])],
        proxied=[ProxiedTrace("p", "/embeddings", _request("create", 5), counted=1)],
        kept=[KeptTrace(kept, 6)],
        object_calls=[UpstreamCall(name, 5, finished=6) for name in ("a", "b", "p")],
        ended=60,
    )


def _again(record: RunRecord) -> None:
    record.objects[0].creates.append(_request("create", 2, id="id_other"))


def _listed_twice(record: RunRecord) -> None:
    record.objects[2].listed = ["id_batch", "id_other"]


def _shown_again(record: RunRecord) -> None:
    record.objects[1].requests.append(_request("get", 6))


def _listed_again(record: RunRecord) -> None:
    record.objects[1].listed = ["id_deleted"]


def _not_listed(record: RunRecord) -> None:
    record.objects[0].listed = []


def _gone(record: RunRecord) -> None:
    record.objects[0].requests.append(_request("get", 6, 404))


def _stranger(record: RunRecord) -> None:
    record.objects[3].requests[1].status = 200


def _broken(record: RunRecord) -> None:
    record.objects[3].requests[0].status = 500


def _without_retry_after(record: RunRecord) -> None:
    record.objects[3].requests[0].status = 503


def _line_twice(record: RunRecord) -> None:
    record.batches[0].errors = ["a"]


def _line_missing(record: RunRecord) -> None:
    record.batches[0].output = ["a"]


def _line_of_others(record: RunRecord) -> None:
    record.batches[0].output.append("c")


def _line_run_twice(record: RunRecord) -> None:
    record.object_calls.append(UpstreamCall("a", 7, finished=8))


def _batch_open(record: RunRecord) -> None:
    record.batches[0].status = ""


def _chunk_twice(record: RunRecord) -> None:
    record.stores[0].files[0].chunks.append("w2")


def _chunk_missing(record: RunRecord) -> None:
    record.stores[0].files[0].chunks = ["w1"]


def _not_ingested(record: RunRecord) -> None:
    record.stores[0].files[0].status = "failed"


def _found_twice(record: RunRecord) -> None:
    record.stores[0].searches[0].found.append(("file_1", "w1"))


def _found_after_removal(record: RunRecord) -> None:
    record.stores[0].searches.append(SearchTrace(30, [("file_2", "w3")]))


def _found_elsewhere(record: RunRecord) -> None:
    record.stores[0].searches[0].found.append(("file_9", "w9"))


def _counted_twice(record: RunRecord) -> None:
    record.proxied[0].counted = 2


def _not_counted(record: RunRecord) -> None:
    record.proxied[0].counted = 0


def _not_called(record: RunRecord) -> None:
    record.object_calls.pop()


def _purged_early(record: RunRecord) -> None:
    record.kept[0].created.requests[1:] = [_request("get", 5, 404)]


def _purged_before_its_end(record: RunRecord) -> None:
    record.kept[0].created.requests[1:] = [_request("get", 7.5, 404)]


VIOLATIONS: list[tuple[Callable[[RunRecord], None], str]] = [
    (_again, "I6"),
    (_listed_twice, "I6"),
    (_shown_again, "I1"),
    (_listed_again, "I1"),
    (_not_listed, "I1"),
    (_gone, "I1"),
    (_stranger, "I11"),
    (_broken, "I9"),
    (_without_retry_after, "I9"),
    (_line_twice, "I6"),
    (_line_missing, "I1"),
    (_line_of_others, "I11"),
    (_line_run_twice, "I6"),
    (_batch_open, "I2"),
    (_chunk_twice, "I6"),
    (_chunk_missing, "I1"),
    (_not_ingested, "I2"),
    (_found_twice, "I6"),
    (_found_after_removal, "I1"),
    (_found_elsewhere, "I11"),
    (_counted_twice, "I6"),
    (_not_counted, "I6"),
    (_not_called, "I6"),
    (_purged_early, "I1"),
    (_purged_before_its_end, "I1"),
]


def test_a_clean_record_has_no_violation() -> None:
    assert list(check_objects(_clean())) == []


@pytest.mark.parametrize(("change", "invariant"), VIOLATIONS)
def test_a_violation_is_reported(change: Callable[[RunRecord], None], invariant: str) -> None:
    record = copy.deepcopy(_clean())
    change(record)
    assert invariant in {violation.invariant for violation in check_objects(record)}


def test_usage_may_be_lost_by_a_killed_process() -> None:
    record = _clean()
    _not_counted(record)
    record.faults.append(Fault("killed", "web-1", 5.5))
    assert list(check_objects(record)) == []


@pytest.mark.parametrize(
    ("retry", "when", "excused"), [("sdk", 9, True), ("sdk", 30, False), ("key", 9, False)]
)
def test_a_fault_hides_the_loss_of_an_answer_from_a_create_without_a_key(
    retry: Literal["key", "sdk"], when: float, excused: bool
) -> None:
    record = _clean()
    record.objects[0].retry = retry
    record.objects[0].listed = ["id_there", "id_other"]
    record.faults.append(Fault("restarted", "postgres", when, when + 1))
    assert (list(check_objects(record)) == []) == excused


EVENT = ReceivedEvent("evt_1", "response.completed", "resp_1")
EVENTS: list[tuple[list[ReceivedEvent], str | None]] = [
    ([EVENT], None),
    ([EVENT, EVENT], None),
    ([], "I1"),
    ([EVENT, ReceivedEvent("evt_2", "response.completed", "resp_1")], "I3"),
    ([ReceivedEvent("evt_1", "response.failed", "resp_1")], "I3"),
    ([EVENT, ReceivedEvent("evt_3", "response.completed", "resp_2")], "I11"),
    ([EVENT, ReceivedEvent("evt_4", "response.completed", "resp_gone")], "I10"),
]


@pytest.mark.parametrize(("events", "invariant"), EVENTS)
def test_events_are_judged(events: list[ReceivedEvent], invariant: str | None) -> None:
    known = {"resp_1", "resp_gone"}
    ledger = EventLedger({"resp_1": "completed"}, known, gone={"resp_gone"})
    found: list[Violation] = list(ledger.check(events))
    assert {violation.invariant for violation in found} == ({invariant} if invariant else set())
