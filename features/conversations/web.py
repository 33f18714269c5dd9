"""Conversations in a web process."""

from features.conversations.store import ConversationStore
from web.state import AppState, Feature


class Conversations(Feature):
    """The stored conversations."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self.store = ConversationStore(
            state.settings,
            state.pool,
            state.items,
            state.validation,
            state.lease.clock,
            state.account_ids,
            state.input_files,
        )


FEATURE = Conversations
