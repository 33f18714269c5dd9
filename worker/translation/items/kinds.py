"""Every kind of call that this server runs itself, by its item's type. Pure."""

from models.wire.events import Item
from worker.translation.items.mcp import OpenListTools, OpenMcpCall
from worker.translation.items.server_calls import OpenHostedCall
from worker.translation.items.web_search import OpenWebSearchCall

_KINDS: dict[str, type[OpenHostedCall]] = {
    kind.kind: kind for kind in (OpenListTools, OpenMcpCall, OpenWebSearchCall)
}


def reopened(output_index: int, item: Item) -> OpenHostedCall:
    """The open call that was stored as this item."""
    return _KINDS[item["type"]].restored(output_index, item)
