"""How many tokens a request has: by the upstream, else by a local tokenizer, else an estimate."""

import asyncio
import importlib
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import structlog

from models.config.upstream import UpstreamSettings
from worker.translation.history.size import TokenCounter, count_request_tokens
from worker.upstream.upstreams import Candidate

logger = structlog.get_logger()

CountSource = Literal["upstream", "tokenizer", "estimate"]


@dataclass(frozen=True, slots=True)
class TokenCount:
    """A number of tokens, and where it comes from."""

    tokens: int
    source: CountSource


class RequestTokenCounter:
    """Counts for the whole process. Each tokenizer is loaded once, when it is first used."""

    def __init__(self) -> None:
        self._token_counters: dict[str, TokenCounter | None] = {}
        self._load_lock = asyncio.Lock()

    async def count(self, candidate: Candidate, body: dict[str, Any]) -> TokenCount:
        """Input tokens of `body`, the request as it would be sent to this candidate."""
        counted = await candidate.upstream.count(body)
        if counted is not None:
            return TokenCount(counted, "upstream")
        count_text = await self._token_counter(candidate.upstream.settings)
        if count_text is not None:
            return TokenCount(
                await asyncio.to_thread(count_request_tokens, body, count_text), "tokenizer"
            )
        return TokenCount(await asyncio.to_thread(count_request_tokens, body), "estimate")

    async def _token_counter(self, settings: UpstreamSettings) -> TokenCounter | None:
        path = settings.tokenizer
        if not path:
            return None
        async with self._load_lock:
            if path not in self._token_counters:
                self._token_counters[path] = await asyncio.to_thread(_load_tokenizer, path)
            return self._token_counters[path]


def _load_tokenizer(path: str) -> TokenCounter | None:
    """The tokenizer of a `tokenizer.json`; None and a log entry if it cannot be read."""
    try:
        library = importlib.import_module("tokenizers")
        tokenizer = library.Tokenizer.from_file(path)
    except Exception as error:  # noqa: BLE001 - what the library raises for an unreadable file
        # A wrong setting needs no traceback.
        logger.error("tokenizer_unreadable", path=path, error=str(error))  # noqa: TRY400
        return None
    return partial(_token_count, tokenizer)


def _token_count(tokenizer: Any, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)
