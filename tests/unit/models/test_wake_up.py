"""The messages that wake workers, as kombu reads them."""

from collections.abc import Iterator
from uuid import UUID

import kombu
import orjson
import pytest
from kombu.transport.virtual import Channel

from models.celery.queue import wake_up
from models.ids import new_uuid
from models.redis.channels import BACKGROUND, RUN_RESPONSE


@pytest.fixture
def channel() -> Iterator[Channel]:
    with kombu.Connection("memory://") as connection:
        memory_channel = connection.channel()
        assert isinstance(memory_channel, Channel)
        yield memory_channel


def _arguments(channel: Channel, message: bytes | str) -> list[UUID]:
    """The ids in a message, read as a worker does."""
    decoded = channel.message_to_python(orjson.loads(message))
    assert decoded.headers["task"] == RUN_RESPONSE
    assert decoded.delivery_info["routing_key"] == BACKGROUND
    arguments, _, _ = decoded.payload
    return [UUID(hex=argument) for argument in arguments]


def test_each_id_is_an_argument_of_its_own(channel: Channel) -> None:
    ids = [new_uuid() for _ in range(3)]
    assert _arguments(channel, wake_up(ids, BACKGROUND)) == ids
