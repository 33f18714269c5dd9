"""Ids of this server sort by the order in which they were made."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from models.ids import continue_after, new_item_id, new_uuid


def test_ids_of_one_process_sort_by_time() -> None:
    made = [new_item_id("fc") for _ in range(10_000)]
    assert made == sorted(set(made))
    assert re.fullmatch("fc_[0-9a-f]{32}", made[0])
    assert (new_uuid().version, new_uuid().variant) == (7, UUID(made[0][3:]).variant)


def test_ids_of_several_threads_differ_in_their_time() -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: new_uuid().hex[:16], range(4000)))
    assert len(set(made)) == len(made)


def test_ids_sort_by_time_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_item_id("fc")
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now - 60_000_000_000)
    assert new_item_id("fc") > before


def test_ids_continue_after_those_of_a_process_whose_clock_is_ahead() -> None:
    ahead = UUID(int=((time.time_ns() // 1_000_000 + 60_000) << 80) | 7 << 76 | 2 << 62)
    continue_after([f"msg_{ahead.hex}", "msg_of_another_form"])
    assert new_item_id("msg") > f"msg_{ahead.hex}"
