"""Batches of projects: creating, showing, listing and cancelling them. Always within one project
(I11)."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from features.batches import queries as batches
from features.batches import service
from features.batches.lines import ENDPOINTS
from features.batches.objects import batch_object, parse_window
from features.batches.queries import BatchRow
from features.quotas.refusal import too_many_open
from models.config.groups import BatchSettings, QuotaSettings
from models.db.database import Connection, Json, Pool, fetch, fetch_idempotent, find_by_id
from models.db.queries.api_keys import ApiKey
from models.db.queries.audit import Actor
from models.db.queries.files import FIND_FILE, LOCK_PROJECT, FileRow
from models.db.queries.quotas import COUNTED_BATCHES
from models.errors import InvalidRequest, NotFound
from models.ids import batch_id, new_uuid, parse_batch_id, parse_file_id
from models.wire.checks.basic import Integer, String
from models.wire.checks.faults import missing, not_an_object, shorten, unknown_parameter
from models.wire.checks.parameters import METADATA
from web.http.json_responses import list_envelope
from web.http.params import Paging
from web.idempotency.creates import note_made

_FIELDS = ("input_file_id", "endpoint", "completion_window", "metadata", "output_expires_after")
_REQUIRED = ("input_file_id", "endpoint", "completion_window")
_STRING = String()
_LIFETIME = Integer(3600, 2_592_000)
"""Seconds, as OpenAI documents them."""


class BatchStore:
    """The batches of all projects."""

    def __init__(self, settings: BatchSettings, quotas: QuotaSettings, pool: Pool) -> None:
        self._settings = settings
        self._quotas = quotas
        self._pool = pool

    async def create(self, key: ApiKey, body: Any) -> dict[str, Any]:
        """Stores a batch; returns the Batch object. Its input is checked by a worker. Raises
        InvalidRequest, NotFound for its file, or QuotaExceeded."""
        fields = _known_fields(body)
        for name in _REQUIRED:
            if fields.get(name) is None:
                raise missing(name)
        _require_endpoint(_STRING(fields["endpoint"], "endpoint"))
        text = _STRING(fields["completion_window"], "completion_window")
        window = self._window(text)
        metadata = fields.get("metadata")
        if metadata is not None:
            metadata = METADATA(metadata, "metadata")
        lifetime = _lifetime(fields.get("output_expires_after"))
        file = await self._input(key.project_id, _STRING(fields["input_file_id"], "input_file_id"))
        values = {
            "id": new_uuid(),
            "project": key.project_id,
            "api_key": key.id,
            "endpoint": fields["endpoint"],
            "file": file.id,
            "completion_window": text,
            "metadata": None if metadata is None else Json(metadata),
            "output_lifetime": lifetime,
            "window": window,
        }
        async with self._pool.connection() as connection, connection.transaction():
            await self._require_quota(connection, key)
            [row] = await fetch(connection, batches.INSERT_BATCH, values)
            await note_made(connection, batch_id(row.id))
        return batch_object(row)

    async def show(self, project: UUID, public_id: str) -> dict[str, Any]:
        """The Batch object. Raises NotFound."""
        return batch_object(await self._find(project, public_id))

    async def page(self, project: UUID, paging: Paging) -> dict[str, Any]:
        """A page of the project's batches, the newest first, as OpenAI's list object. Raises
        NotFound if `after` is no batch of the project."""
        after = None if paging.after is None else (await self._find(project, paging.after)).id
        values = {"project": project, "after": after, "limit": paging.row_limit}
        rows = await fetch_idempotent(self._pool, batches.LIST_BATCHES, values)
        shown = [batch_object(row) for row in rows[: paging.limit]]
        return list_envelope(shown, has_more=bool(rows) and rows[0].found > len(shown))

    async def cancel(self, project: UUID, public_id: str, actor: Actor) -> dict[str, Any]:
        """Begins to cancel a batch; returns the Batch object. The audit log says that `actor` did
        it. One that is cancelled already stays as it is. Raises NotFound, or InvalidRequest if it
        has ended or ends otherwise."""
        found = await self._find(project, public_id)
        try:
            row = await service.cancel(self._pool, project, found.id, actor)
        except service.BatchNotCancelled as refused:
            if refused.status is None:
                raise _not_found(public_id) from None
            raise InvalidRequest(f"Cannot cancel a batch with status '{refused.status}'.") from None
        return batch_object(row)

    async def _require_quota(self, connection: Connection, key: ApiKey) -> None:
        """In the transaction that makes a batch. Raises QuotaExceeded."""
        own = key.policy.quotas.batches
        most = self._quotas.batches if own is None else own
        if not most:
            return
        values = {"project": key.project_id}
        await fetch(connection, LOCK_PROJECT, values)
        [count] = await fetch(connection, COUNTED_BATCHES, values)
        if count >= most:
            what = "batches that have not ended, or failed in the last hour"
            raise too_many_open(most, what, may_retry=False)

    async def _find(self, project: UUID, public_id: str) -> BatchRow:
        row = await find_by_id(
            self._pool, batches.FIND_BATCH, parse_batch_id(public_id), project=project
        )
        if row is None:
            raise _not_found(public_id)
        return row

    async def _input(self, project: UUID, public_id: str) -> FileRow:
        """Raises NotFound, or InvalidRequest for a file of another purpose."""
        file = await find_by_id(self._pool, FIND_FILE, parse_file_id(public_id), project=project)
        if file is None:
            raise NotFound(f"No such File object: {shorten(public_id)}", param="input_file_id")
        if file.purpose != "batch":
            raise InvalidRequest(
                f"Invalid purpose of the input file: expected 'batch', but got '{file.purpose}' "
                "instead.",
                param="input_file_id",
                code="invalid_value",
            )
        return file

    def _window(self, text: str) -> timedelta:
        window = parse_window(text)
        if window is None:
            raise InvalidRequest(
                f"Invalid value: '{shorten(text)}'. 'completion_window' is '24h', or another "
                "number of seconds, minutes, hours or days such as '90m' or '2d'.",
                param="completion_window",
                code="invalid_value",
            )
        longest = self._settings.longest_window
        if window > longest:
            raise InvalidRequest(
                f"Invalid value: '{text}'. The longest 'completion_window' of this server is "
                f"'{int(longest.total_seconds()) // 3600}h'.",
                param="completion_window",
                code="invalid_value",
            )
        return window


def _not_found(public_id: str) -> NotFound:
    return NotFound(f"No batch found with id '{shorten(public_id)}'.")


def _known_fields(body: Any) -> dict[str, Any]:
    if type(body) is not dict:
        raise not_an_object(body)
    for name, value in body.items():
        if name not in _FIELDS and value is not None:
            raise unknown_parameter(name)
    return body


def _require_endpoint(endpoint: str) -> None:
    if endpoint not in ENDPOINTS:
        supported = " and ".join(f"'{name}'" for name in ENDPOINTS)
        raise InvalidRequest(
            f"Invalid value: '{shorten(endpoint)}'. Supported values are: {supported}.",
            param="endpoint",
            code="invalid_value",
        )


def _lifetime(value: Any) -> timedelta | None:
    """The lifetime of the output files in `output_expires_after`; None: as the settings say."""
    where = "output_expires_after"
    if value is None:
        return None
    if type(value) is not dict:
        raise InvalidRequest(
            f"Invalid type for '{where}': expected an object.", param=where, code="invalid_type"
        )
    for name in value:
        if name not in ("anchor", "seconds"):
            raise unknown_parameter(f"{where}.{name}")
    for name in ("anchor", "seconds"):
        if value.get(name) is None:
            raise missing(f"{where}.{name}")
    if value["anchor"] != "created_at":
        raise InvalidRequest(
            f"Invalid value for '{where}.anchor': expected 'created_at'.",
            param=f"{where}.anchor",
            code="invalid_value",
        )
    return timedelta(seconds=_LIFETIME(value["seconds"], f"{where}.seconds"))
