"""What the demo models reply to a chat completion request (pure, except for random ids), and their
embeddings: deterministic, made of the words of a text.

Each word is hashed to some dimensions and their signs; the sum of a text's words is made a unit
vector. So texts that share words are near each other, and nothing else is.
"""

import hashlib
import json
import math
import re
import secrets
from dataclasses import dataclass, field
from typing import Any

MARK = "[Backburner demo upstream]"
WORD_DELAYS = {"demo": 0.05, "demo-slow": 1.0, "demo-tools": 0.05}
"""The models, and the seconds between two words of each."""
SLOW_WORDS = 60
MAX_ECHO = 600
"""Most characters of a message that are repeated: about a hundred words, so five seconds."""

FILE_SEARCH = "file_search"
"""The function that every demo model calls if it is offered."""
PASSAGE = re.compile(r'<passage marker="(.+?)" filename="(.*?)".*?>\n(.*?)\n</passage>', re.DOTALL)
"""What that function returns."""
MAX_QUOTE = 200
"""Characters of a passage that are repeated."""

MAX_DEPTH = 8
"""Levels of an example; a schema may refer to itself."""

_RETURNED = re.compile("The (image|file) that tool call")
"""How a message begins that has what a tool message cannot have."""

EXAMPLES: dict[str, Any] = {
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


@dataclass(frozen=True)
class Call:
    """A function call."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")


@dataclass(frozen=True)
class DemoReply:
    """A reply: reasoning first, then a text or a call. The words, joined, are the text."""

    words: list[str]
    call: Call | None
    finish_reason: str
    reasoning: list[str] = field(default_factory=list)


class BadRequest(Exception):
    """A request that cannot be answered. The message is the reason."""


def reply_to(body: dict[str, Any]) -> DemoReply:
    """The reply to a chat completion request for one of the demo models."""
    reasoning = (
        split_words(f"{MARK} I pretend to think.")
        if body.get("reasoning_effort") not in (None, "none")
        else []
    )
    call = _call_for(body)
    if call:
        return DemoReply([], call, "tool_calls", reasoning)
    words = split_words(_json_for(body) or _text_for(body))
    limit = body.get("max_completion_tokens") or body.get("max_tokens")
    if isinstance(limit, int) and len(reasoning) + len(words) > limit:
        return DemoReply(words[: max(0, limit - len(reasoning))], None, "length", reasoning[:limit])
    return DemoReply(words, None, "stop", reasoning)


def _text_for(body: dict[str, Any]) -> str:
    last = _last_message(body)
    if body["model"] == "demo-slow":
        start = f"{MARK} I say one word a second for a minute:"
        return " ".join(
            [start, *(str(number) for number in range(1, SLOW_WORDS - len(start.split()) + 1))]
        )
    if last.get("role") == "tool":
        if passage := PASSAGE.search(_text_of(last)):
            marker, filename, text = passage.groups()
            quote = " ".join(text.split())[:MAX_QUOTE]
            return f"{MARK} {filename} says: {quote} {marker}"
        return f"{MARK} The tool answered: {_cut(_text_of(last))}"
    if body["model"] == "demo-tools":
        return f"{MARK} Send a function tool and I will call it. You said: {_last_user_text(body)}"
    return f"{MARK} You said: {_last_user_text(body)}"


def _call_for(body: dict[str, Any]) -> Call | None:
    """A call of the file search, or else of the first function, which is for `demo-tools`. None
    without such a function, or after a tool's result."""
    functions = [
        tool["function"]
        for tool in body.get("tools") or []
        if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
    ]
    wanted = [each for each in functions if each.get("name") == FILE_SEARCH]
    if body["model"] == "demo-tools":
        wanted += functions
    if not wanted or body.get("tool_choice") == "none" or _last_message(body).get("role") == "tool":
        return None
    schema = wanted[0].get("parameters") or {}
    arguments = {
        name: _example(property_schema, _last_user_text(body))
        for name, property_schema in (schema.get("properties") or {}).items()
    }
    return Call(str(wanted[0].get("name")), json.dumps(arguments))


def _json_for(body: dict[str, Any]) -> str | None:
    """An example of the JSON that the request asks for, or None."""
    response_format = body.get("response_format")
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if kind == "json_object":
        return json.dumps({"demo": MARK, "you_said": _last_user_text(body)})
    schema = (
        (response_format.get("json_schema") or {}).get("schema")
        if kind == "json_schema" and isinstance(response_format, dict)
        else None
    )
    return (
        json.dumps(_example(schema, _last_user_text(body), schema))
        if isinstance(schema, dict)
        else None
    )


def _example(schema: Any, text: str, root: Any = None, depth: int = 0) -> Any:
    """A value with the types of a schema; strings are `text`. References are resolved in `root`."""
    if not isinstance(schema, dict) or depth > MAX_DEPTH:
        return text
    if isinstance(schema.get("$ref"), str):
        return _example(_resolve_reference(root, schema["$ref"]), text, root, depth + 1)
    if isinstance(schema.get("anyOf"), list) and schema["anyOf"]:
        return _example(schema["anyOf"][-1 if depth > MAX_DEPTH // 2 else 0], text, root, depth + 1)
    if schema.get("enum"):
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if kind == "array" and isinstance(schema.get("items"), dict) and depth <= MAX_DEPTH // 2:
        return [_example(schema["items"], text, root, depth + 1)]
    if kind == "object" and isinstance(schema.get("properties"), dict):
        return {
            name: _example(property_schema, text, root, depth + 1)
            for name, property_schema in schema["properties"].items()
        }
    return (
        EXAMPLES.get(kind[0] if isinstance(kind, list) and kind else kind, text) if kind else text
    )


def _resolve_reference(root: Any, reference: str) -> Any:
    for step in reference.split("/")[1:]:
        root = root.get(step) if isinstance(root, dict) else None
    return root


def _last_message(body: dict[str, Any]) -> dict[str, Any]:
    """The last message; the tool's result if the last one only has its image or file."""
    *earlier, last = body["messages"]
    if earlier and earlier[-1].get("role") == "tool" and _RETURNED.match(_text_of(last)):
        last = earlier[-1]
    found: dict[str, Any] = last
    return found


def _last_user_text(body: dict[str, Any]) -> str:
    texts = [_text_of(message) for message in body["messages"] if message.get("role") == "user"]
    return _cut(texts[-1] if texts else "nothing")


def _cut(text: str) -> str:
    return text if len(text) <= MAX_ECHO else f"{text[:MAX_ECHO]}… ({len(text)} characters)"


def _text_of(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(
            str(part.get("text", ""))
            for part in content
            if isinstance(part, dict) and part.get("type") == "text"
        )
    return str(content or "")


def split_words(text: str) -> list[str]:
    """Words, each with the space before it; joined, they are the text."""
    first, *rest = text.split(" ")
    return [first, *(f" {word}" for word in rest)]


def usage_of(body: dict[str, Any], reply: DemoReply) -> dict[str, Any]:
    """The usage of a reply; each word counts as a token."""
    prompt = sum(len(_text_of(message).split()) for message in body["messages"])
    completion = len(reply.reasoning) + (
        len(reply.words) or len(reply.call.arguments.split() if reply.call else ())
    )
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": len(reply.reasoning)},
    }


def parse_body(raw: bytes) -> dict[str, Any]:
    """The body of a request. Raises BadRequest."""
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise BadRequest("the body is not JSON") from error
    if not isinstance(body, dict) or not isinstance(body.get("model"), str):
        raise BadRequest("the body must be an object with a `model`")
    return body


def parse(raw: bytes) -> dict[str, Any]:
    """The body of a chat completion request. Raises BadRequest."""
    body = parse_body(raw)
    messages = body.get("messages")
    if (
        not isinstance(messages, list)
        or not messages
        or not all(isinstance(message, dict) for message in messages)
    ):
        raise BadRequest("`messages` must be a list of objects, and not empty")
    return body


DIMENSIONS = 256
_MAX_DIMENSIONS = 4096
_PLACES = 4
"""Dimensions of a word."""
_WORD = re.compile(r"\w+")


def embed(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """The embedding of a text. One without words has a direction too."""
    vector = [0.0] * dimensions
    for word in _WORD.findall(text.lower()) or [""]:
        digest = hashlib.blake2b(word.encode(errors="replace"), digest_size=4 * _PLACES).digest()
        for at in range(0, len(digest), 4):
            number = int.from_bytes(digest[at : at + 4], "big")
            vector[(number >> 1) % dimensions] += 1.0 if number & 1 else -1.0
    length = math.hypot(*vector) or 1.0
    if not any(vector):
        vector[0] = 1.0
    return [round(value / length, 6) for value in vector]


def embeddings_of(raw: bytes) -> dict[str, Any]:
    """The answer to a request for embeddings. Raises BadRequest."""
    body = parse_body(raw)
    given = body.get("input")
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts or not all(isinstance(each, str) for each in texts):
        raise BadRequest("`input` must be a text or a list of texts")
    dimensions = body.get("dimensions", DIMENSIONS)
    if type(dimensions) is not int or not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise BadRequest(f"`dimensions` must be an integer from 1 to {_MAX_DIMENSIONS}")
    tokens = sum(len(text.split()) for text in texts)
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": at, "embedding": embed(text, dimensions)}
            for at, text in enumerate(texts)
        ],
        "model": body["model"],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
