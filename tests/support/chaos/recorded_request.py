"""A request whose answer is written into the run's record, whatever becomes of it."""

import time

import aiohttp

from tests.chaos.audit.record import ClientRequest
from tests.support.api import JSON, Api

CONNECTION_ERRORS = (aiohttp.ClientError, TimeoutError, ConnectionError)
"""What a client sees of a web process that stopped or was killed."""


async def send_recorded(
    request: ClientRequest, api: Api, method: str, path: str, body: JSON | bytes | None = None
) -> None:
    """Sends it and fills in the answer; the status stays None if the connection broke before."""
    try:
        answer = await api.call(method, path, body)
    except CONNECTION_ERRORS:
        return
    request.answered, request.status = time.monotonic(), answer.status
    request.retry_after = answer.headers.get("retry-after")
    request.body = answer.body
