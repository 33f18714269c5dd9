"""The embeddings of the demo models: deterministic, made of the words of a text. Pure.

Each word is hashed to some dimensions and their signs; the sum of a text's words is made a unit
vector. So texts that share words are near each other, and nothing else is.
"""

import hashlib
import math
import re
from typing import Any

from cli.demo_upstream.replies import BadRequest, parse_body

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
