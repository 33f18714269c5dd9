"""Events over three Redis servers: one that is killed costs its own responses latency, and nothing
else."""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli.embedded.process import free_port
from cli.embedded.valkey import Valkey
from models.ids import parse_response_id
from models.redis.channels import event_server, events
from tests.conftest import PrivateStack
from tests.support.api import Api, decode, until
from tests.support.chaos.tracebacks import REDIS_TRACEBACKS
from tests.support.contract_rules import assert_stream_obeys_contract
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    done,
    finish,
    hang,
    text,
    usage,
    wait_for,
)

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


@dataclass
class Rally:
    """A response whose model sends the next delta when its reader has got the last one."""

    id: str
    received: list[asyncio.Event]

    @property
    def count(self) -> int:
        """How many deltas have arrived."""
        return sum(each.is_set() for each in self.received)

    async def play(self, api: Api, rounds: int, after: int | None = None) -> int:
        """Reads so many deltas, from the event behind number `after` on; returns the number of the
        last one."""
        async with api.follow(self.id, after) as stream:
            for _ in range(rounds):
                event = await stream.until("response.output_text.delta")
                self.received[self.count].set()
        return int(event["sequence_number"])


async def _rallies(api: Api, fake: FakeUpstream) -> dict[int, Rally]:
    """One on each server, without an end."""
    found: dict[int, Rally] = {}
    while len(found) < 3:
        received = [asyncio.Event() for _ in range(4 * _ROUNDS)]
        steps = [step for each in received for step in (text("x"), wait_for(each))]
        made = await api.create_background(fake.script([*steps, hang()]))
        found.setdefault(server_of(made), Rally(made, received))
    return found


_ROUNDS = 12


@pytest.mark.long
async def test_only_the_share_of_a_dead_server_is_polled_until_it_is_back(
    private_stack: PrivateStack, fake: FakeUpstream, tmp_path: Path
) -> None:
    """A poll takes longer than a message, so the responses of the other servers play all their
    rounds while that of the dead one plays some. It is resumed and cancelled as the others."""
    with (
        Valkey(tmp_path / "b", tmp_path / "b", port=free_port(), password="secret") as second,
        Valkey(tmp_path / "c", tmp_path / "c", port=free_port(), password="secret") as third,
    ):
        settings = {"BACKBURNER_EVENT_REDIS_URLS": f"{second.url}, {third.url}"}
        async with private_stack(settings=settings, allowed_tracebacks=REDIS_TRACEBACKS) as running:
            api = running.api()

            async def only_this_is_slow(server: int) -> tuple[Rally, int]:
                rallies = await _rallies(api, fake)
                slow = rallies.pop(server)
                last = asyncio.create_task(slow.play(api, _ROUNDS))
                await asyncio.gather(*(each.play(api, _ROUNDS) for each in rallies.values()))
                assert slow.count < _ROUNDS * 3 // 4
                number = await last
                for each in rallies.values():
                    assert (await api.cancel(each.id)).status == 200
                return slow, number

            second.kill()
            await until(lambda: _bus_is(api, healthy=False), 30)
            slow, number = await only_this_is_slow(1)
            resumed = await slow.play(api, 3, after=number)
            assert resumed == number + 3
            async with api.follow(slow.id, resumed) as stream:
                assert (await api.cancel(slow.id)).status == 200
                rest = await stream.to_end()
            assert rest[-1]["response"]["status"] == "cancelled"
            assert rest[0]["sequence_number"] == resumed + 1

            second.start()
            await until(lambda: _bus_is(api, healthy=True), 30)
            third.kill()
            await until(lambda: _bus_is(api, healthy=False), 30)
            await only_this_is_slow(2)  # that of the second one is fast again


async def _bus_is(api: Api, *, healthy: bool) -> bool:
    async with api.session.get(f"{api.base_url.removesuffix('/v1')}/metrics") as answer:
        found = re.search(r"^backburner_bus_healthy.* ([01])", await answer.text(), re.MULTILINE)
    assert found is not None
    return (found[1] == "1") is healthy
