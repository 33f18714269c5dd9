"""The item of a search in vector stores."""

from collections.abc import Iterator
from typing import Any

from models.errors import InvalidRequest
from models.wire.events import Event, FileSearchCompleted, FileSearching, FileSearchInProgress
from models.wire.item_types import ID_PREFIXES
from models.wire.json_input import clean_text, decode_body
from worker.translation.items.server_calls import OpenServerCall

MAX_QUERIES = 5
"""Queries of one call. Further ones are dropped."""
_MAX_QUERY = 1000
"""Characters of a query."""
_NAMES = ("queries", "query", "q", "search_query", "input", "text")
"""Names under which models send their queries, whatever the description of the function says."""


class OpenFileSearchCall(OpenServerCall):
    """A search.

    It gets its `queries` when the arguments are complete; the arguments themselves have no events.
    Its `results` are stored in it, and shown only on request (models/wire/includes.py).
    """

    kind = "file_search_call"
    prefix = ID_PREFIXES[kind]
    completed_event = FileSearchCompleted

    def __init__(self, output_index: int, item_id: str, **fields: object) -> None:
        super().__init__(output_index, item_id, **{"queries": [], **fields})

    def open_events(self) -> list[Event]:
        return [self.added(), FileSearchInProgress(self.id, self.output_index)]

    def arguments_done(self) -> list[Event]:
        self.fields = {**self.fields, "queries": queries_of(self.arguments)}
        return [FileSearching(self.id, self.output_index)]


def queries_of(arguments: str) -> list[str]:
    """The queries in a model's arguments; none if there are none.

    Weak models write one query as a text, under another name, as JSON in a string, or without any
    JSON.
    """
    decoded = _decoded(arguments)
    if isinstance(decoded, str) and decoded.lstrip().startswith(("[", "{")):
        return []  # JSON that broke off
    queries = (query[:_MAX_QUERY].strip() for query in _texts(decoded))
    return list(dict.fromkeys(query for query in queries if query))[:MAX_QUERIES]


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    """The texts in a value that should be queries."""
    if depth > 3:
        return
    if isinstance(value, str):
        inner = _decoded(value) if value.lstrip().startswith(("[", "{")) else value
        if inner == value:
            yield value
        else:
            yield from _texts(inner, depth + 1)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, depth + 1)
    elif isinstance(value, dict):
        name = next((name for name in _NAMES if value.get(name)), None)
        texts = [each for each in value.values() if isinstance(each, str)]
        yield from _texts(value[name] if name is not None else texts[:1], depth + 1)


def _decoded(text: str) -> Any:
    """The JSON in a text; the text itself if it is none."""
    try:
        return decode_body(text.encode(errors="replace"))
    except InvalidRequest:
        return clean_text(text)
