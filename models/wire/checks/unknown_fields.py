"""Fields of a request that no check knows: checks leave them out (models/wire/checks/basic.py).

Here they are found: an upstream with the Responses API may know them and gets them back, and to
other clients the answer names them (models/wire/without_effect.py).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

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
