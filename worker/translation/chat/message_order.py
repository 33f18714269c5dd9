"""The order of roles that strict upstreams want: a user's messages and the model's in turn."""

from collections.abc import Iterator, Sequence
from typing import Any

Message = dict[str, Any]
Content = str | list[dict[str, Any]] | None

AFTER_TOOL = "I have the result."
"""What the model seems to have written between a tool's output and a user message."""
BEFORE_ASSISTANT = "(The conversation begins.)"
AFTER_ASSISTANT = "Continue."

_JOINED_ROLES = frozenset(("user", "assistant", "system", "developer"))


def alternate_roles(messages: Sequence[Message]) -> list[Message]:
    """The messages in an order that every template accepts.

    Messages of one role that follow each other become one; an assistant message stands between a
    tool's output and a user message; the first message besides instructions is a user's, and the
    last one no assistant's. Instructions alone get a user's message too.
    """
    ordered: list[Message] = []
    for message in with_users_at_the_ends(messages):
        before = ordered[-1] if ordered else {"role": None}
        if message["role"] == "user" and before["role"] == "tool":
            ordered.append({"role": "assistant", "content": AFTER_TOOL})
        elif _can_be_joined(before, message):
            ordered.pop()
            joined = join_contents([before.get("content"), message.get("content")])
            content = before.get("content") if joined is None else joined
            message = {**before, **message, "content": content}  # noqa: PLW2901
        ordered.append(message)
    return ordered


def join_contents(contents: Sequence[Content]) -> Content:
    """One content: a text if all are texts, else a list of parts; None if there is none."""
    present = [content for content in contents if content]
    if all(isinstance(content, str) for content in present):
        return "\n\n".join(map(str, present)) or None
    parts: list[dict[str, Any]] = []
    for content in present:
        parts += [{"type": "text", "text": content}] if isinstance(content, str) else content or []
    return parts


def with_users_at_the_ends(messages: Sequence[Message]) -> Iterator[Message]:
    """The messages with a short one of a user before an assistant's that is the first, and after
    one that is the last."""
    roles = [message["role"] for message in messages]
    first = next((role for role in roles if role not in ("system", "developer")), None)
    for position, message in enumerate(messages):
        if (
            first == "assistant"
            and message["role"] == "assistant"
            and first not in roles[:position]
        ):
            yield {"role": "user", "content": BEFORE_ASSISTANT}
        yield message
    if first is None or roles[-1] == "assistant":
        yield {"role": "user", "content": AFTER_ASSISTANT}


def _can_be_joined(before: Message, message: Message) -> bool:
    return (
        before["role"] == message["role"]
        and message["role"] in _JOINED_ROLES
        and "tool_calls" not in before
    )
