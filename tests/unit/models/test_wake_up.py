"""The messages that wake workers, as kombu reads them; workers of the previous release too."""

from collections.abc import Iterator
from uuid import UUID

import kombu
import orjson
import pytest
from kombu.transport.virtual import Channel

from models.celery.queue import wake_up
from models.ids import new_uuid
from models.redis.channels import BACKGROUND, RUN_RESPONSE

PREVIOUS_RELEASE = (
    '{"headers":{"task":"worker.run_response","id":"9a3b"},"content-type":"application/json",'
    '"content-encoding":"utf-8",'
    '"body":"W1siMDFhMjA0OTAxNDVkNzU5YWE0NWU2ZmQ1ODcwZTIzZDkiXSx7fSx7fV0=",'
    '"properties":{"body_encoding":"base64","delivery_tag":"9a3b",'
    '"delivery_info":{"exchange":"","routing_key":"background"}}}'
)


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


def test_each_id_is_an_argument_of_its_own_so_that_the_previous_release_reads_the_first(
    channel: Channel,
) -> None:
    ids = [new_uuid() for _ in range(3)]
    # The previous release reads `arguments[0]`.
    assert _arguments(channel, wake_up(ids, BACKGROUND)) == ids


def test_a_message_of_the_previous_release_is_read(channel: Channel) -> None:
    [response_id] = _arguments(channel, PREVIOUS_RELEASE)
    assert response_id == UUID(hex="01a20490145d759aa45e6fd5870e23d9")
