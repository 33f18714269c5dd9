"""A worker dies while it writes messages of Anthropic's API."""

import asyncio
import json
from typing import Any

import anthropic
import httpx2
import pytest

from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.fake_upstream import FakeUpstream, hang, reply, text
from tests.support.stack import SHORT_LEASES

pytestmark = pytest.mark.long


async def test_a_message_survives_its_worker_and_a_stream_repeats_nothing(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    settings = {**SHORT_LEASES, "BACKBURNER_WEB__PING": "0.2"}
    async with private_stack(settings=settings) as running:
        base_url = running.api().base_url.removesuffix("/v1")
        async with anthropic.AsyncAnthropic(
            base_url=base_url, api_key=running.key, max_retries=0
        ) as claude:

            def asked(model: str) -> dict[str, Any]:
                messages = [{"role": "user", "content": "Hi"}]
                return {"model": model, "max_tokens": 99, "messages": messages}

            async def ask(model: str) -> str:
                message = await claude.messages.create(**asked(model))
                return "".join(block.text for block in message.content if block.type == "text")

            async def follow(model: str, begun: asyncio.Event) -> str:
                async with claude.messages.stream(**asked(model)) as stream:
                    if model == silent:
                        begun.set()
                    async for _ in stream.text_stream:
                        begun.set()
                    return str(await stream.get_final_text())

            stored, cut, silent = (
                fake.script([*steps, hang()], reply("Good."))
                for steps in ([text("Go")], [text("Go")], [])
            )
            cut_begun, silent_begun = asyncio.Event(), asyncio.Event()
            waiting = asyncio.create_task(ask(stored))
            interrupted = asyncio.create_task(follow(cut, cut_begun))
            unbegun = asyncio.create_task(follow(silent, silent_begun))
            await until(lambda: bool(fake.requests_for(stored)))
            # The second one has had no output: its head was sent after the time of a ping.
            await asyncio.gather(cut_begun.wait(), silent_begun.wait())
            running.kill(running.workers[0])
            await running.start_worker()
            assert await waiting == "Good."
            assert await unbegun == "Good."
            with pytest.raises((anthropic.APIConnectionError, httpx2.RemoteProtocolError)):
                await interrupted
        [web] = running.webs
        lines = [json.loads(line) for line in web.log.read_text().splitlines() if line[:1] == "{"]
        assert [line["level"] for line in lines if line["event"] == "stream_broken"] == ["info"]
        assert not [line for line in lines if line["level"] == "error"]
