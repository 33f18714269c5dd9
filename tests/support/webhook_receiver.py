"""A receiver of webhooks."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(frozen=True)
class ReceivedHook:
    """One try that arrived."""

    headers: dict[str, str]
    """with names in lower case"""
    body: bytes

    @property
    def id(self) -> str:
        """The id of its event."""
        return self.headers["webhook-id"]


@dataclass
class WebhookReceiver:
    """What has arrived, and how it is answered."""

    url: str = ""
    hooks: list[ReceivedHook] = field(default_factory=list)
    answer: Callable[[], web.StreamResponse] = web.Response
    """Makes the answers."""
    stop: Callable[[], Awaitable[None]] = field(repr=False, default=lambda: asyncio.sleep(0))
    """Closes its port."""
    released: asyncio.Event = field(default_factory=asyncio.Event)
    """Answers wait for it. Set at first."""

    async def receive(self, request: web.Request) -> web.StreamResponse:
        """Answers a POST."""
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.hooks.append(ReceivedHook(headers, await request.read()))
        await self.released.wait()
        return self.answer()


@asynccontextmanager
async def webhook_receiver() -> AsyncIterator[WebhookReceiver]:
    """A receiver on a free port of this machine."""
    receiver = WebhookReceiver()
    receiver.released.set()
    application = web.Application()
    application.router.add_post("/hook", receiver.receive)
    runner = web.AppRunner(application, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    receiver.stop = site.stop
    receiver.url = f"http://{host}:{port}/hook"
    try:
        yield receiver
    finally:
        receiver.released.set()
        await runner.cleanup()
