"""Files by URL: downloaded before the first turn and put into the history as data.

Chat Completions has no `file_url` (docs/wire.md). Only this attempt's copy of the history holds the
data; what is stored and shown keeps the client's URL.
"""

import asyncio
import base64
from typing import Any

from aiohttp.abc import AbstractResolver

from models.egress import EgressPolicy, EgressRefused
from models.errors import UpstreamFailed
from models.wire.checks.faults import shorten
from models.wire.events import Item
from models.wire.items import FilePlace, file_places
from worker.outbound.download import Download, Downloader, DownloadError


async def with_files(
    history: list[Item],
    own_count: int,
    egress: EgressPolicy,
    resolver: AbstractResolver | None = None,
    *,
    history_parameter: str = "previous_response_id",
    skipped: int = 0,
) -> list[Item]:
    """The history with the file itself in place of every `file_url`; `history` is not changed.

    The last `own_count` items are this response's input; `skipped` input items before them are not
    in the history. An error names an input item by the client's own index, and any earlier item by
    `history_parameter`. Raises UpstreamFailed, which a waiting client receives as a 400.
    """
    places = list(file_places(history))
    if not places:
        return history
    settings = egress.settings
    downloads = Downloader(egress, redirects=settings.redirects, resolver=resolver)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + settings.timeout.total_seconds()
    bytes_left = settings.file_bytes
    inlined = list(history)
    for place in places:
        try:
            download = await downloads.fetch(
                place.url, max_bytes=bytes_left, time_limit=deadline - loop.time()
            )
        except (EgressRefused, DownloadError) as fault:
            raise _failure(
                place, str(fault), len(history) - own_count, skipped, history_parameter
            ) from fault
        bytes_left -= len(download.content)
        inlined[place.item] = _inline_file(
            inlined[place.item], place, await asyncio.to_thread(_data_url, download), download.name
        )
    return inlined


def _data_url(download: Download) -> str:
    return f"data:{download.media_type};base64,{base64.b64encode(download.content).decode()}"


def _inline_file(item: Item, place: FilePlace, data_url: str, name: str) -> Item:
    parts: list[dict[str, Any]] = list(item[place.field])
    part = parts[place.part]
    named = {"filename": part.get("filename") or name or "file", "file_data": data_url}
    parts[place.part] = {
        **{key: value for key, value in part.items() if key != "file_url"},
        **named,
    }
    return {**item, place.field: parts}


def _failure(
    place: FilePlace, reason: str, first_own: int, skipped: int, history_parameter: str
) -> UpstreamFailed:
    own = place.item >= first_own
    return UpstreamFailed(
        f"Failed to download the file from '{shorten(place.url)}': {reason}.",
        code="invalid_prompt",
        reason="file_unavailable",
        status=400,
        param=place.path(place.item - first_own + skipped) if own else history_parameter,
        envelope_code="invalid_value",
    )
