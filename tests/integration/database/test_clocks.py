"""The machines' clocks are hours off: all times of a response are those of the database."""

from cli.embedded.process import Process, free_port
from tests.conftest import PrivateStack
from tests.support.api import until
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Service, Stack

_HOURS = 5


def _start(own_stack: Stack, shift: int, module: str, *arguments: str, port: int = 0) -> Service:
    """Starts a process whose clock is `shift` seconds off."""
    service = Service(
        f"shifted-{module}",
        own_stack.folder / f"shifted-{module}.log",
        "tests.support.shifted_clock",
        *(f"{shift}", module, *arguments),
        environment=own_stack.environment(),
        port=port,
    )
    Process.launch(service)
    own_stack.started.append(service)
    return service


async def test_a_response_neither_expires_early_nor_lives_long_with_wrong_clocks(
    private_stack: PrivateStack, fake: FakeUpstream
) -> None:
    settings = {"BACKBURNER_LIMITS__QUEUE_WAIT": "3600", "BACKBURNER_RETENTION": "7200"}
    async with private_stack(webs=0, workers=0, settings=settings) as own_stack:
        port = free_port()
        arguments = ("--host", "127.0.0.1", "--port", str(port))
        web = _start(own_stack, -_HOURS * 3600, "web", *arguments, port=port)
        own_stack.webs.append(web)
        worker = _start(own_stack, _HOURS * 3600, "worker", "--streams", "20")
        own_stack.workers.append(worker)
        await until(lambda: web.is_healthy(own_stack.session), 60)
        await own_stack.wait_until_claiming(worker)
        api, model = own_stack.api(), fake.script(reply("x"), reply("y"))
        started = await own_stack.value("SELECT extract(epoch FROM clock_timestamp())::float")
        stored = await api.wait_for_end(await api.create_background(model))
        unstored = await api.create(model, store=False)
        ended = await own_stack.value("SELECT extract(epoch FROM clock_timestamp())::float")
        for response in (stored, unstored):
            assert response["status"] == "completed"
            assert started - 2 <= response["created_at"] <= response["completed_at"] <= ended
        lifetime = (
            "SELECT extract(epoch FROM expires_at - clock_timestamp())::float"
            " FROM responses WHERE store"
        )
        assert 7100 < await own_stack.value(lifetime) <= 7200
        assert 500 < await own_stack.value(lifetime.replace("WHERE", "WHERE NOT")) <= 600
