"""What campaigns have found, each as a test of its own that meets it every time."""

import asyncio
from typing import Any, cast

from models.config.settings import Settings
from models.ids import new_uuid
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.fake_upstream import FakeUpstream, done, finish, hang, text, usage, wait_for
from tests.support.stack import SHORT_LEASES
from web.stream.bus import Bus
from worker.log.publisher import Publisher


async def test_a_look_across_the_end_of_a_turn_shows_each_item_once(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """GET used to read the log and then the items: a response that ended in between was shown with its message twice (I7)."""
    async with private_stack(webs=2, proxied=True) as one:
        opened = asyncio.Event()
        model = fake.script([text("a", "b"), wait_for(opened), finish(), usage(), done()])
        async with one.api(1).post_stream(model, background=True) as stream:
            await stream.until("response.output_text.delta", count=2)
            snare = one.webs[0].proxies.postgres.hold_answer(b"JOIN journal j")
            looking = asyncio.create_task(one.api(0).get(stream.response_id))
            await snare.answered.wait()
            opened.set()
            await stream.to_end()
            snare.release()
            shown = await looking
        assert (shown["status"], shown["output_text"]) == ("in_progress", "ab")
        assert len(shown["output"]) == 1


async def test_what_was_said_stands_until_the_next_attempt_speaks(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    """GET used to show nothing from the take-over on, and a cancel then brought the words of the dead attempt back (I7, I10)."""
    async with private_stack(settings=SHORT_LEASES) as one:
        model = fake.script([text("a", "b"), hang()], [hang()])
        api = one.api()
        async with api.post_stream(model, background=True) as stream:
            await stream.until("response.output_text.delta", count=2)
            one.kill(one.workers[0])
            await one.start_worker()
            await until(lambda: len(fake.requests_for(model)) == 2, 30)
            shown = await api.get(stream.response_id)
            assert (shown["status"], shown["output_text"]) == ("in_progress", "ab")
            await api.cancel(stream.response_id)
            await stream.to_end()
            assert [item["id"] for item in stream.final["output"]] == [
                item["id"] for item in shown["output"]
            ]


class _Closed:
    """A connection to Redis as uvloop has it in the moment after it was closed."""

    async def _refuse(self, *_: object, **__: object) -> None:
        raise RuntimeError(
            "unable to perform operation on <TCPTransport closed=True>; the handler is closed"
        )

    subscribe = unsubscribe = publish = send_packed_command = _refuse
    connection_pool = property(lambda self: self)
    _writer = None

    def make_connection(self) -> "_Closed":
        return self

    async def connect(self) -> None:
        """It seems to be there."""

    async def disconnect(self, *, nowait: bool) -> None:
        """It is gone already."""


async def test_a_reader_that_comes_as_redis_goes_is_sent_to_the_log() -> None:
    """The RuntimeError of a closed connection used to cut the reader off (I3, I8)."""
    settings = Settings(
        database_url=cast("Any", "postgres://nobody/none"), redis_url=cast("Any", "redis://nobody")
    )
    bus = Bus(settings, cast("Any", None), new_uuid())
    bus._pubsub = cast("Any", _Closed())
    async with bus.subscribe(new_uuid()) as inbox:
        bus.wake_all()
        assert await inbox.next() is None


async def test_a_worker_whose_redis_goes_while_it_publishes_goes_on() -> None:
    """The same in the worker used to end its publisher."""
    publisher = Publisher(cast("Any", _Closed()))
    running = asyncio.create_task(publisher.run())
    publisher.publish("events:x", b"")
    await until(lambda: publisher._unavailable_until)
    assert not running.done()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
