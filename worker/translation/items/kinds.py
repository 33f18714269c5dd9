"""All kinds of calls that this server carries out itself, by the type of their item."""

from models.wire.events import Item
from worker.translation.items.file_search import OpenFileSearchCall
from worker.translation.items.mcp import OpenListTools, OpenMcpCall
from worker.translation.items.server_calls import OpenServerCall
from worker.translation.items.web_search import OpenWebSearchCall

_CALL_CLASSES: dict[str, type[OpenServerCall]] = {
    kind.kind: kind for kind in (OpenListTools, OpenMcpCall, OpenWebSearchCall, OpenFileSearchCall)
}


def restore_call(output_index: int, item: Item) -> OpenServerCall:
    """The open call that was stored as this item."""
    return _CALL_CLASSES[item["type"]].from_item(output_index, item)
