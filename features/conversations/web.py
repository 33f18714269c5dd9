"""Conversations in a web process."""

from features.conversations.store import ConversationStore
from web.state import AppState, Feature


class Conversations(Feature):
    """The stored conversations."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self.store = ConversationStore(state)


FEATURE = Conversations
