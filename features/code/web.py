"""Containers in a web process: /v1/containers, and those that a create names, whose tools use them.
Always within one project (I11)."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from starlette.requests import Request

from features.code import queries, service
from features.code.queries import ContainerRow, FileShown
from features.code.service import NewContent, link_values, path_of, store_content
from features.files.form import FORM_BYTES, FormPart, MultipartForm
from features.files.objects import FilePurpose
from features.files.queries import FILE_PARTS
from features.files.store import FileStore, examined, file_not_found
from features.files.web import Files
from models.config.settings import Settings
from models.db.arrays import Texts, Uuids
from models.db.database import Pool, execute, fetch, fetch_idempotent, require_by_id
from models.db.queries.api_keys import ApiKey
from models.db.queries.audit import Actor
from models.db.queries.file_contents import FIND_FILES
from models.errors import InvalidRequest, NotFound
from models.files.kinds import Examination
from models.files.storage import FileStorage
from models.hosts import allowed_hosts
from models.ids import CONTAINER, CONTAINER_FILE, admin_id, new_uuid, parse_admin_id, parse_file_id
from models.wire.checks.basic import Choice, Integer, Record, String, checked_fields
from models.wire.checks.faults import missing, refused_value, shorten
from models.wire.checks.server_tools import CONTAINER_FIELDS
from models.wire.request import CreateRequest
from models.wire.tools import allowed_domains_of, container_of, is_code_tool, is_own_code_tool
from web.http.params import Paging
from web.idempotency.creates import note_made
from web.state import AppState, Feature

NEW_CONTAINER = {
    "name": String(non_empty=True, at_most=256),
    "expires_after": Record({"anchor": Choice("last_active_at"), "minutes": Integer(1, 20)}),
    **CONTAINER_FIELDS,
}
_FILE_ID = {"file_id": String(non_empty=True, at_most=256)}
_DATA_FOLDER = "/mnt/data/"
_NO_NETWORK = (
    "code here has no network. Leave it out, or set the type to 'disabled'; the server's operator "
    "can set BACKBURNER_CODE__ALLOWED_HOSTS (docs/code.md)"
)
_OTHER_HOST = (
    "it is not among the hosts that the server's operator lets code reach "
    "(BACKBURNER_CODE__ALLOWED_HOSTS)"
)


class ContainerAccess:
    """The containers of all projects, in a web process."""

    def __init__(self, settings: Settings, pool: Pool, files: FileStore) -> None:
        self._settings = settings.code
        self._allowed_hosts = allowed_hosts(settings.code.allowed_hosts)
        self._pool = pool
        self._files = files

    # --- containers ---

    async def create(self, key: ApiKey, body: Any) -> dict[str, Any]:
        """Makes a container; its session begins with its first code. Raises ApiError."""
        self.require_available(key)
        fields = checked_fields(body, NEW_CONTAINER, ["name"])
        self._require_memory(fields.get("memory_limit"), "memory_limit")
        self._require_hosts(fields, "network_policy")
        await self._require_files(key, fields.get("file_ids", ()), "file_ids")
        idle_time = self._settings.idle_time
        if "expires_after" in fields:
            wanted = timedelta(minutes=fields["expires_after"]["minutes"])
            idle_time = min(idle_time, wanted)
        new_id = new_uuid()
        values: dict[str, object] = {
            "id": new_id,
            "project": key.project_id,
            "api_key": key.id,
            "name": fields["name"],
            "memory_limit": fields.get("memory_limit"),
            "idle_time": idle_time,
            "allowed_domains": Texts(allowed_domains_of(fields)),
        }
        linked = link_values(key.project_id, new_id, fields.get("file_ids", ()))
        async with self._pool.connection() as connection, connection.transaction():
            await fetch(connection, queries.INSERT_CONTAINER, values)
            await fetch(connection, queries.LINK_FILES, linked)
            await note_made(connection, admin_id(CONTAINER, new_id))
        return await self.show(key.project_id, admin_id(CONTAINER, new_id))

    async def show(self, project: UUID, public_id: str) -> dict[str, Any]:
        """The container, which is used by this. Raises NotFound."""
        return _container_object(await self.find(project, public_id, is_used=True))

    async def find(
        self,
        project: UUID,
        public_id: str,
        param: str = "container_id",
        *,
        is_used: bool = False,
    ) -> ContainerRow:
        """A container of the project. Raises NotFound. `param`: its place in the request;
        `is_used`: it expires later, as for the vendor."""
        absent = _not_found(public_id, param)
        found = parse_admin_id(CONTAINER, public_id)
        return await require_by_id(
            self._pool, queries.FIND_CONTAINER, found, absent, project=project, is_used=is_used
        )

    async def page(self, project: UUID, paging: Paging, name: str | None) -> dict[str, Any]:
        """A page of the project's containers. `name`: only those of this name."""
        values = {
            "project": project,
            "name": name,
            "after": paging.after_id(CONTAINER),
            "limit": paging.row_limit,
        }
        rows = await fetch_idempotent(self._pool, queries.LIST_CONTAINERS[paging.order], values)
        return paging.page_of([_container_object(row) for row in rows])

    async def delete(self, project: UUID, public_id: str, actor: Actor) -> None:
        """Deletes a container with its files; a worker ends its session. Raises NotFound."""
        row = await self.find(project, public_id)
        async with self._pool.connection() as connection:
            if not await service.delete(connection, project, row.id, actor):
                raise _not_found(public_id)

    # --- files ---

    async def add_file(self, key: ApiKey, public_id: str, body: Any) -> dict[str, Any]:
        """Gives the container a file of its project. Raises ApiError."""
        container = await self._live(key.project_id, public_id)
        fields = checked_fields(body, _FILE_ID, ["file_id"])
        await self._require_files(key, [fields["file_id"]], "file_id")
        values = link_values(key.project_id, container.id, [fields["file_id"]])
        await fetch(self._pool, queries.LINK_FILES, values)
        linked = await fetch(self._pool, queries.LINKED_FILE, values)
        if not linked:
            raise InvalidRequest(
                "The container has another file with this name.",
                param="file_id",
                code="invalid_value",
            )
        return await self._file_object(container, linked[0].id)

    async def upload(self, key: ApiKey, public_id: str, request: Request) -> dict[str, Any]:
        """Stores the file of a multipart form in the container, or adds the one that the form
        names. Raises ApiError, with nothing stored."""
        storage = self._files.require_storage(key)
        container = await self._live(key.project_id, public_id)
        limit = self._files.limit(FilePurpose.CONTAINER)
        form = MultipartForm(request, limit + FORM_BYTES)
        async for part in form.parts():
            if part.name == "file_id" and part.filename is None:
                return await self.add_file(key, public_id, {"file_id": part.text()})
            if part.name != "file" or part.filename is None:
                raise InvalidRequest(
                    "Expected a file in the field 'file', or an id in 'file_id'.",
                    param=shorten(part.name),
                    code="unknown_parameter",
                )
            return await self._store(key, storage, container, part, form.announced)
        raise missing("file")

    async def _store(
        self,
        key: ApiKey,
        storage: FileStorage,
        container: ContainerRow,
        part: FormPart,
        announced: int,
    ) -> dict[str, Any]:
        """`announced`: bytes of the form."""
        file, path = new_uuid(), path_of(part.filename or "")
        limit = self._files.limit(FilePurpose.CONTAINER)
        purpose = FilePurpose.CONTAINER
        await self._files.insert(key, file, filename=path, purpose=purpose, reserved=announced)
        try:
            chunks = examined(part, Examination(), hashlib.sha256(), limit)
            written = await self._files.write(
                storage, file, chunks, 0, "The file did not arrive in time."
            )
            new = NewContent(file, path, written.bytes, "user")
            async with self._pool.connection() as connection, connection.transaction():
                if written.bytes > announced:
                    await self._files.require_quota(connection, key, file, written.bytes)
                stored = await store_content(connection, container.id, new)
        except BaseException:
            await asyncio.shield(self._files.abandon(file))
            raise
        if stored is None:
            await self._files.abandon(file)
            raise _not_found(admin_id(CONTAINER, container.id))
        return await self._file_object(container, stored.id)

    async def files_page(self, project: UUID, public_id: str, paging: Paging) -> dict[str, Any]:
        """A page of the container's files."""
        container = await self.find(project, public_id)
        values = {
            "container": container.id,
            "after": paging.after_id(CONTAINER_FILE),
            "limit": paging.row_limit,
        }
        rows = await fetch_idempotent(self._pool, queries.LIST_FILES[paging.order], values)
        return paging.page_of([_file_object(container.id, row) for row in rows])

    async def find_file(
        self, project: UUID, public_id: str, file: str
    ) -> tuple[ContainerRow, FileShown]:
        """A file of a container of the project. Raises NotFound."""
        container = await self.find(project, public_id)
        absent = NotFound(f"Container file with id '{shorten(file)}' not found.", param="file_id")
        found = parse_admin_id(CONTAINER_FILE, file)
        row = await require_by_id(
            self._pool, queries.FIND_FILE, found, absent, container=container.id
        )
        return container, row

    async def show_file(self, project: UUID, public_id: str, file: str) -> dict[str, Any]:
        """A file of the container. Raises NotFound."""
        container, row = await self.find_file(project, public_id, file)
        return _file_object(container.id, row)

    async def content(self, row: FileShown) -> AsyncGenerator[bytes, None]:
        """The bytes of a file. Raises StorageError."""
        parts = await fetch_idempotent(self._pool, FILE_PARTS, {"id": row.file_id})
        return self._files.read(parts, 0, row.bytes)

    async def delete_file(self, project: UUID, public_id: str, file: str) -> None:
        """Deletes a file of the container; a session that has it keeps it until it ends. Raises
        NotFound and InvalidRequest."""
        await self._live(project, public_id)
        container, row = await self.find_file(project, public_id, file)
        values = {"container": container.id, "path": row.path}
        async with self._pool.connection() as connection, connection.transaction():
            await fetch(connection, queries.DELETE_PATH, values)
            await execute(connection, queries.FORGET_CONTENT, {"file": row.file_id})

    # --- checks ---

    def require_available(self, key: ApiKey, param: str | None = None) -> None:
        """Raises InvalidRequest if this server runs no code, or stores no files."""
        if not self._settings.sandboxes:
            raise InvalidRequest(
                "Nothing can run code here: this server has no sandbox. Leave the tool out, or let "
                "the server's operator set BACKBURNER_CODE__SANDBOXES (docs/code.md).",
                param=param,
                code="unsupported_parameter",
            )
        self._files.require_storage(key)

    async def check_tools(self, request: CreateRequest, key: ApiKey, *, native: bool) -> None:
        """Checks the containers of a create's tools: one that this server cannot use raises
        InvalidRequest or NotFound. `native`: the model's upstream runs the others."""
        for index, tool in enumerate(request.parameters.get("tools", ())):
            if not is_code_tool(tool) or (native and not is_own_code_tool(tool)):
                continue
            where = f"tools[{index}]"
            self.require_available(key, where)
            field = f"{where}.container" if "container" in tool else f"{where}.environment"
            named = container_of(tool)
            if isinstance(named, str):
                await self._live(key.project_id, named, field)
            else:
                self._require_memory(named.get("memory_limit"), f"{field}.memory_limit")
                self._require_hosts(named, f"{field}.network_policy")
                await self._require_files(key, named.get("file_ids", ()), f"{field}.file_ids")

    async def _live(
        self, project: UUID, public_id: str, param: str = "container_id"
    ) -> ContainerRow:
        """A container that has not expired, and is used now. Raises NotFound and
        InvalidRequest."""
        row = await self.find(project, public_id, param, is_used=True)
        if not row.is_live:
            raise InvalidRequest(
                f"Container '{shorten(public_id)}' is expired.",
                param=param,
                code="container_expired",
            )
        return row

    def _require_memory(self, wanted: str | None, param: str) -> None:
        """Raises InvalidRequest for more memory than containers have here."""
        largest = self._settings.memory_limit
        if wanted is not None and int(wanted[:-1]) > int(largest[:-1]):
            raise InvalidRequest(
                f"Invalid value: '{wanted}'. Containers of this server have at most '{largest}' "
                "(BACKBURNER_CODE__MEMORY_LIMIT).",
                param=param,
                code="invalid_value",
            )

    def _require_hosts(self, fields: Mapping[str, Any], param: str) -> None:
        """Raises InvalidRequest for a domain that code may not reach here."""
        domains = allowed_domains_of(fields)
        if domains and not self._allowed_hosts:
            raise refused_value(f"{param}.type", "allowlist", _NO_NETWORK)
        for index, domain in enumerate(domains):
            where = f"{param}.allowed_domains[{index}]"
            try:
                is_allowed = bool(self._allowed_hosts.narrowed([domain]))
            except ValueError as error:
                raise InvalidRequest(
                    f"Invalid '{where}': {error}.", param=where, code="invalid_value"
                ) from None
            if not is_allowed:
                raise refused_value(where, domain, _OTHER_HOST)

    async def _require_files(self, key: ApiKey, ids: Sequence[str], param: str) -> None:
        """Raises NotFound for an id that is no file of the project."""
        if not ids:
            return
        parsed = {each: parse_file_id(each) for each in ids}
        values = {
            "project": key.project_id,
            "ids": Uuids([each for each in parsed.values() if each is not None]),
        }
        found = {row.id for row in await fetch_idempotent(self._pool, FIND_FILES, values)}
        for public_id, file in parsed.items():
            if file not in found:
                raise file_not_found(public_id, param)

    async def _file_object(self, container: ContainerRow, file: UUID) -> dict[str, Any]:
        values = {"id": file, "container": container.id}
        [row] = await fetch_idempotent(self._pool, queries.FIND_FILE, values)
        return _file_object(container.id, row)


def _not_found(public_id: str, param: str = "container_id") -> NotFound:
    return NotFound(f"Container with id '{shorten(public_id)}' not found.", param=param)


def _container_object(row: ContainerRow) -> dict[str, Any]:
    return {
        "id": admin_id(CONTAINER, row.id),
        "object": "container",
        "created_at": row.created_at,
        "status": "running" if row.is_live else "expired",
        "expires_after": {"anchor": "last_active_at", "minutes": int(row.idle_minutes)},
        "last_active_at": row.last_active_at,
        "memory_limit": row.memory_limit or "1g",
        "name": row.name,
        "network_policy": {"type": "allowlist", "allowed_domains": row.allowed_domains}
        if row.allowed_domains
        else {"type": "disabled"},
    }


def _file_object(container: UUID, row: FileShown) -> dict[str, Any]:
    return {
        "id": admin_id(CONTAINER_FILE, row.id),
        "object": "container.file",
        "created_at": row.created_at,
        "bytes": row.bytes,
        "container_id": admin_id(CONTAINER, container),
        "path": f"{_DATA_FOLDER}{row.path}",
        "source": row.source,
    }


class Code(Feature):
    """The containers of all projects."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        self.access = ContainerAccess(state.settings, state.pool, Files.in_state(state).store)
        state.hooks.checks.append(self.access.check_tools)


FEATURE = Code
