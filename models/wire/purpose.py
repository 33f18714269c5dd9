"""The purpose of a response: what a worker does for it."""

from enum import StrEnum
from typing import Any


class Purpose(StrEnum):
    """What a worker does for a response."""

    ANSWER = "answer"
    """Turns of the model and the tool calls between them."""
    COMPACT = "compact"
    """One compaction of the history: the last input item is a `compaction_trigger`."""
    COUNT = "count"
    """The input tokens are counted. The model is not called and clients never see the response."""


_COUNT_MARK = "count_input_tokens"
"""Key in the column `responses.parameters` of a response with the purpose COUNT.

It is stored there, and not in a column of its own, because web and worker processes of two releases
run side by side during an upgrade: a worker that does not know a new column would call the model.
No request parameter has this name; only this module reads or writes the key.
"""


def stored_parameters(parameters: dict[str, Any], purpose: Purpose) -> dict[str, Any]:
    """The value of the column `responses.parameters` for these request parameters."""
    return {**parameters, _COUNT_MARK: True} if purpose is Purpose.COUNT else parameters


def split_stored_parameters(stored: dict[str, Any]) -> tuple[dict[str, Any], Purpose]:
    """The request parameters in `responses.parameters`, and the purpose: COUNT or ANSWER.

    COMPACT is not stored: it follows from the input.
    """
    if _COUNT_MARK not in stored:
        return stored, Purpose.ANSWER
    return {name: value for name, value in stored.items() if name != _COUNT_MARK}, Purpose.COUNT
