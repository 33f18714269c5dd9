"""The bytes of a form that wait for its model."""

import tempfile
from pathlib import Path

import pytest

from features.proxy.forms import IN_MEMORY, Spool
from models.errors import ShareUsedUp, Unavailable
from models.load.budget import Reservation, SharedBudget

MIB = 1024 * 1024


async def content(spool: Spool) -> bytes:
    """All that it holds."""
    return b"".join([piece async for piece in spool.pieces()])


@pytest.mark.parametrize("size", [0, 1, IN_MEMORY, IN_MEMORY + 1, 3 * MIB])
async def test_what_was_added_is_read_in_order_and_again(size: int) -> None:
    share = SharedBudget("uploads", 10 * MIB, 0)
    spool = Spool(Reservation(share, "a"))
    given = bytes(range(256)) * (size // 256 + 1)
    for at in range(0, size, 10_000):
        await spool.add(given[at : min(at + 10_000, size)])
    assert spool.size == size
    for _ in range(2):
        assert await content(spool) == given[:size]
    assert share.used == (size if size > IN_MEMORY else 0)
    spool.close()
    assert share.used == 0


async def test_a_project_gets_its_share_of_the_room() -> None:
    share = SharedBudget("uploads", 10 * MIB, 2 * MIB)
    first, second = Spool(Reservation(share, "a")), Spool(Reservation(share, "a"))
    await first.add(b"x" * MIB)
    with pytest.raises(ShareUsedUp):
        await second.add(b"x" * (MIB + 1))
    first.close()
    await second.add(b"x" * 2)
    second.close()


async def test_a_disk_without_room_is_a_retry_and_a_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    spool = Spool(Reservation(SharedBudget("uploads", MIB, 0), "a"))
    with pytest.raises(Unavailable, match="Send 'model' first"):
        await spool.add(b"x" * (IN_MEMORY + 1))
