"""What of a request has no effect, so that the answer can name it (docs/wire.md, "Without effect").
Pure."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from models.wire.tools import WEB_SEARCH

HEADER = "x-ignored-parameters"
"""The header of an answer that names it."""

MAX_NAMES = 20
"""Names in the header; then `...`."""
_MAX_LENGTH = 1000
"""Characters of the header's value, about."""
_SHOWN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
"""The names of fields that are shown. Another one may be anything, also a secret."""
_UNSHOWN = "*"

UNSENT_PARAMETERS = ("prompt_cache_key", "safety_identifier", "user")
"""Parameters that are stored and shown, and sent to a chat upstream only if its `passthrough` lists
them."""
_UNUSED_BY_SEARCH = ("external_web_access", "search_content_types")
"""Fields of a web search that this server's own search has no use for."""


def unused_by_chat(
    parameters: Mapping[str, Any], sent: Collection[str], *, sends_effort: bool
) -> Iterator[str]:
    """The names of parameters that are stored although a chat upstream does not get them.

    `sent`: those that it gets under their own names. `sends_effort`: it gets `reasoning.effort`.
    """
    yield from (name for name in UNSENT_PARAMETERS if name in parameters and name not in sent)
    reasoning = parameters.get("reasoning", {})
    if "mode" in reasoning and "reasoning" not in sent:
        yield "reasoning.mode"
    if "effort" in reasoning and not sends_effort:
        yield "reasoning.effort"
    if "verbosity" in parameters.get("text", {}) and "verbosity" not in sent:
        yield "text.verbosity"


def unused_by_search(tools: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The names of fields of web searches that have no effect if this server runs them."""
    for index, tool in enumerate(tools):
        if tool["type"] in WEB_SEARCH:
            yield from (f"tools[{index}].{name}" for name in _UNUSED_BY_SEARCH if name in tool)


def header_of(places: Iterable[str]) -> dict[str, str]:
    """The header that names these places, the first of them if they are many; none for none."""
    shown: list[str] = []
    length = 0
    for place in dict.fromkeys(places):
        length += len(place) + 2
        if len(shown) == MAX_NAMES or length > _MAX_LENGTH:
            shown.append("...")
            break
        shown.append(place)
    return {HEADER: ", ".join(shown)} if shown else {}


def shown_name(name: str) -> str:
    """The name of a field as the header shows it."""
    return name if _SHOWN_NAME.fullmatch(name) else _UNSHOWN
