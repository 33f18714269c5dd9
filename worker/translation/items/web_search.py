"""The item of a web search."""

from models.errors import InvalidRequest
from models.wire.events import Event, SearchCompleted, Searching, SearchInProgress
from models.wire.item_types import ID_PREFIXES
from models.wire.json_input import decode_body
from worker.translation.items.server_calls import OpenServerCall


class OpenWebSearchCall(OpenServerCall):
    """A search.

    Its `action` gets the query when the arguments are complete; the arguments themselves have no
    events.
    """

    kind = "web_search_call"
    prefix = ID_PREFIXES[kind]
    completed_event = SearchCompleted

    def __init__(self, output_index: int, item_id: str, **fields: object) -> None:
        super().__init__(output_index, item_id, **{"action": {"type": "search"}, **fields})

    def open_events(self) -> list[Event]:
        return [self.added(), SearchInProgress(self.id, self.output_index)]

    def arguments_done(self) -> list[Event]:
        query = _query_of(self.arguments)
        if query:
            self.fields = {"action": {"type": "search", "query": query, "queries": [query]}}
        return [Searching(self.id, self.output_index)]


def _query_of(arguments: str) -> str:
    """The query in a model's arguments; empty if there is none."""
    try:
        parsed = decode_body(arguments.encode())
    except InvalidRequest:
        return ""
    query = parsed.get("query") if isinstance(parsed, dict) else None
    return query.strip() if isinstance(query, str) else ""
