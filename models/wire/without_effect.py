"""What of a request has no effect, so that the answer can name it (docs/wire.md, "Without effect").
Pure."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from models.wire.response import LOGPROBS
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
UNSENT_BY_SOME = ("reasoning.context", "reasoning.effort", "service_tier")
"""Parameters that a chat upstream gets only if its settings say how."""
_SENT_AS = {
    **{
        name: name
        for name in (
            *("temperature", "top_p", "presence_penalty", "frequency_penalty"),
            *("top_logprobs", "parallel_tool_calls"),
        )
    },
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
}
"""Fields of a chat request -> the parameter that they are made from."""
_TIERS_OF_UPSTREAMS = ("fast", "scale", "ultrafast")
"""Service tiers that only an upstream can serve: here they wait as `default` does."""
_UNUSED_BY_SEARCH = ("external_web_access", "search_content_types")
"""Fields of a web search that this server's own search has no use for."""


def unused_by_chat(
    parameters: Mapping[str, Any], sent: Collection[str], unsent: Collection[str]
) -> Iterator[str]:
    """The names of parameters that are stored although they change nothing at a chat upstream.

    `sent`: those that it gets under their own names. `unsent`: those of `UNSENT_BY_SOME` that it
    does not get, and the fields of a request that it is never sent.
    """
    omitted = {_SENT_AS[name] for name in unsent if name in _SENT_AS}
    yield from sorted(name for name in omitted if name in parameters)
    reasoning = parameters.get("reasoning", {})
    found = [name for name in UNSENT_PARAMETERS if name in parameters]
    if parameters.get("service_tier") in _TIERS_OF_UPSTREAMS and "service_tier" in unsent:
        found.append("service_tier")
    yield from (name for name in found if name not in sent)
    if "reasoning" not in sent:
        names = [name for name in reasoning if f"reasoning.{name}" in ("reasoning.mode", *unsent)]
        yield from (f"reasoning.{name}" for name in names if reasoning[name] != "auto")
    if "verbosity" in parameters.get("text", {}) and "verbosity" not in sent:
        yield "text.verbosity"
    if parameters.get("top_logprobs") and LOGPROBS not in parameters.get("include", ()):
        yield "top_logprobs"


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
