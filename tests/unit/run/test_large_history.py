"""A large history is decoded in parts, and other runs go on in between."""

import asyncio
from collections.abc import Mapping

import orjson

from models.db.queries.history import HistoryRow
from models.load.pacing import Pacer
from worker.run.preparation import decode_history

ITEMS = [
    {"id": f"msg_{number}", "type": "message", "role": "user", "content": "x" * 16_000}
    for number in range(320)
]


def _row(
    item: Mapping[str, object], *, answer: object = None, turn: int | None = None
) -> HistoryRow:
    return HistoryRow(
        depth=1,
        payload=orjson.dumps(item),
        turn=turn,
        result=None if answer is None else orjson.dumps(answer),
        broken=False,
        total_size=0,
        origin="sealed",
        is_output=turn is not None,
    )


async def test_the_event_loop_runs_while_five_megabytes_are_decoded() -> None:
    decoding = asyncio.create_task(decode_history(map(_row, ITEMS), Pacer(1).wait))
    iterations = 0
    while not decoding.done():
        await asyncio.sleep(0)
        iterations += 1
    items, origins = decoding.result()
    assert items == ITEMS
    assert origins == {}
    assert iterations >= 16


async def test_a_small_history_is_decoded_without_a_pause() -> None:
    async def pause() -> None:
        raise AssertionError

    call = {"id": "mcp_1", "type": "mcp_call", "arguments": "{}"}
    items, origins = await decode_history([_row(call, answer="done", turn=2)], pause)
    assert items == [{**call, "turn": 2, "answer": "done"}]
    assert origins == {"mcp_1": "sealed"}
