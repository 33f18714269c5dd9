"""Which calls of a turn have an origin that must be kept."""

from collections.abc import Iterable, Iterator

from worker.translation.call_origin import CallOrigin, is_plain_id
from worker.translation.chat.calls import StreamedCall
from worker.translation.items.client_calls import OpenClientCall
from worker.translation.items.open_item import OpenToolCall


def origins_of(
    calls: Iterable[StreamedCall], upstream: str
) -> Iterator[tuple[str, str, CallOrigin]]:
    """The item id, the id that clients know, and the origin of each call of a turn.

    None if the items show all that the upstream sent: no unknown field, and only ids that clients
    see and that any upstream accepts. An id that came before in this turn is not kept.
    """
    opened = [(call, call.item) for call in calls if call.item is not None]
    used: set[str] = set()
    found: list[tuple[str, str, CallOrigin]] = []
    is_needed = False
    for call, item in opened:
        known_id = _known_id(item)
        own_id = call.id if call.id and call.id not in used else known_id
        used.add(own_id)
        origin = CallOrigin(
            upstream,
            step=opened[0][1].id,
            id=own_id if own_id != known_id else None,
            call=call.fields,
            function=call.function_fields,
        )
        is_needed = is_needed or origin.has_fields or own_id != known_id
        is_needed = is_needed or not is_plain_id(own_id)
        found.append((item.id, known_id, origin))
    return iter(found if is_needed else ())


def _known_id(item: OpenToolCall) -> str:
    """The id by which a call is found in a history that a client sends back."""
    return item.call_id if isinstance(item, OpenClientCall) else item.id
