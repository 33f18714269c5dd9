"""Files by URL: fetched before the turn and put into the history as data, because chat completions know no `file_url` (contract §7.1).

Only this attempt's copy of the history holds them; what is stored and shown keeps the address that the client sent.
"""

import asyncio
import base64
from typing import Any

from aiohttp.abc import AbstractResolver

from models.config.groups import EgressSettings
from models.egress import EgressPolicy, EgressRefused
from models.errors import UpstreamFailed
from models.wire.checks.faults import shorten
from models.wire.events import Item
from models.wire.items import FilePlace, file_places
from worker.outbound.download import Download, Downloader, DownloadError


async def with_files(
    history: list[Item],
    own_count: int,
    settings: EgressSettings,
    resolver: AbstractResolver | None = None,
    *,
    history_parameter: str = "previous_response_id",
    skipped: int = 0,
) -> list[Item]:
    """The history with every `file_url` replaced by the file itself; `history` is not changed, and is given back if there is none.

    The last `own` items are the response's own input, behind `skipped` others that are not here: an error names them as the client numbered
    them, and those before by the parameter that brought them, `before`. Raises UpstreamFailed, which a client that waits sees as a 400 (design §4.9).
    """
    places = list(file_places(history))
    if not places:
        return history
    downloads = Downloader(EgressPolicy(settings), redirects=settings.redirects, resolver=resolver)
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
