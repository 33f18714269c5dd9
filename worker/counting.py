"""How many tokens a request has: the upstream's own count where it offers one, else a tokenizer that is present, else an estimate."""

import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from worker.translation.measure import tokens_of_request
from worker.upstream.upstreams import Way

Source = Literal["upstream", "tokenizer", "estimate"]


@dataclass(frozen=True, slots=True)
class Count:
    """Tokens, and who counted them."""

    tokens: int
    source: Source


class Counter:
    """Counts for a whole process."""

    async def count(self, way: Way, body: dict[str, Any]) -> Count:  # noqa: ARG002 - who counts will depend on it
        """Tokens of what `body`, as it would be sent that way, tells the model."""
        return Count(await asyncio.to_thread(tokens_of_request, body), "estimate")
