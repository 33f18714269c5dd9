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
_FEWEST = 3
"""Calls that are open if no slot is free, in the deployments of these tests."""


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
        """Waits until so many calls have begun. There may be more: a project whose first claims are
        on their way has nothing running, so it may begin in the reserve too."""
        await until(lambda: len(self.order) >= number)

    async def next(self) -> str:
        """Ends the oldest call. Returns the model of the first one that begins then.

        On a slow machine a project with nothing running may have begun in the reserve meanwhile
        (ADR 0041). The slot that becomes free is then the reserve's, and another call is to end.
        """
        number = len(self.order)
        while True:
            self._open.pop(0).set()
            try:
                await until(
                    lambda: len(self.order) > number, 4 if len(self._open) >= _FEWEST else 10
                )
            except AssertionError:
                if len(self._open) < _FEWEST:
                    raise
            else:
                return self.order[number]

    async def until_begun(self, model: str, most: int) -> None:
        """Ends calls, at most so many, until one of this model has begun."""
        for _ in range(most):
            if model in self.order:
                return
            await self.next()
        assert model in self.order, self.order

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
