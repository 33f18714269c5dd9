"""Fields of a request that no check knows, for an upstream with the Responses API.

Checks leave them out (models/wire/checks/basic.py). Here they are put back: the upstream may know
them.
"""

from typing import Any

_CHANGED_ON_PURPOSE = frozenset(("generate_summary", "domain_secrets"))
"""Fields that a check renames, and secrets, which are not stored in plain text."""


class UnknownFields:
    """The unknown fields of one request."""

    def __init__(self) -> None:
        self.found: dict[str, Any] = {}
        """Place of each, as an error names it (`tools[0].async`) -> its value."""

    def restore(self, sent: Any, checked: Any, where: str) -> Any:
        """`checked`, with the fields of `sent` that its check left out, at every level. A field
        that is null is absent. `where`: the place of both. Neither is changed."""
        if sent is checked:
            return checked
        if type(sent) is dict and type(checked) is dict:
            return self._restore_object(sent, checked, where)
        if type(sent) is list and type(checked) is list and len(sent) == len(checked):
            pairs = zip(sent, checked, strict=True)
            return [
                self.restore(before, after, f"{where}[{index}]")
                for index, (before, after) in enumerate(pairs)
            ]
        return checked

    def _restore_object(
        self, sent: dict[str, Any], checked: dict[str, Any], where: str
    ) -> dict[str, Any]:
        restored = {
            name: self.restore(sent.get(name), value, f"{where}.{name}")
            for name, value in checked.items()
        }
        for name, value in sent.items():
            if value is not None and name not in checked and name not in _CHANGED_ON_PURPOSE:
                restored[name] = self.found[f"{where}.{name}"] = value
        return restored
