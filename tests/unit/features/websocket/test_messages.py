"""The messages of a WebSocket while they arrive."""

import tracemalloc

import pytest
from websockets.frames import Frame, Opcode
from websockets.server import ServerProtocol

from features.websocket.messages import Messages
from models.load.budget import SharedBudget


@pytest.mark.parametrize("piece", [b"", b"x"])
def test_fragments_take_only_their_bytes(piece: bytes) -> None:
    messages = Messages(ServerProtocol())
    messages.begin(SharedBudget("bytes", 10**9, 0), "a", 1.0)
    messages.add(Frame(Opcode.TEXT, b"", fin=False))
    tracemalloc.start()
    try:
        for _ in range(50_000):
            messages.add(Frame(Opcode.CONT, piece, fin=False))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 200_000
    assert messages.add(Frame(Opcode.CONT, b"", fin=True)) == (bytearray(piece * 50_000), True)
