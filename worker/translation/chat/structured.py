"""Structured output: how an upstream is asked for JSON, and what is done where it knows no better way than to be told (contract §7.1)."""

from typing import Any

import msgspec

from worker.translation.dialect import StructuredOutput

_ALONE = "Answer with JSON alone: no word before or after it, and no code fence around it."

_OBJECT = {"response_format": {"type": "json_object"}}


def asked_format(text: dict[str, Any], way: StructuredOutput) -> dict[str, Any]:
    """The fields of a chat request for the `text` of a create request."""
    wanted = text.get("format", {})
    match wanted.get("type"), way:
        case ("json_schema", "json_schema"):
            schema = {
                name: wanted[name]
                for name in ("name", "schema", "strict", "description")
                if name in wanted
            }
            return {"response_format": {"type": "json_schema", "json_schema": schema}}
        case ("json_schema", "guided_json"):
            return {"guided_json": wanted["schema"]}
        case ("json_schema", "json_object"):
            return _OBJECT
        case ("json_object", known) if known != "prompt":
            return _OBJECT
        case _:
            return {}


def told_format(text: dict[str, Any], way: StructuredOutput) -> str | None:
    """What the model is told of the format; None where the request says it all."""
    wanted = text.get("format", {})
    kind = wanted.get("type")
    if kind == "json_object" and way == "prompt":
        return f"{_ALONE} It must be one JSON object."
    if kind != "json_schema" or way not in ("json_object", "prompt"):
        return None
    description = f" {wanted['description']}" if wanted.get("description") else ""
    schema = msgspec.json.encode(wanted["schema"]).decode()
    return f"{_ALONE} It is called '{wanted['name']}'.{description} It must obey this JSON Schema:\n{schema}"


class Fences:
    """Takes a code fence off a text that comes in pieces: models that were only told to answer in JSON like to put one around it.

    A fence is a first line that begins with three backticks and a last line that is three backticks; white space around both goes too.
    Any other text passes unchanged.
    """

    def __init__(self) -> None:
        self._held = ""
        self._fenced: bool | None = None
        """None: not known yet."""

    def strip(self, text: str) -> str:
        """What this piece adds; what may yet turn out to be a fence is held back."""
        if self._fenced is False:
            return text
        held, self._held = self._held + text, ""
        if self._fenced is None:
            started = self._opened(held)
            if started is None:
                self._held = held
                return ""
            held = started
        return self._up_to_the_end(held) if self._fenced else held

    def rest(self) -> str:
        """What was held back when the text ended, unless it was the closing fence."""
        held, self._held = self._held, ""
        return "" if self._fenced and held.strip() == _FENCE else held

    def _opened(self, text: str) -> str | None:
        """What follows the opening fence, or the text, if it has none; None while that is not known."""
        start = text.lstrip()
        if not start.startswith(_FENCE[: len(start)]):
            self._fenced = False
            return text
        line, ended, rest = start.partition("\n")
        if ended:
            self._fenced = True
            return rest
        if len(line) > _LONGEST_FENCE:
            self._fenced = False
            return text
        return None

    def _up_to_the_end(self, text: str) -> str:
        """All but an end that may be the closing fence: white space, backticks, white space."""
        end = len(text.rstrip().rstrip("`").rstrip())
        self._held = text[end:]
        return text[:end]


_FENCE = "```"
_LONGEST_FENCE = 40
"""Characters of the line that opens a fence: the name of a language fits."""
