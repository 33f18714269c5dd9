"""Fields of stored items that are shown only if `include` names them.

Of the values of `include`, those about tools and log probabilities decide what a run stores. URLs
of images are always shown, because clients send listed items back. Sealed reasoning is always
stored, for later runs, and shown only on request.
"""

from collections.abc import Collection

from models.wire.events import Event, Item, ItemDone

SEALED_REASONING = "reasoning.encrypted_content"


def filter_items(items: list[Item], include: Collection[str]) -> list[Item]:
    """The items as a client with this `include` sees them."""
    if SEALED_REASONING in include:
        return items
    return [
        {name: value for name, value in item.items() if name != "encrypted_content"}
        if item["type"] == "reasoning"
        else item
        for item in items
    ]


def filter_events(events: list[Event], include: Collection[str]) -> list[Event]:
    """The events of a run as its readers see them: a done item has the same fields as in a GET
    (I7)."""
    if SEALED_REASONING in include:
        return events
    return [
        ItemDone(event.output_index, *filter_items([event.item], include))
        if type(event) is ItemDone and event.item["type"] == "reasoning"
        else event
        for event in events
    ]
