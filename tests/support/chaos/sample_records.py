"""Made-up traces of responses without faults, into which tests of the auditor put violations."""

import copy
import json
from collections.abc import Callable

from tests.chaos.audit.record import (
    JSON,
    ClientRequest,
    Fault,
    FaultKind,
    Reading,
    ResponseTrace,
    RunRecord,
    UpstreamCall,
)

Mutation = Callable[[RunRecord], object]
"""A change of a record, such as one violation."""


def response_frames(
    response_id: str, deltas: list[str], *, ending: str = "completed"
) -> list[bytes]:
    """The frames of an ordinary response: first events, one message, ending."""
    item = f"msg_{response_id[-2:]}"
    text = "".join(deltas)
    part_position = {"item_id": item, "output_index": 0, "content_index": 0}
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {
        "id": item,
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    empty = {**message, "status": "in_progress", "content": []}
    bodies: list[tuple[str, JSON]] = [
        ("response.created", {"response": body(response_id, "queued")}),
        ("response.queued", {"response": body(response_id, "queued")}),
        ("response.in_progress", {"response": body(response_id, "in_progress")}),
        ("response.output_item.added", {"output_index": 0, "item": empty}),
        ("response.content_part.added", {**part_position, "part": {**part, "text": ""}}),
        *(("response.output_text.delta", {**part_position, "delta": delta}) for delta in deltas),
        ("response.output_text.done", {**part_position, "text": text}),
        ("response.content_part.done", {**part_position, "part": part}),
        ("response.output_item.done", {"output_index": 0, "item": message}),
        (f"response.{ending}", {"response": body(response_id, "completed", [message])}),
    ]
    return [
        frame({"type": kind, "sequence_number": number, **fields})
        for number, (kind, fields) in enumerate(bodies)
    ]


def body(response_id: str, status: str, output: list[JSON] | None = None) -> JSON:
    """A response with the fields that the auditor reads."""
    text = "".join(part["text"] for item in output or [] for part in item["content"])
    return {"id": response_id, "status": status, "output": output or [], "output_text": text}


def frame(event: JSON) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def edited_frame(raw: bytes, change: Callable[[JSON], object]) -> bytes:
    """The frame with its event changed by `change`."""
    event = json.loads(raw.split(b"data: ", 1)[1])
    change(event)
    return frame(event)


def client_reading(web: str, frames: list[bytes], after: int = -1, opened: float = 1.0) -> Reading:
    """A reader that got these frames, a tenth of a second apart, and `[DONE]`."""
    chunks = [(opened + 0.1 * (number + 1), data) for number, data in enumerate(frames)]
    if any(
        f"event: response.{kind}\n".encode() in b"".join(frames)
        for kind in ("completed", "failed", "incomplete")
    ):
        chunks.append((chunks[-1][0], b"data: [DONE]\n\n"))
    return Reading(web, after, opened, chunks, closed=chunks[-1][0], end="clean")


def recorded_response(
    marker: str, response_id: str, deltas: list[str]
) -> tuple[ResponseTrace, UpstreamCall]:
    """A response without faults: a full reading, a resumed one, GETs before and after its end."""
    frames = response_frames(response_id, deltas)
    final = json.loads(frames[-1].split(b"data: ", 1)[1])["response"]
    running = copy.deepcopy(final)
    running["status"], running["output"][0]["status"] = "in_progress", "in_progress"
    running["output"][0]["content"][0]["text"] = running["output_text"] = deltas[0]
    created = ClientRequest("create", "web-1", 0.9, 1.0, 200, body(response_id, "queued"))
    requests = [
        ClientRequest("get", "web-1", 1.62, 1.65, 200, running),
        ClientRequest("get", "web-2", 4.0, 4.1, 200, final),
        ClientRequest("get", "web-1", 5.0, 5.1, 200, copy.deepcopy(final)),
        ClientRequest(
            "input_items",
            "web-1",
            5.2,
            5.3,
            200,
            {
                "data": [
                    {
                        "type": "message",
                        "content": [{"type": "input_text", "text": f"This is {marker}."}],
                    }
                ]
            },
        ),
        ClientRequest("other_project", "web-1", 5.4, 5.5, 404, {"error": {}}),
    ]
    readings = [
        client_reading("web-1", frames),
        client_reading("web-2", frames[:6]),
        client_reading("web-1", frames[6:], after=5, opened=2.0),
    ]
    readings[1].end = "left"
    trace = ResponseTrace(
        marker,
        f"This is {marker}.",
        background=True,
        create=created,
        id=response_id,
        readings=readings,
        requests=requests,
    )
    deltas_sent = [(1.3 + 0.1 * number, delta) for number, delta in enumerate(deltas)]
    call = UpstreamCall(
        marker,
        1.2,
        f"worker-{marker[1]}",
        "[]",
        deltas_sent,
        finished=2.5,
        is_complete_turn=True,
    )
    return trace, call


def in_turn(*steps: Mutation) -> Mutation:
    """Applies one change after the other."""

    def mutate(record: RunRecord) -> None:
        for step in steps:
            step(record)

    return mutate


def fault(what: FaultKind, target: str, begin: float, end: float | None = None) -> Mutation:
    """A fault of a process or a server."""
    return lambda record: record.faults.append(Fault(what, target, begin, end))
