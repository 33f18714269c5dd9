"""Files by URL: fetched before the turn and put into the history as data, because chat completions know no `file_url` (contract §7.1).

Only this attempt's copy of the history holds them; what is stored and shown keeps the address that the client sent.
"""

import asyncio
import base64
from typing import Any

from aiohttp.abc import AbstractResolver

from models.config.settings import EgressSettings
from models.egress import Egress, Refused
from models.errors import UpstreamFailed
from models.wire.checks import shown
from models.wire.events import Item
from models.wire.items import FilePlace, file_places
from worker.outbound.download import Download, Downloads, Unfetchable


async def with_files(
    history: list[Item],
    own: int,
    settings: EgressSettings,
    resolver: AbstractResolver | None = None,
    *,
    before: str = "previous_response_id",
    skipped: int = 0,
) -> list[Item]:
    """The history with every `file_url` replaced by the file itself; `history` is not changed, and is given back if there is none.

    The last `own` items are the response's own input, behind `skipped` others that are not here: an error names them as the client numbered
    them, and those before by the parameter that brought them, `before`. Raises UpstreamFailed, which a client that waits sees as a 400 (design §4.9).
    """
    places = list(file_places(history))
    if not places:
        return history
    downloads = Downloads(Egress(settings), redirects=settings.redirects, resolver=resolver)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + settings.timeout.total_seconds()
    room = settings.file_bytes
    whole = list(history)
    for place in places:
        try:
            found = await downloads.fetch(place.url, most=room, within=deadline - loop.time())
        except (Refused, Unfetchable) as fault:
            raise _failure(place, str(fault), len(history) - own, skipped, before) from fault
        room -= len(found.content)
        whole[place.item] = _replaced(
            whole[place.item], place, await asyncio.to_thread(_data_url, found), found.name
        )
    return whole


def _data_url(found: Download) -> str:
    return f"data:{found.media_type};base64,{base64.b64encode(found.content).decode()}"


def _replaced(item: Item, place: FilePlace, data_url: str, name: str) -> Item:
    parts: list[dict[str, Any]] = list(item[place.field])
    given = parts[place.part]
    named = {"filename": given.get("filename") or name or "file", "file_data": data_url}
    parts[place.part] = {
        **{key: value for key, value in given.items() if key != "file_url"},
        **named,
    }
    return {**item, place.field: parts}


def _failure(
    place: FilePlace, why: str, first_own: int, skipped: int, before: str
) -> UpstreamFailed:
    own = place.item >= first_own
    return UpstreamFailed(
        f"Failed to download the file from '{shown(place.url)}': {why}.",
        code="invalid_prompt",
        reason="file_unavailable",
        status=400,
        param=place.named(place.item - first_own + skipped) if own else before,
        envelope_code="invalid_value",
    )
