"""Calls whose answer comes in one piece, at any path of an upstream (docs/batches.md)."""

import asyncio
from typing import Any

from models.config.groups import LimitSettings
from models.errors import InvalidRequest, LimitReached, UpstreamFailed
from models.http_bodies import BodyTooLarge, is_uncompressed, read_bounded
from models.wire.json_input import decode_body
from worker.upstream.error_rules import redacted
from worker.upstream.failures import (
    CONNECTION_ERRORS,
    compressed,
    failure_of_connection,
    turn_limit_reached,
    unintelligible,
)
from worker.upstream.request_sender import RequestSender, close_response

_LARGE = 64 * 1024
"""Bytes of an answer that is parsed in a thread."""


class PlainCaller:
    """Calls one upstream."""

    def __init__(
        self, sender: RequestSender, limits: LimitSettings, secrets: tuple[str, ...]
    ) -> None:
        """`secrets`: they are removed from messages."""
        self._sender = sender
        self._limits = limits
        self._secrets = secrets

    async def call(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON in the answer to `body` at `path` behind the base URL. It can be stored
        (models/wire/json_input.py). Raises UpstreamFailed or LimitReached. Cancelling closes the
        connection."""
        try:
            async with asyncio.timeout(self._limits.turn.total_seconds()) as turn:
                data = await self._post(path, body)
        except CONNECTION_ERRORS as error:
            if turn.expired():
                raise turn_limit_reached(self._limits) from error
            raise redacted(failure_of_connection(error), self._secrets) from error
        except UpstreamFailed as failure:
            raise redacted(failure, self._secrets) from failure.__cause__
        try:
            if len(data) < _LARGE:
                return decode_body(data)
            return await asyncio.to_thread(decode_body, data)
        except InvalidRequest as error:
            raise unintelligible() from error

    async def _post(self, path: str, body: dict[str, Any]) -> bytes:
        response = await self._sender.send(path, body)
        try:
            if not is_uncompressed(response.headers):
                raise compressed()
            return await read_bounded(response.content.iter_any(), self._limits.output)
        except BodyTooLarge:
            raise LimitReached(
                f"The upstream's answer exceeded the limit of {self._limits.output} bytes.",
                reason="output_limit",
                status=502,
            ) from None
        finally:
            await close_response(response)
