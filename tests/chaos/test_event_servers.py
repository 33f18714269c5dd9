"""Events over three Redis servers: one that is killed costs its own responses latency, and nothing
else."""

import asyncio
from pathlib import Path

import pytest

from cli.embedded.process import free_port
from cli.embedded.valkey import Valkey
from models.ids import parse_response_id
from models.redis.channels import event_server, events
from tests.conftest import PrivateStack
from tests.support.api import decode
from tests.support.chaos.tracebacks import REDIS_TRACEBACKS
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import FakeUpstream, Script, done, finish, text, usage, wait_for

pytestmark = pytest.mark.usefixtures("embedded_redis")


def server_of(response_id: str) -> int:
    identifier = parse_response_id(response_id)
    assert identifier is not None
    return event_server(events(identifier), 3)


async def test_one_of_three_servers_is_killed_and_the_others_streams_do_not_notice(
    private_stack: PrivateStack, fake: FakeUpstream, tmp_path: Path
) -> None:
    with (
        Valkey(tmp_path / "b", tmp_path / "b", port=free_port(), password="secret") as second,
        Valkey(tmp_path / "c", tmp_path / "c", port=free_port(), password="secret") as third,
    ):
        settings = {"BACKBURNER_EVENT_REDIS_URLS": f"{second.url}, {third.url}"}
        async with private_stack(settings=settings, allowed_tracebacks=REDIS_TRACEBACKS) as running:
            api, killed, answers = running.api(), asyncio.Event(), asyncio.Event()
            script: Script = [
                *(text("Before. "), wait_for(killed), text("After. "), wait_for(answers)),
                *(text("End."), finish(), usage(), done()),
            ]
            model = fake.script(script)
            ids: list[str] = []
            by_server: dict[int, str] = {}
            while len(by_server) < 3:  # ids are random
                ids.append(await api.create_background(model))
                by_server[server_of(ids[-1])] = ids[-1]

            async def read(response_id: str) -> None:
                async with api.follow(response_id) as stream:
                    await stream.until("response.output_text.delta")
                    if server_of(response_id) == 1:
                        second.kill()
                        killed.set()
                    await killed.wait()
                    await stream.until("response.output_text.delta")
                    answers.set()
                    events_seen = await stream.to_end()
                assert_stream_obeys_contract(events_seen)
                assert stream.final["output_text"] == "Before. After. End."
                assert [decode(each) for each in await api.replay(response_id)] == events_seen

            await asyncio.gather(*(read(each) for each in by_server.values()))
            for response_id in ids:
                assert (await api.wait_for_end(response_id))["status"] == "completed"
            second.start()
            late = fake.script([text("Late."), finish(), usage(), done()])
            async with api.post_stream(late, background=True) as stream:
                await stream.to_end()
