"""When the garbage collector runs, and what of it a large body sees."""

import gc
from collections.abc import Iterator

import pytest

from models.garbage import collect_new_objects, tune_garbage_collector, without_collections
from models.wire.json_input import BodyLimits, decode_counted

LIMITS = BodyLimits(size=4_000_000, text=4_000_000, values=1_000_000)
BODY = b'{"metadata": [' + b'{"a": 1}, ' * 99_000 + b"0]}"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    threshold = gc.get_threshold()
    gc.collect()
    yield
    gc.set_threshold(*threshold)


@pytest.fixture
def looks() -> Iterator[list[int]]:
    """The generation of each collection."""
    generations: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            generations.append(info["generation"])

    gc.callbacks.append(note)
    yield generations
    gc.callbacks.remove(note)


def test_nothing_is_looked_at_while_a_body_is_decoded(looks: list[int]) -> None:
    gc.set_threshold(1000, 5, 100)
    body = decode_counted(BODY, LIMITS)
    assert len(looks) <= 1, "the one that was due when it was decoded"
    assert gc.isenabled()
    del body


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with without_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_many_new_objects_are_looked_at_and_few_are_not(looks: list[int]) -> None:
    tune_garbage_collector(2_000_000)
    looks.clear()
    collect_new_objects()
    assert looks == []
    for expected in [0] * 10 + [1]:
        kept = [[number] for number in range(60_000)]
        collect_new_objects()
        assert looks == [expected]
        looks.clear()
        del kept
