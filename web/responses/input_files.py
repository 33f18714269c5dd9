"""The stored files that a request names in `input_file` and `input_image` (docs/files.md).

All of a request are looked up with one statement. A request that names none costs nothing.
"""

from collections.abc import Mapping, Sequence
from uuid import UUID

from models.config.settings import Settings
from models.config.upstream import UpstreamSettings
from models.db.arrays import Uuids
from models.db.database import Pool, fetch_idempotent
from models.db.queries.file_contents import FIND_FILES, FileRow
from models.errors import InvalidRequest
from models.files.kinds import IMAGES, claimed_kind
from models.ids import parse_file_id
from models.wire.checks.faults import shorten
from models.wire.events import Item
from models.wire.items import FilePlace, file_places

_MAX_SHOWN = 10
"""Ids that one error repeats."""
_FOR_BATCHES = ("batch", "batch_output")
"""Purposes whose files no model gets."""


class InputFiles:
    """Checks the files that requests name."""

    def __init__(
        self,
        pool: Pool,
        upstreams: Sequence[UpstreamSettings],
        settings: Settings,
        *,
        has_storage: bool,
    ) -> None:
        """`upstreams`: all that are configured. `has_storage`: this server stores files."""
        self._pool = pool
        self._upstreams = upstreams
        self._max_files = settings.files.per_request
        self._max_bytes = settings.egress.file_bytes
        self._has_storage = has_storage

    async def check(
        self,
        project: UUID,
        items: list[Item],
        where: str = "input",
        *,
        upstreams: Sequence[UpstreamSettings] | None = None,
    ) -> None:
        """Raises InvalidRequest for an id in checked items that is no file for a model.

        `where`: the name of the list in the request. `upstreams`: those that may get the items;
        None: any one.
        """
        places = [place for place in file_places(items) if place.name == "file_id"]
        if not places:
            return
        ids = {place.value: parse_file_id(place.value) for place in places}
        upstreams = self._upstreams if upstreams is None else upstreams
        if any(upstream.api == "responses" for upstream in upstreams):
            # web/responses/account_ids.py judges the ids of an upstream's account.
            places = [place for place in places if ids[place.value] is not None]
        if len(places) > self._max_files:
            raise InvalidRequest(
                f"Invalid '{where}': more than {self._max_files} files.",
                param=where,
                code="invalid_value",
            )
        stored = await self._find(project, [found for found in ids.values() if found], places)
        _require_found(places, stored, where)
        for place in places:
            _require_suitable(place, items, stored[place.value], where)
        size = sum(stored[place.value].bytes for place in places)
        if size > self._max_bytes:
            raise InvalidRequest(
                f"The files that '{where}' names have {size} bytes together. The limit is "
                f"{self._max_bytes} bytes.",
                param=where,
                code="input_too_large",
            )

    async def check_image(
        self,
        project: UUID,
        file: str,
        param: str,
        *,
        upstreams: Sequence[UpstreamSettings] | None = (),
    ) -> None:
        """Raises InvalidRequest if the project has no image with this id. `upstreams`: as for
        `check`."""
        part = {"type": "input_image", "file_id": file}
        try:
            await self.check(project, [{"type": "message", "content": [part]}], upstreams=upstreams)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param=param, code=error.code) from None

    async def _find(
        self, project: UUID, ids: list[UUID], places: Sequence[FilePlace]
    ) -> dict[str, FileRow]:
        """The files of the project among these, by the ids in `places`."""
        if not ids or not self._has_storage:
            return {}
        values = {"project": project, "ids": Uuids(ids)}
        rows = {row.id: row for row in await fetch_idempotent(self._pool, FIND_FILES, values)}
        found = {place.value: parse_file_id(place.value) for place in places}
        return {name: rows[id_] for name, id_ in found.items() if id_ is not None and id_ in rows}


def _require_found(places: Sequence[FilePlace], stored: Mapping[str, FileRow], where: str) -> None:
    """Raises InvalidRequest for the ids that are not stored, in the words of Azure's API."""
    missing = [place for place in places if place.value not in stored]
    if not missing:
        return
    ids = list(dict.fromkeys(place.value for place in missing))
    shown = ", ".join(map(shorten, ids[:_MAX_SHOWN])) + (", …" if len(ids) > _MAX_SHOWN else "")
    raise InvalidRequest(
        f"Files [{shown}] were not found.",
        param=missing[0].path(missing[0].item, where),
        code="file_not_found",
    )


def _require_suitable(place: FilePlace, items: list[Item], file: FileRow, where: str) -> None:
    """Raises InvalidRequest if the part may not have this file."""
    part = place.part_of(items[place.item])
    param = place.path(place.item, where)
    if file.purpose in _FOR_BATCHES:
        raise InvalidRequest(
            f"Invalid '{param}': the file '{file.filename}' has the purpose '{file.purpose}'. "
            "Upload it with the purpose 'user_data'.",
            param=param,
            code="invalid_value",
        )
    is_image = file.media_type in IMAGES
    if place.is_image and not is_image:
        hint = " Send it as 'input_file'." if place.kind == "input_image" else ""
        raise _wrong_kind(
            param,
            "Expected image type to be a supported format: .jpeg, .jpg, .png, .gif, .webp but got "
            f"'{file.filename}'.{hint}",
        )
    if not place.is_image and is_image:
        raise _wrong_kind(
            param,
            f"Expected a document, but got the image '{file.filename}'. Send it as 'input_image'.",
        )
    claimed = claimed_kind(part.get("filename", ""))
    # Of a text in an older encoding no kind is known.
    found = file.media_type or claimed_kind(file.filename)
    if claimed is not None and claimed != found:
        raise _wrong_kind(
            param, f"The file is not of the type {claimed}, as '{part['filename']}' says."
        )


def _wrong_kind(param: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid input: {message}", param=param, code="invalid_file")
