"""The requests of errands: recorded, sent again while the server has no time, and with replies that
are lost on the wire."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

import openai

from tests.chaos.audit.record import JSON, ClientRequest, ObjectTrace
from tests.chaos.campaign.errands.plan import Errand
from tests.support.api import Api
from tests.support.chaos.proxy import Proxy
from tests.support.chaos.recorded_request import CONNECTION_ERRORS
from tests.support.chaos.recording_client import RecordedClients
from tests.support.stack import Service, Stack

_TRIES = 12
"""How often a request is sent that gets no answer, or 503."""
_PAUSE = 0.7
"""Seconds between two of them."""
_SDK_RETRIES = 5
_BOUNDARY = "errand"

What = Literal["create", "get", "list", "search", "cancel", "delete", "other_project"]
SdkCreate = Callable[[openai.AsyncOpenAI], Awaitable[Any]]


class ErrandRequests:
    """Sends requests to a web process that is chosen by the clients of the round."""

    def __init__(self, clients: RecordedClients, key: str | None = None) -> None:
        """`key`: of the project; None: the one of all other clients."""
        self._clients = clients
        self.stack: Stack = clients.stack
        self._key = key

    # --- creates ---

    async def create(
        self, trace: ObjectTrace, errand: Errand, path: str, body: JSON | bytes, sdk: SdkCreate
    ) -> str | None:
        """Creates an object as the errand says, by a POST of the body or by the official client;
        returns its id."""
        if trace.retry == "sdk":
            await self._create_by_sdk(trace, sdk)
            return trace.id
        headers = {"idempotency-key": trace.name} if trace.retry == "key" else {}
        if isinstance(body, bytes):
            headers["content-type"] = f"multipart/form-data; boundary={_BOUNDARY}"
        for number in range(_TRIES):
            loses = errand.loses_reply and trace.retry == "key" and number == 0
            request = self._new("create", trace.creates)
            await self._send(request, "POST", path, body, headers, loses_reply=loses)
            if request.status not in (None, 503):
                break
            await asyncio.sleep(_PAUSE)
        if trace.retry == "key" and trace.id is not None:
            again = self._new("create", trace.creates)
            await self._send(again, "POST", path, body, headers)
        return trace.id

    async def _create_by_sdk(self, trace: ObjectTrace, create: SdkCreate) -> None:
        request = self._new("create", trace.creates)
        async with self._losing_proxy() as (web, url):
            request.web = web.name
            client = openai.AsyncOpenAI(
                base_url=f"{url}/v1",
                api_key=self._key or self.stack.key,
                max_retries=_SDK_RETRIES,
                timeout=20,
            )
            try:
                made = await create(client)
            except openai.APIStatusError as error:
                request.status, request.body = error.status_code, {"error": str(error)}
                request.retry_after = error.response.headers.get("retry-after")
            except openai.APIConnectionError:
                pass
            else:
                request.status, request.body = 200, made.model_dump(mode="json")
                request.answered = time.monotonic()
            finally:
                await client.close()

    @asynccontextmanager
    async def _losing_proxy(self) -> AsyncIterator[tuple[Service, str]]:
        """A proxy before a web process that loses the first answer; yields its URL."""
        web = await self._clients.pick_web()
        assert web.port is not None
        proxy = Proxy("127.0.0.1", web.port)
        proxy.cut_after(1)
        try:
            yield web, f"http://127.0.0.1:{proxy.port}"
        finally:
            await proxy.close()

    # --- other requests ---

    async def insist(
        self, trace: ObjectTrace, what: What, method: str, path: str, body: JSON | None = None
    ) -> ClientRequest:
        """Sends a request until it is answered, and not with 503."""
        for _ in range(_TRIES):
            request = self._new(what, trace.requests)
            await self._send(request, method, path, body)
            if request.status not in (None, 503):
                break
            await asyncio.sleep(_PAUSE)
        return request

    async def once(self, trace: ObjectTrace, what: What, method: str, path: str) -> ClientRequest:
        """Sends a request once."""
        request = self._new(what, trace.requests)
        await self._send(request, method, path)
        return request

    async def post(self, trace: ObjectTrace, path: str, body: JSON) -> list[ClientRequest]:
        """Sends a POST until it is not answered with 503; one without an answer is not repeated.
        Returns all of these requests."""
        sent: list[ClientRequest] = []
        while len(sent) < _TRIES:
            sent.append(self._new("create", trace.requests))
            await self._send(sent[-1], "POST", path, body)
            if sent[-1].status != 503:
                break
            await asyncio.sleep(_PAUSE)
        return sent

    async def as_stranger(self, trace: ObjectTrace, path: str) -> None:
        """Sends a GET with the key of another project."""
        request = self._new("other_project", trace.requests)
        await self._send(request, "GET", path, key=self._clients.other_project_key)

    async def read(self, path: str, key: str | None = None) -> bytes | None:
        """The body of a GET that is answered 200, after some tries; it is not recorded."""
        for _ in range(_TRIES):
            api = self.stack.api(await self._clients.pick_web(), key=key or self._key)
            with contextlib.suppress(*CONNECTION_ERRORS):
                answer = await api.call("GET", path)
                if answer.status != 503:
                    return answer.raw if answer.status == 200 else None
            await asyncio.sleep(_PAUSE)
        return None

    async def send_proxied(self, request: ClientRequest, path: str, body: JSON) -> None:
        """Sends a request once that is forwarded to the upstream."""
        await self._send(request, "POST", path, body)

    # --- sending ---

    def _new(self, what: What, requests: list[ClientRequest]) -> ClientRequest:
        request = ClientRequest(what, "", time.monotonic())
        requests.append(request)
        return request

    async def _send(
        self,
        request: ClientRequest,
        method: str,
        path: str,
        body: JSON | bytes | None = None,
        headers: dict[str, str] | None = None,
        *,
        loses_reply: bool = False,
        key: str | None = None,
    ) -> None:
        """Sends it and fills in the answer; the status stays None if none came."""
        async with contextlib.AsyncExitStack() as stack:
            if loses_reply:
                web, url = await stack.enter_async_context(self._losing_proxy())
                api = Api(f"{url}/v1", self._key or self.stack.key, self.stack.session)
            else:
                web = await self._clients.pick_web()
                api = self.stack.api(web, key=key or self._key)
            request.web, request.sent = web.name, time.monotonic()
            try:
                answer = await api.call(method, path, body, headers=headers)
            except CONNECTION_ERRORS:
                return
        request.answered, request.status = time.monotonic(), answer.status
        request.retry_after = answer.headers.get("retry-after")
        with contextlib.suppress(ValueError):  # audio, for example
            request.body = json.loads(answer.raw)


def form(name: str, content: bytes, purpose: str) -> bytes:
    """The body of an upload."""
    parts = (
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    return parts.encode() + content + f"\r\n--{_BOUNDARY}--\r\n".encode()
