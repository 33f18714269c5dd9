"""Which calls of a turn have an origin that must be kept."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from worker.translation.call_origin import CallOrigin, is_plain_id
from worker.translation.chat.calls import StreamedCall
from worker.translation.items.client_calls import OpenClientCall


def origins_of(
    calls: Iterable[StreamedCall], of_turn: CallOrigin, message_fields: Mapping[str, Any]
) -> Iterator[tuple[str, str, CallOrigin]]:
    """The item id, the id that clients know, and the origin of each call of a turn. `of_turn`: what
    they have in common; `message_fields`: the unknown fields of their message.

    None if no call needs one: the items show all that the upstream sent. An id that came before in
    this turn is not kept.
    """
    used: set[str] = set()
    found: list[tuple[str, str, CallOrigin]] = []
    is_needed = False
    for call in calls:
        if call.item is None:
            continue
        known_id = call.item.call_id if isinstance(call.item, OpenClientCall) else call.item.id
        fields = {} if found else message_fields
        of_call = replace(of_turn, position=len(found))
        origin = origin_of(call, known_id, of_call, fields, is_repeated=call.id in used)
        used.add(call.id)
        is_needed = is_needed or needs_origin(known_id, origin)
        found.append((call.item.id, known_id, origin))
    return iter(found if is_needed else ())


def origin_of(
    call: StreamedCall,
    known_id: str,
    of_turn: CallOrigin,
    message_fields: Mapping[str, Any],
    *,
    is_repeated: bool = False,
) -> CallOrigin:
    """The origin of a call with what has arrived of it. `known_id`: the id that clients know."""
    has_own_id = bool(call.id) and call.id != known_id and not is_repeated
    return replace(
        of_turn,
        id=call.id if has_own_id else None,
        call=call.fields,
        function=call.function_fields,
        message=message_fields,
    )


def needs_origin(known_id: str, origin: CallOrigin) -> bool:
    """Whether the upstream sent an unknown field, or an id that clients do not see or that other
    upstreams would not get."""
    return origin.has_fields or origin.id is not None or not is_plain_id(known_id)
