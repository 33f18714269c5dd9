"""How many tokens a request has: the upstream's own count where it offers one, else a tokenizer that is present, else an estimate."""

import asyncio
import importlib
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import structlog

from models.config.settings import UpstreamSettings
from worker.translation.history.measure import Measure, tokens_of_request
from worker.upstream.upstreams import Way

logger = structlog.get_logger()

Source = Literal["upstream", "tokenizer", "estimate"]


@dataclass(frozen=True, slots=True)
class Count:
    """Tokens, and who counted them."""

    tokens: int
    source: Source


class Counter:
    """Counts for a whole process. A vocabulary is read once, when it is first needed."""

    def __init__(self) -> None:
        self._measures: dict[str, Measure | None] = {}
        self._reading = asyncio.Lock()

    async def count(self, way: Way, body: dict[str, Any]) -> Count:
        """Tokens of what `body`, as it would be sent that way, tells the model."""
        counted = await way.upstream.count(body)
        if counted is not None:
            return Count(counted, "upstream")
        measure = await self._measure(way.upstream.settings)
        if measure is not None:
            return Count(await asyncio.to_thread(tokens_of_request, body, measure), "tokenizer")
        return Count(await asyncio.to_thread(tokens_of_request, body), "estimate")

    async def _measure(self, settings: UpstreamSettings) -> Measure | None:
        path = settings.tokenizer
        if not path:
            return None
        async with self._reading:
            if path not in self._measures:
                self._measures[path] = await asyncio.to_thread(_tokenizer, path)
            return self._measures[path]


def _tokenizer(path: str) -> Measure | None:
    """The tokenizer in a `tokenizer.json`; None, and a word to the operator, when it cannot be read."""
    try:
        library = importlib.import_module("tokenizers")
        tokenizer = library.Tokenizer.from_file(path)
    except Exception as error:  # noqa: BLE001 - the library raises this very class for a file that it cannot read
        logger.error("tokenizer_unreadable", path=path, error=str(error))  # noqa: TRY400 - a mistake in the settings, no fault of ours
        return None
    return partial(_length, tokenizer)


def _length(tokenizer: Any, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)
