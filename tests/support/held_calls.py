"""Calls of the fake upstream that last until a test ends them, in their order."""

import asyncio
from itertools import count

from tests.support.api import until
from tests.support.fake_upstream import (
    FakeUpstream,
    Script,
    UpstreamRequest,
    done,
    finish,
    text,
    usage,
    wait_for,
)

_numbers = count()


class HeldCalls:
    """The calls of an upstream: each one lasts until it is ended."""

    def __init__(self, fake: FakeUpstream, prefix: str = "held-") -> None:
        """`prefix`: of the models' names."""
        self._fake = fake
        self._prefix = prefix
        self._open: list[asyncio.Event] = []
        self._are_held = True
        self.order: list[str] = []
        """the model of each call"""

    def model(self, name: str) -> str:
        """A new model whose calls are held."""
        model = self._fake.script(name=f"{self._prefix}{next(_numbers)}-{name}")
        self._fake.decide(model, self._decide)
        return model

    def _decide(self, request: UpstreamRequest) -> Script:
        end = asyncio.Event()
        self._open.append(end)
        self.order.append(request.model)
        held = [wait_for(end)] if self._are_held else []
        return [text("held"), *held, finish(), usage(), done()]

    async def begun(self, number: int) -> None:
        """Waits until so many calls have begun."""
        await until(lambda: len(self.order) >= number)
        assert len(self.order) == number

    async def next(self) -> str:
        """Ends the oldest call. Returns the model of the one that begins then."""
        number = len(self.order)
        self._open.pop(0).set()
        await self.begun(number + 1)
        return self.order[-1]

    @property
    def next_to_end(self) -> str:
        """The model of the oldest call."""
        return self.order[-len(self._open)]

    def drop(self) -> None:
        """The calls that are open have ended with their worker."""
        self._open.clear()

    def end_all(self) -> None:
        """Ends all calls, also those to come."""
        self._are_held = False
        for end in self._open:
            end.set()
