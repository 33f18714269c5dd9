"""Compactions that clients send back or ask for, checked before anything is stored (docs/state.md)."""

from collections.abc import Collection
from uuid import UUID

from models.errors import InvalidRequest
from models.secrets import Sealer, Unreadable
from models.wire.compaction import newest_compaction
from models.wire.events import Item
from models.wire.request import CreateRequest

_NO_SEALING_KEY = (
    "Compaction is not supported by this server: it has no key to seal compactions with."
)


def require_compactable(request: CreateRequest, sealer: Sealer) -> None:
    """A response that may have to be compacted needs a key, and something to compact. Raises InvalidRequest."""
    last = len(request.input) - 1
    is_forced = last >= 0 and request.input[last]["type"] == "compaction_trigger"
    if not sealer.has_key:
        if "context_management" in request.parameters:
            raise InvalidRequest(
                _NO_SEALING_KEY, param="context_management", code="unsupported_parameter"
            )
        if is_forced:
            raise InvalidRequest(
                _NO_SEALING_KEY, param=f"input[{last}]", code="unsupported_parameter"
            )
    if (
        is_forced
        and last == 0
        and request.previous_response_id is None
        and request.conversation is None
    ):
        message = "Invalid 'input': there is nothing to compact. Send items before it, or a 'previous_response_id'."
        raise InvalidRequest(message, param="input", code="invalid_value")


def require_readable(
    items: list[Item], sealer: Sealer, project: UUID, where: str = "input"
) -> None:
    """Every compaction item must be one of ours, made for this project: nobody else's can be read. Raises InvalidRequest."""
    for index, item in enumerate(items):
        if item["type"] != "compaction":
            continue
        try:
            sealer.open_token("compaction", project, item["encrypted_content"])
        except Unreadable:
            message = (
                f"The encrypted content of the compaction '{item['id']}' cannot be read: it was changed, or made by another server, for "
                "another project, or with a sealing key that this server no longer has."
            )
            raise InvalidRequest(
                message,
                param=f"{where}[{index}].encrypted_content",
                code="invalid_encrypted_content",
            ) from None


def drop_compacted(
    items: list[Item], open_calls: Collection[str]
) -> tuple[list[Item], Collection[str]]:
    """What of an input the model will be told as it is, and which calls before that are open: a compaction takes the place of all others."""
    position = newest_compaction(items)
    return (items[position + 1 :], ()) if position >= 0 else (items, open_calls)
