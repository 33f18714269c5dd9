"""Batches in a web process: creating, showing, listing and cancelling those of a project. Always
within one project (I11)."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from features.batches import queries as batches
from features.batches import service
from features.batches.expander import Expander, PrepareForwarded
from features.batches.lines import ENDPOINTS
from features.batches.queries import BatchRow
from features.files.queries import FIND_FILE, LOCK_PROJECT
from features.files.store import file_not_found
from features.quotas.refusal import too_many_open
from models.config.feature_groups import BatchSettings
from models.config.groups import QuotaSettings
from models.db.database import Connection, Json, Pool, fetch, fetch_idempotent, require_by_id
from models.db.queries.api_keys import ApiKey
from models.db.queries.audit import Actor
from models.db.queries.file_contents import FileRow
from models.db.queries.quotas import COUNTED_BATCHES
from models.errors import InvalidRequest, NotFound
from models.ids import batch_id, file_id, new_uuid, parse_batch_id, parse_file_id
from models.wire.checks import basic
from models.wire.checks.faults import shorten, unknown_parameter
from models.wire.checks.parameters import METADATA
from web.http.json_responses import list_envelope
from web.http.params import Paging
from web.idempotency.creates import note_made
from web.state import AppState, Feature

_REQUIRED = ("input_file_id", "endpoint", "completion_window")
_FIELDS: Mapping[str, basic.Check] = {
    "input_file_id": basic.String(),
    "endpoint": basic.Choice(*ENDPOINTS),
    "completion_window": basic.String(),
    "metadata": METADATA,
    "output_expires_after": basic.Record(
        {"anchor": basic.Choice("created_at"), "seconds": basic.Integer(3600, 2_592_000)}
    ),
}
"""`seconds` as OpenAI documents them."""
_WINDOW = re.compile(r"([1-9][0-9]{0,5})(s|m|h|d)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class BatchStore:
    """The batches of all projects."""

    def __init__(self, settings: BatchSettings, quotas: QuotaSettings, pool: Pool) -> None:
        self._settings = settings
        self._quotas = quotas
        self._pool = pool

    async def create(self, key: ApiKey, body: Any) -> dict[str, Any]:
        """Stores a batch; returns the Batch object. Its input is checked by a worker. Raises
        InvalidRequest, NotFound for its file, or QuotaExceeded."""
        fields = basic.checked_fields(body, _FIELDS, _REQUIRED)
        window = self._window(fields["completion_window"])
        metadata, expiry = fields.get("metadata"), fields.get("output_expires_after", {})
        for name in body["output_expires_after"] if expiry else ():
            if name not in expiry:
                raise unknown_parameter(f"output_expires_after.{name}")
        file = await self._input(key.project_id, fields["input_file_id"])
        values = {
            "id": new_uuid(),
            "project": key.project_id,
            "api_key": key.id,
            "endpoint": fields["endpoint"],
            "file": file.id,
            "completion_window": fields["completion_window"],
            "metadata": None if metadata is None else Json(metadata),
            "output_lifetime": timedelta(seconds=expiry["seconds"]) if expiry else None,
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
        found, absent = parse_batch_id(public_id), _not_found(public_id)
        return await require_by_id(self._pool, batches.FIND_BATCH, found, absent, project=project)

    async def _input(self, project: UUID, public_id: str) -> FileRow:
        """Raises NotFound, or InvalidRequest for a file of another purpose."""
        found, absent = parse_file_id(public_id), file_not_found(public_id, "input_file_id")
        file = await require_by_id(self._pool, FIND_FILE, found, absent, project=project)
        if file.purpose != "batch":
            raise InvalidRequest(
                f"Invalid purpose of the input file: expected 'batch', but got '{file.purpose}' "
                "instead.",
                param="input_file_id",
                code="invalid_value",
            )
        return file

    def _window(self, text: str) -> timedelta:
        window = _parse_window(text)
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


def _parse_window(text: str) -> timedelta | None:
    """The duration of a `completion_window`: `24h`, as OpenAI has it, or another number of seconds,
    minutes, hours or days. None: it is none."""
    found = _WINDOW.fullmatch(text)
    return None if found is None else timedelta(**{_UNITS[found[2]]: int(found[1])})


def batch_object(row: BatchRow) -> dict[str, Any]:
    """The Batch object as JSON."""
    ended = {f"{status}_at": None for status in ("completed", "failed", "expired", "cancelled")}
    if row.ended_at is not None:
        ended[f"{row.status}_at"] = row.ended_at  # type: ignore[assignment]
    errors = None if row.errors is None else {"object": "list", "data": row.errors}
    return {
        "id": batch_id(row.id),
        "object": "batch",
        "endpoint": row.endpoint,
        "model": row.model,
        "errors": errors,
        "input_file_id": file_id(row.input_file_id),
        "completion_window": row.completion_window,
        "status": row.status,
        "output_file_id": None if row.output_file_id is None else file_id(row.output_file_id),
        "error_file_id": None if row.error_file_id is None else file_id(row.error_file_id),
        "created_at": row.created_at,
        "in_progress_at": row.in_progress_at,
        "expires_at": row.expires_at,
        "finalizing_at": row.finalizing_at,
        "cancelling_at": row.cancelling_at,
        **ended,
        "request_counts": {"total": row.total, "completed": row.completed, "failed": row.failed},
        "usage": {
            "input_tokens": row.input_tokens,
            "input_tokens_details": {"cached_tokens": row.cached_tokens},
            "output_tokens": row.output_tokens,
            "output_tokens_details": {"reasoning_tokens": row.reasoning_tokens},
            "total_tokens": row.input_tokens + row.output_tokens,
        },
        "metadata": row.metadata,
    }


class Batches(Feature):
    """The batches of all projects, and the expansion of their input, which is checked as a POST
    is."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        settings = state.settings
        self.store = BatchStore(settings.batches, settings.quotas, state.pool)

    def start(self) -> None:
        """Begins to expand batches, if this server stores files."""
        state = self.state
        if state.storage is None:
            return
        expander = Expander(
            state.settings,
            state.pool,
            state.storage,
            state.create_response,
            PrepareForwarded(state),
            state.quotas,
            state.job_queue,
        )
        state.side_tasks.start(expander.run(state.due_poll), "batches")


FEATURE = Batches
