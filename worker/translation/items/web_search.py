"""The item of a web search (contract §4.3, §4.4). Pure."""

from models.errors import InvalidRequest
from models.wire.events import Event, SearchCompleted, Searching, SearchInProgress
from models.wire.json_input import decode_body
from worker.translation.items.server_calls import OpenServerCall


class OpenWebSearchCall(OpenServerCall):
    """A search: its `action` holds the query as soon as the model has said it in full. Its arguments have no events of their own."""

    prefix = "ws"
    kind = "web_search_call"

    def __init__(self, output_index: int, item_id: str, **fields: object) -> None:
        super().__init__(output_index, item_id, **{"action": {"type": "search"}, **fields})

    def open_events(self) -> list[Event]:
        return [self.added(), SearchInProgress(self.id, self.output_index)]

    def arguments_done(self) -> list[Event]:
        query = _query(self.arguments)
        if query:
            self.fields = {"action": {"type": "search", "query": query, "queries": [query]}}
        return [Searching(self.id, self.output_index)]

    def status_event(self) -> list[Event]:
        return [SearchCompleted(self.id, self.output_index)] if self.status == "completed" else []


def _query(arguments: str) -> str:
    """What is to be searched for; empty when the arguments do not say."""
    try:
        found = decode_body(arguments.encode())
    except InvalidRequest:
        return ""
    query = found.get("query") if isinstance(found, dict) else None
    return query.strip() if isinstance(query, str) else ""
