"""What of the stored items is shown only to who asks for it by `include` (contract §2.1).

Of the values that the API knows, those that concern tools and log probabilities decide what a run stores; addresses of images are always
shown, because items that are listed are also sent back. Sealed reasoning is stored for the runs to come and shown on demand.
"""

from collections.abc import Collection

from models.wire.events import Event, Item, ItemDone

SEALED_REASONING = "reasoning.encrypted_content"


def filter_items(items: list[Item], include: Collection[str]) -> list[Item]:
    """The items as somebody sees them who asked for this much."""
    if SEALED_REASONING in include:
        return items
    return [
        {name: value for name, value in item.items() if name != "encrypted_content"}
        if item["type"] == "reasoning"
        else item
        for item in items
    ]


def filter_events(events: list[Event], include: Collection[str]) -> list[Event]:
    """The events of a run as its readers see them: an item that is done holds no more than a GET of it shows (I7)."""
    if SEALED_REASONING in include:
        return events
    return [
        ItemDone(event.output_index, *filter_items([event.item], include))
        if type(event) is ItemDone and event.item["type"] == "reasoning"
        else event
        for event in events
    ]
