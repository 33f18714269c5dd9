"""Fields of stored items that are shown only if `include` names them.

Of the values of `include`, some about tools and log probabilities decide what a run stores. URLs of
images are always shown, because clients send listed items back. Sealed reasoning and the results of
file searches are always stored, for later runs, and shown only on request.
"""

from collections.abc import Collection

from models.wire.events import Event, Item, ItemDone

SEALED_REASONING = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
FILE_RESULTS = "file_search_call.results"
_HIDDEN = {
    "reasoning": ("encrypted_content", SEALED_REASONING),
    "file_search_call": ("results", FILE_RESULTS),
}
"""type of an item -> its field that may be hidden, and the value of `include` that shows it."""


def filter_items(items: list[Item], include: Collection[str]) -> list[Item]:
    """The items as a client with this `include` sees them."""
    return [_filtered(item, include) if item["type"] in _HIDDEN else item for item in items]


def filter_events(events: list[Event], include: Collection[str]) -> list[Event]:
    """The events of a run as its readers see them: a done item has the same fields as in a GET
    (I7)."""
    return [
        ItemDone(event.output_index, _filtered(event.item, include))
        if type(event) is ItemDone and event.item["type"] in _HIDDEN
        else event
        for event in events
    ]


def _filtered(item: Item, include: Collection[str]) -> Item:
    hidden, value = _HIDDEN[item["type"]]
    if value in include or hidden not in item:
        return item
    return {name: content for name, content in item.items() if name != hidden}
