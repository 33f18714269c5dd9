"""Attacks with the body of one request."""

import functools

from tests.chaos.abuse.kinds import attack
from tests.chaos.abuse.offender import Offender, as_json
from tests.support.api import JSON
from tests.support.fake_upstream import reply
from tests.support.memory_limit import MIB


@functools.cache
def _repeated(start: bytes, piece: bytes, end: bytes, size: int) -> bytes:
    return start + piece * (size // len(piece)) + end


_SCHEMA = (
    b'{"model": "m", "input": "x", "text": {"format": {"type": "json_schema", "name": "x", '
    b'"schema": {"type": "object", "properties": {"a": {"enum": ['
)


async def _post(offender: Offender, body: bytes, count: int) -> None:
    await offender.all(offender.call("POST", "/responses", body) for _ in range(count))


@attack("60 MiB of [],", "400", "413")
async def _empty_lists(offender: Offender) -> None:
    await _post(offender, _repeated(b"[", b"[],", b"0]", 60 * MIB), 2)


@attack("60 MiB of {} in an enum", "400", "413", quick=True)
async def _enum(offender: Offender) -> None:
    await _post(offender, _repeated(_SCHEMA, b"{},", b"0]}}}}}}", 60 * MIB), 2)


@attack("4 MiB of {} in an enum, 20 at once", "400", "413")
async def _small_enums(offender: Offender) -> None:
    await _post(offender, _repeated(_SCHEMA, b"{},", b"0]}}}}}}", 3 * MIB), 20)


@attack("190 000 nested objects, 20 at once", "400", quick=True)
async def _nested(offender: Offender) -> None:
    start = b'{"model": "m", "input": "x", "metadata": ['
    objects = b'{"":' * 180 + b"0" + b"}" * 180 + b","
    await _post(offender, _repeated(start, objects, b"0]}", 970_000), 20)


@attack("metadata of 2 MiB, 40 at once", "400", "413", quick=True)
async def _metadata(offender: Offender) -> None:
    start = b'{"model": "m", "input": "x", "metadata": {"a": "'
    await _post(offender, _repeated(start, b"abc", b'"}}', 2 * MIB), 40)


@attack("deep nesting", "400", "413", quick=True)
async def _deep(offender: Offender) -> None:
    start = b'{"model": "m", "input": "x", "metadata": '
    body = start + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}"
    await _post(offender, body, 4)


@functools.cache
def image(size: int) -> JSON:
    url = "data:image/png;base64," + "QUJD" * (size // 4)
    content = [{"type": "input_image", "image_url": url}]
    return {"type": "message", "role": "user", "content": content}


@functools.cache
def _image_body(model: str) -> bytes:
    return as_json({"model": model, "input": [image(60 * MIB)], "background": True})


@attack("bodies of 60 MiB, 6 at once")
async def _large_bodies(offender: Offender) -> None:
    body = _image_body(offender.model(reply("small")))
    _image_body.cache_clear()
    await _post(offender, body, offender.many(6, 3))


@attack("input_items of a response of 60 MiB, 8 at once")
async def _input_items(offender: Offender) -> None:
    body = _image_body(offender.model(reply("small")))
    _image_body.cache_clear()
    answer = await offender.insist("/responses", body)
    if answer is not None and answer.status == 200:
        path = f"/responses/{answer.body['id']}"
        await offender.all(offender.call("GET", f"{path}/input_items") for _ in range(8))
        await offender.all(offender.call("GET", path) for _ in range(8))
        await offender.call("DELETE", path)
