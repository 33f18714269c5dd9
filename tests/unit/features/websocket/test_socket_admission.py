"""What the creates that wait on one WebSocket have of the process's memory."""

import pytest

from features.websocket.frames import CreateFrame, FrameRefused, read_frame
from features.websocket.socket_admission import SocketAdmission
from models.errors import ShareUsedUp
from models.load.budget import Reservation, SharedBudget
from models.wire.json_input import BodyLimits

_FRAME = 60_000
"""Bytes; a frame of this size does not count by itself."""


def test_small_frames_that_wait_count_together_until_they_run() -> None:
    share = SharedBudget("large requests", 200_000, 200_000)
    admission = SocketAdmission(1_000_000, Reservation(share, "a"))
    of_another_socket = share.reserve("a", 70_000)
    end_first = admission.count_waiting(_FRAME)
    assert share.used == 70_000
    end_second = admission.count_waiting(_FRAME)
    assert share.used == 70_000 + 2 * _FRAME
    with pytest.raises(ShareUsedUp):
        admission.count_waiting(_FRAME)
    assert share.used == 70_000 + 2 * _FRAME
    end_first()
    end_first()
    end_second()
    of_another_socket.release()
    assert share.used == 0


async def test_a_create_that_waits_keeps_its_bytes_and_not_its_objects() -> None:
    share = SharedBudget("large requests", 10_000_000, 10_000_000)
    raw = b'{"type": "response.create", "model": "m", "input": [' + b"0, " * 30_000 + b"0]}"
    limits = BodyLimits(len(raw), len(raw), 100_000)
    create = await read_frame(raw, limits, Reservation(share, "a"))
    assert isinstance(create, CreateFrame)
    body = dict(create.body)
    assert share.used > 3_000_000
    create.keep_raw(raw, limits)
    assert create.body == {}
    assert share.used == len(raw)
    taken = await create.take_body()
    assert taken.value == body
    assert share.used > 3_000_000
    taken.release()
    assert share.used == 0


async def test_frames_with_many_objects_are_refused_while_others_have_the_memory() -> None:
    share = SharedBudget("large requests", 4_000_000, 4_000_000)
    raw = b'{"type": "response.create", "model": "m", "input": [' + b"0, " * 20_000 + b"0]}"
    limits = BodyLimits(len(raw), len(raw), 100_000)
    first = await read_frame(raw, limits, Reservation(share, "a"))
    with pytest.raises(FrameRefused):
        await read_frame(raw, limits, Reservation(share, "a"))
    first.held.release()
    await read_frame(raw, limits, Reservation(share, "a"))
