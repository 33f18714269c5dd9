"""Unknown keys from one address: so many at once as the setting says."""

import asyncio

import pytest

from models.errors import TooManyUnknownKeys
from web.http.clients import KeyGuesses


async def _guess(guesses: KeyGuesses, count: int) -> None:
    await asyncio.gather(*(guesses.delay("192.0.2.1") for _ in range(count)))


async def test_as_many_guesses_as_the_setting_says_are_not_delayed() -> None:
    await _guess(KeyGuesses(30), 30)
    with pytest.raises(TooManyUnknownKeys):
        await _guess(KeyGuesses(1), 30)
