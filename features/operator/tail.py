"""Follows the events of one response, as a web process does for a client (web/stream/reader.py)."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from cli.addresses import resolve_database, resolve_redis_url
from cli.output import clean, print_result
from cli.settings import NO_REDIS, child_settings
from features.operator.connection import operator
from features.operator.connection import run as connect_and_run
from features.operator.operations import resolve_id
from features.operator.service import record_reveal
from models import logs
from models.config.settings import Settings
from models.db.database import Connection, open_pool
from models.ids import new_uuid
from models.tasks import cancel_all
from models.wire.events import DONE, split_frames
from web.stream.bus import Bus
from web.stream.polls import LogPolls
from web.stream.reader import EventReader

_INDENT = " " * 8
"""Under the number of an event."""


def run(id_text: str, after: int, data: Path | None, *, as_json: bool) -> bool:
    """Prints the events with numbers above `after`, until the response has ended; the audit log
    records it. Returns False if the response was deleted before. Raises RequestRefused if there is
    no such response."""

    async def find(database: Connection) -> UUID:
        found = await resolve_id(database, id_text)
        await record_reveal(database, found, operator())
        return found

    response_id = connect_and_run(data, find)
    settings = child_settings(resolve_database(data).dsn, resolve_redis_url(data) or NO_REDIS)
    logs.configure("error")
    return asyncio.run(_follow(settings, response_id, after, as_json=as_json))


async def _follow(settings: Settings, response_id: UUID, after: int, *, as_json: bool) -> bool:
    printer, is_last = TextPrinter(), False
    async with _event_reader(settings) as reader:
        stream = reader.follow(response_id, after, background=True)
        async with aclosing(stream) as blocks:
            async for block in blocks:
                is_last = block.endswith(DONE)
                for frame in split_frames(block.removesuffix(DONE)):
                    event = json.loads(frame.partition(b"\ndata: ")[2])
                    if as_json:
                        print_result(json.dumps(event, ensure_ascii=False))
                    else:
                        printer.print(event)
                if is_last:
                    break
    printer.end()
    return is_last


@asynccontextmanager
async def _event_reader(settings: Settings) -> AsyncIterator[EventReader]:
    """A reader as in a web process. Without Redis it polls the workers' journals."""
    pool = open_pool(settings, "operator-tail", 2)
    await pool.open()
    bus = Bus(settings, new_uuid())
    polls = LogPolls(settings, pool, bus)
    tasks = [
        asyncio.create_task(work)
        for work in (bus.run(), polls.read_journals(), polls.watch_idle_readers())
    ]
    try:
        yield EventReader(pool, bus)
    finally:
        await cancel_all(tasks)
        await pool.close()


class TextPrinter:
    """Prints the number and the type of each event; the text of deltas of one part is joined."""

    def __init__(self) -> None:
        self._part: tuple[Any, ...] | None = None
        """Of the deltas that are printed now: their type and place."""

    def print(self, event: dict[str, Any]) -> None:
        """Prints an event."""
        kind, delta = event["type"], event.get("delta")
        is_text = kind.endswith(".delta") and isinstance(delta, str)
        place = (event.get("output_index"), event.get("content_index"))
        part = (kind, *place, event.get("summary_index")) if is_text else None
        if part is None or part != self._part:
            self.end()
            self._write(f"{event['sequence_number']:>6}  {kind}")
            self._write(f"\n{_INDENT}" if is_text else f"{_detail(event)}\n")
        self._part = part
        if is_text:
            self._write(f"\n{_INDENT}".join(map(clean, str(delta).split("\n"))))

    def end(self) -> None:
        """Ends the line of the deltas."""
        if self._part is not None:
            self._part = None
            self._write("\n")

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()


def _detail(event: dict[str, Any]) -> str:
    """What an event is about, in some words."""
    item, response = event.get("item"), event.get("response")
    if isinstance(item, dict):
        words = [item.get("type"), item.get("name"), item.get("status")]
    elif isinstance(response, dict):
        error = response.get("error") or {}
        words = [response.get("status"), error.get("message")]
    else:
        words = []
    text = clean(", ".join(str(word) for word in words if word))
    return f"  ({text})" if text else ""
