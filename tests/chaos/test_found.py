"""What campaigns have found, each as a test of its own that meets it every time."""

import asyncio

from tests.conftest import PrivateStack
from tests.fake_upstream import FakeUpstream, done, finish, gate, text, usage


async def test_a_look_across_the_end_of_a_turn_shows_each_item_once(private: PrivateStack, fake: FakeUpstream) -> None:
    """GET used to read the log and then the items: a response that ended in between was shown with its message twice (I7)."""
    async with private(webs=2, proxied=True) as one:
        opened = asyncio.Event()
        model = fake.script([text("a", "b"), gate(opened), finish(), usage(), done()])
        async with one.api(1).post_stream(model, background=True) as stream:
            await stream.until("response.output_text.delta", count=2)
            snare = one.webs[0].wires.postgres.hold(b"JOIN journal j")
            looking = asyncio.create_task(one.api(0).get(stream.response_id))
            await snare.caught.wait()
            opened.set()
            await stream.to_end()
            snare.release()
            shown = await looking
        assert (shown["status"], shown["output_text"]) == ("in_progress", "ab")
        assert len(shown["output"]) == 1
