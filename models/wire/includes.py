"""What of the stored items is shown only to who asks for it by `include` (contract §2.1).

Of the values that the API knows, those that concern tools and log probabilities decide what a run stores; addresses of images are always
shown, because items that are listed are also sent back. Sealed reasoning is stored for the runs to come and shown on demand.
"""

from collections.abc import Collection

from models.wire.events import Item

SEALED_REASONING = "reasoning.encrypted_content"


def included(items: list[Item], include: Collection[str]) -> list[Item]:
    """The items as somebody sees them who asked for this much."""
    if SEALED_REASONING in include:
        return items
    return [
        {name: value for name, value in item.items() if name != "encrypted_content"} if item["type"] == "reasoning" else item
        for item in items
    ]
