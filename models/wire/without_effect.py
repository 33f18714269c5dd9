"""What of a request has no effect, so that the answer can name it (docs/wire.md, "Without effect"),
and fields of a request that no check knows. Pure.

Checks leave out the fields that they do not know (models/wire/checks/basic.py). Here they are
found: an upstream with the Responses API may know them and gets them back, and to other clients the
answer names them.
"""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
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


Place = tuple[Any, str | int]
"""The place of a value: that of what contains it (None: the request), and its name or index."""

_RENAMED: Place = ((None, "reasoning"), "generate_summary")
"""The only field that a check keeps under another name."""
_NOT_STORED = "domain_secrets"
"""A field of hosted tools that is not stored in plain text."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A field that the checks have left out."""

    place: Place
    checked: dict[str, Any]
    """The object that lacks it."""
    value: Any


def left_out(sent: Any, checked: Any, place: Place) -> list[LeftOut]:
    """The fields in what the client sent that are missing in what the checks made of it, at every
    level. A field that is null is absent. `place`: of both."""
    found: list[LeftOut] = []
    _find_left_out(sent, checked, place, found)
    return found


def _find_left_out(sent: Any, checked: Any, place: Place, found: list[LeftOut]) -> None:
    # An input may have 100 000 items: a place is made of tuples, and written only where needed.
    if type(sent) is dict and type(checked) is dict:
        for name, value in sent.items():
            if name not in checked:
                if value is not None and (place, name) != _RENAMED:
                    found.append(LeftOut((place, name), checked, value))
            elif (type(value) is dict or type(value) is list) and value is not checked[name]:
                _find_left_out(value, checked[name], (place, name), found)
    elif type(sent) is list and type(checked) is list and len(sent) == len(checked):
        for index, value in enumerate(sent):
            if type(value) is dict:
                _find_left_out(value, checked[index], (place, index), found)


class UnknownFields:
    """The unknown fields of one request that an upstream may get."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        """Place of each, as an error names it (`tools[0].async`) -> its value."""

    def restore(self, fields: Iterable[LeftOut]) -> list[LeftOut]:
        """Puts the fields back into the checked objects. Returns those that must stay out."""
        kept_out = []
        for each in fields:
            name = each.place[1]
            if name == _NOT_STORED or not isinstance(name, str):
                kept_out.append(each)
            else:
                each.checked[name] = self.found[path_of(each.place)] = each.value
        return kept_out


def path_of(place: Place, name_of: Callable[[str], str] = str) -> str:
    """The place as a client would write it: `tools[0].defer_loading`. `name_of`: how a name is
    written."""
    parts: list[str] = []
    rest: Place | None = place
    while rest is not None:
        rest, name = rest
        parts.append(f"[{name}]" if isinstance(name, int) else f".{name_of(name)}")
    return "".join(reversed(parts)).removeprefix(".")
