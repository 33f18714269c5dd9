"""Attacks with files: uploads that are completed over and over, files that are read slowly."""

import asyncio
import contextlib

import aiohttp

from tests.chaos.abuse.kinds import attack
from tests.chaos.abuse.offender import Offender, as_json
from tests.support.api import JSON
from tests.support.files_to_read import xlsx
from tests.support.memory_limit import MIB

_BOUNDARY = "offender"
_STORES = 40
"""Vector stores that get the same file."""
_INGESTED_FOR = 8.0
"""Seconds for which the files are being read, before the offender deletes them."""


def _form(*fields: tuple[str, str, bytes]) -> bytes:
    """A form: name, further attributes, and value of each field."""
    parts = b"".join(
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode()
        + value
        + b"\r\n"
        for name, more, value in fields
    )
    return parts + f"--{_BOUNDARY}--\r\n".encode()


async def _post_form(offender: Offender, path: str, form: bytes) -> JSON | None:
    """The answer to a form, if it is 200."""
    headers = {"content-type": f"multipart/form-data; boundary={_BOUNDARY}"}
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        answer = await offender.api.call("POST", path, form, headers=headers)
        offender.count(answer.status)
        return answer.body if answer.status == 200 else None
    offender.count("closed")
    return None


@attack("an upload of 32 MiB, completed 20 times with a wrong md5", "400", quick=True)
async def _completions(offender: Offender) -> None:
    size = 32 * MIB
    body: JSON = {
        "purpose": "user_data",
        "filename": "a.bin",
        "bytes": size,
        "mime_type": "application/octet-stream",
    }
    upload = await offender.call("POST", "/uploads", body)
    if upload is None or upload.status != 200:
        return
    path = f"/uploads/{upload.body['id']}"
    part = await _post_form(
        offender, f"{path}/parts", _form(("data", '; filename="a"', b"\xff" * size))
    )
    if part is not None:
        wrong = as_json({"part_ids": [part["id"]], "md5": "0" * 32})
        await offender.all(offender.call("POST", f"{path}/complete", wrong) for _ in range(20))
    await offender.call("POST", f"{path}/cancel", b"{}")


async def _ingest(offender: Offender, name: str, content: bytes) -> None:
    """Adds a file to many vector stores, and deletes it after some seconds."""
    fields = (("purpose", "", b"assistants"), ("file", f'; filename="{name}"', content))
    file = await _post_form(offender, "/files", _form(*fields))
    if file is None:
        return
    ids: list[str] = []
    for _ in range(_STORES):
        body: JSON = {"name": name, "file_ids": [file["id"]]}
        store = await offender.call("POST", "/vector_stores", body)
        if store is not None and store.status == 200:
            ids.append(store.body["id"])
    await asyncio.sleep(_INGESTED_FOR)
    await offender.all(offender.call("DELETE", f"/vector_stores/{one}") for one in ids)
    await offender.call("DELETE", f"/files/{file['id']}")


@attack("a workbook whose second row is number 2 000 000 000, in 40 stores", quick=True)
async def _workbook(offender: Offender) -> None:
    cell = '<c t="inlineStr"><is><t>x</t></is></c>'
    rows = f'<row r="1">{cell}</row><row r="2000000000">{cell}</row>'
    await _ingest(offender, "a.xlsx", xlsx(rows))


@attack("a page of 2 000 000 unfinished comments, in 40 stores", quick=True)
async def _comments(offender: Offender) -> None:
    await _ingest(offender, "a.html", b"<!--" * 2_000_000)
