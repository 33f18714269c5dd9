"""Recorded requests of real clients, as JSON in tests/clients/requests, to send again without them.

What differs from run to run is written as a place: `{{2.id}}` is the id of the third request's
response, `{{2.output.0}}` the id of its first item, `{{2.sealed.0}}` that item's
`encrypted_content`, `{{mcp}}` the address of the MCP server.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.api import JSON, TERMINAL
from tests.support.clients.recorder import RecordedExchange

FOLDER = Path(__file__).parents[2] / "clients" / "requests"
_MAX_LENGTHS = {"description": 30, "x-codex-turn-metadata": 2}
"""Field -> characters to keep of its text; others 100. Clients send pages of instructions."""
_UNTRIMMED_KEYS = frozenset(
    {"arguments", "definition", "encrypted_content", "image_url", "file_data", "output", "schema"}
)
_NAMES = frozenset({"id", "call_id"})
_PATHS = re.compile(r"(/tmp|/root|/home|/var|/Users)/[^\s<>\"'`)\\]*")
_UUIDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request of a client."""

    scenario: str
    method: str
    path: str
    body: JSON | None
    status: int
    output: list[str] | None
    """The types of the items in the answer; None if the client did not wait for them."""
    socket: int | None = None
    """The number of the WebSocket, if this was a frame."""


def load(client: str) -> list[RecordedRequest]:
    """The recorded requests of a client, in order."""
    return [RecordedRequest(**one) for one in json.loads((FOLDER / f"{client}.json").read_text())]


def save(client: str, exchanges: Sequence[tuple[str, RecordedExchange]], mcp: str) -> None:
    """Writes these exchanges: (scenario, exchange), in order."""
    places = {mcp: "{{mcp}}"}
    kept: list[JSON] = []
    for scenario, exchange in exchanges:
        if not _is_repeatable(exchange):
            continue
        replaced = _replace_strings(
            [exchange.path, exchange.body], partial(_with_placeholders, places)
        )
        kept.append(
            {
                "scenario": scenario,
                "method": exchange.method,
                "path": replaced[0],
                "body": _trim(replaced[1]),
                "status": exchange.status,
                "output": _types(exchange),
                "socket": exchange.socket,
            }
        )
        places |= {
            value: f"{{{{{place}}}}}"
            for place, value in placeholders_in(len(kept) - 1, exchange.answer or {}).items()
        }
    lines = ",\n".join(json.dumps(one, ensure_ascii=False) for one in kept)
    (FOLDER / f"{client}.json").write_text(f"[\n{lines}\n]\n")


def placeholders_in(number: int, answer: JSON) -> dict[str, str]:
    """Place -> value, for each value of an answer that later requests may repeat."""
    places_by_name = {}
    if "id" in answer:
        places_by_name[f"{number}.id"] = answer["id"]
    for at, item in enumerate(answer.get("output") or answer.get("data") or ()):
        for key, name in (("id", "output"), ("encrypted_content", "sealed")):
            if key in item:
                places_by_name[f"{number}.{name}.{at}"] = item[key]
    return places_by_name


def fill_placeholders(value: Any, places: dict[str, str]) -> Any:
    """The recorded JSON with every place replaced by its value."""
    return _replace_strings(
        value, lambda text: re.sub(r"\{\{([\w.]+)\}\}", lambda match: places[match[1]], text)
    )


def _is_repeatable(exchange: RecordedExchange) -> bool:
    """Whether to keep an exchange: not polls, which depend on the clock, nor requests without a
    key.
    """
    is_look = exchange.method in ("GET", "HEAD")
    return (not is_look or "items" in exchange.path) and exchange.status not in (
        0,
        401,
    )


def _types(exchange: RecordedExchange) -> list[str] | None:
    answer = exchange.answer or {}
    ended = answer.get("object") == "response" and answer.get("status") in TERMINAL
    return [item["type"] for item in answer["output"]] if ended else None


def _with_placeholders(places: dict[str, str], text: str) -> str:
    for value, place in places.items():
        text = text.replace(value, place)
    return text


def _replace_strings(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_replace_strings(one, change) for one in value]
    if isinstance(value, dict):
        return {key: _replace_strings(one, change) for key, one in value.items()}
    return value


def _trim(value: Any, key: str = "") -> Any:
    """The JSON without addresses and keys, and with long texts cut."""
    if isinstance(value, str):
        if "[[" in value or key in _UNTRIMMED_KEYS:
            return _PATHS.sub("/somewhere", value)
        text = _PATHS.sub("/somewhere", value)
        if key not in _NAMES:
            text = _UUIDS.sub("00000000-0000-7000-8000-000000000000", text)
        most = _MAX_LENGTHS.get(key, 100)
        return text if len(text) <= most else f"{text[:most]}…"
    if isinstance(value, list):
        return [_trim(one, key) for one in value]
    if isinstance(value, dict):
        return {name: _trim(one, name) for name, one in value.items()}
    return value
