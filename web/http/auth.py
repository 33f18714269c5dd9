"""Authentication: `Authorization: Bearer <key>` becomes a key with its project.

A dependency of every route under /v1. Each route decides which scope it needs by the dependency
that it has (docs/projects.md).

Counts refused requests for the audit log: those without a valid API key, and those to the admin
API whose key lacks the scope. One entry for all equal ones of a minute, and not one for each
request, which would let clients fill the disk.
"""

import asyncio
import hmac
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated
from uuid import UUID

import orjson
from fastapi import Depends, FastAPI
from starlette.requests import HTTPConnection

from models.db.arrays import Byteas
from models.db.connection import ACTING_PROJECT
from models.db.database import DATABASE_UNAVAILABLE, Pool, execute, fetch_idempotent
from models.db.queries.api_keys import FIND_API_KEYS, TOUCH_API_KEY, ApiKey
from models.db.queries.audit import RECORD_REFUSED, Actor, ActorKind
from models.errors import (
    IncorrectApiKey,
    MissingScope,
    ModelNotAllowed,
    TooManyUnknownKeys,
    Unauthenticated,
)
from models.ids import PROJECT, admin_id, new_uuid
from models.keys import CACHE_SECONDS, cell_of_key, hash_key
from models.ownership.grouping import GroupedRequests
from models.projects.policy import may_use
from models.projects.scopes import Scope
from web.http.clients import KeyGuesses
from web.http.open_requests import OpenRequests
from web.http.request_record import actor_of, request_record
from web.http.unknown_paths import path_hint

_MINUTE = 60.0
"""Seconds."""
_MAX_COUNTED = 1_000
"""Different requests of an action that one minute counts apart. The others count as one."""
_OTHERS = "others"


@dataclass(frozen=True, slots=True)
class _Refused:
    """What requests that count as one have in common."""

    actor: Actor
    """without a request id"""
    object: str | None = None


class RefusedRequests:
    """The counts of one web process."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._counts: dict[str, Counter[_Refused]] = {}
        """By their action."""
        self._first_at = datetime.now(UTC)

    def add_unauthenticated(self, address: str) -> None:
        """A request from this address had no valid key."""
        others = _Refused(Actor(ActorKind.UNKNOWN, address=_OTHERS))
        refused = _Refused(Actor(ActorKind.UNKNOWN, address=address))
        self._add("authentication.fail", refused, others)

    def add_unauthorized(self, actor: Actor, target: str) -> None:
        """A request to the admin API, whose key lacks the scope. `target`: the method and the
        template of the path."""
        refused = _Refused(replace(actor, request_id=None), target)
        self._add("admin.refuse", refused, _Refused(Actor(ActorKind.KEY), _OTHERS))

    def _add(self, action: str, refused: _Refused, others: _Refused) -> None:
        if not self._counts:
            self._first_at = datetime.now(UTC)
        counts = self._counts.setdefault(action, Counter())
        is_new = refused not in counts
        counts[others if is_new and len(counts) >= _MAX_COUNTED else refused] += 1

    async def run(self) -> None:
        """Stores the counts at the end of each minute. Never returns.

        While Postgres is unavailable they are kept, and go on.
        """
        while True:
            await asyncio.sleep(_MINUTE - time.time() % _MINUTE)
            with suppress(*DATABASE_UNAVAILABLE):
                await self.store()

    async def store(self) -> None:
        """Stores the counts of this minute. Raises what `execute` raises; then they are kept."""
        if not self._counts:
            return
        counts, at = self._counts, self._first_at
        self._counts = {}
        try:
            values = orjson.dumps(list(_entries(counts, at))).decode()
            await execute(self._pool, RECORD_REFUSED, {"counts": values})
        except BaseException:
            for action, kept in counts.items():
                self._counts.setdefault(action, Counter()).update(kept)
            self._first_at = at
            raise


def _entries(counts: dict[str, Counter[_Refused]], at: datetime) -> Iterator[dict[str, object]]:
    """The entries as JSON."""
    for action, counted in counts.items():
        for refused, count in counted.items():
            actor = refused.actor
            yield {
                "id": new_uuid(),
                "at": at,
                "actor": actor.kind.value,
                "key_id": actor.key_id,
                "key_prefix": actor.key_prefix,
                "project": actor.project,
                "address": actor.address,
                "action": action,
                "object": refused.object,
                "count": count,
            }


_LAST_USED_INTERVAL = 60.0
"""Seconds between two updates of a key's `last_used_at`."""
_MAX_CACHED_KEYS = 10_000
_MAX_LOOKUPS = 200
"""Keys that one statement looks up."""
_READING_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))


class Keys:
    """Looks up API keys, with a short-lived cache.

    Every key is looked up, so no guess of another client refuses or delays a valid one. Keys that
    come together share a statement. What is limited are the answers to unknown keys.
    """

    def __init__(self, pool: Pool, guesses: int, cell: str = "") -> None:
        """`guesses`: unknown keys of one address that are answered without a delay. `cell`: the
        setting."""
        self._cell = cell
        self.refused = RefusedRequests(pool)
        """The requests that the audit log counts."""
        self._pool = pool
        self._cached: dict[bytes, tuple[ApiKey, float]] = {}
        """Keys, and until when each is valid without another look-up."""
        self._lookups: dict[bytes, asyncio.Task[ApiKey | None]] = {}
        """Those that run now. Requests of one moment with the same key share one."""
        self._last_used_written: dict[UUID, float] = {}
        self._guesses = KeyGuesses(guesses)
        self._statements = GroupedRequests(self._select, max_requests=_MAX_LOOKUPS, gap=0.0)

    async def require(self, key: str, address: str = "") -> ApiKey:
        """What is stored of this key. `address`: the client's. Raises IncorrectApiKey for a string
        that is not a valid key, and TooManyUnknownKeys."""
        found = await self._find(hash_key(key), address)
        if found is None:
            named = cell_of_key(key)
            raise IncorrectApiKey("" if named == self._cell else named)
        return found

    async def _find(self, hashed: bytes, address: str) -> ApiKey | None:
        cached = self._cached.get(hashed)
        if cached is not None and cached[1] > time.monotonic():
            return cached[0]
        if self._guesses.is_unknown(hashed):
            return None
        # A client that disconnects ends its own request only.
        found = await asyncio.shield(self._start_lookup(hashed))
        if found is None:
            self._guesses.record_unknown(hashed)
            await self._guesses.delay(address)
        return found

    def _start_lookup(self, hashed: bytes) -> asyncio.Task[ApiKey | None]:
        """The look-up of this key: the one that runs now, or a new one."""
        lookup = self._lookups.get(hashed)
        if lookup is None:
            lookup = asyncio.create_task(self._look_up(hashed, self._lookups))
            self._lookups[hashed] = lookup
        return lookup

    def forget(self) -> None:
        """Looks each key up again before its next use: a key or a project was changed. A look-up
        that runs now may be older."""
        self._lookups, self._cached = {}, {}

    async def _look_up(
        self, hashed: bytes, lookups: dict[bytes, asyncio.Task[ApiKey | None]]
    ) -> ApiKey | None:
        """`lookups`: those of this moment, among which it is; others after `forget`."""
        try:
            return await self._read(hashed, lookups)
        finally:
            lookups.pop(hashed, None)

    async def _read(
        self, hashed: bytes, lookups: dict[bytes, asyncio.Task[ApiKey | None]]
    ) -> ApiKey | None:
        now = time.monotonic()
        key = await self._statements.submit(hashed)
        if key is None or not hmac.compare_digest(key.hash, hashed):
            self._cached.pop(hashed, None)
            return None
        if len(self._cached) > _MAX_CACHED_KEYS:
            self._cached.clear()
        if lookups is self._lookups:
            until = now + CACHE_SECONDS
            if key.expires_monotonic is not None:
                until = min(until, key.expires_monotonic)
            self._cached[hashed] = (key, until)
        await self._record_use(key.id, now)
        return key

    async def _select(self, hashes: list[bytes]) -> list[ApiKey | None]:
        rows = await fetch_idempotent(self._pool, FIND_API_KEYS, {"hashes": Byteas(hashes)})
        found = {row.hash: row for row in rows}
        return [found.get(hashed) for hashed in hashes]

    async def _record_use(self, key_id: UUID, now: float) -> None:
        if now - self._last_used_written.get(key_id, -_LAST_USED_INTERVAL) >= _LAST_USED_INTERVAL:
            self._last_used_written[key_id] = now
            await execute(self._pool, TOUCH_API_KEY, {"id": key_id})


_RIGHT_HEADER = "Send it in an Authorization header: 'Authorization: Bearer YOUR_KEY'."
ANTHROPIC_KEY = "x-api-key"
"""Where clients of Anthropic send a key."""
_OTHER_HEADERS = ("api-key", "x-goog-api-key")
"""Where clients of Azure and Google send a key."""


def bind_keys(
    app: FastAPI,
    keys: Keys,
    open_requests: OpenRequests,
    headers_of: Callable[[ApiKey], Mapping[str, str]],
) -> None:
    """Makes `authenticate` look up the keys of this application's requests in `keys`, and note the
    requests in `open_requests`. `headers_of`: the headers of each answer to a request with this
    key."""
    app.state.keys = keys
    app.state.open_requests = open_requests
    app.state.headers_of_key = headers_of


def read_api_key(connection: HTTPConnection) -> str:
    """The key in the `Authorization` header, else in `x-api-key`. Raises Unauthenticated unless
    there is one."""
    headers = connection.headers.getlist("authorization")
    if len(headers) > 1:
        raise Unauthenticated(
            "You provided more than one Authorization header. "
            "Send one: 'Authorization: Bearer YOUR_KEY'."
        )
    if not headers and connection.headers.get(ANTHROPIC_KEY, "").strip():
        return connection.headers[ANTHROPIC_KEY].strip()
    scheme, _, key = headers[0].strip().partition(" ") if headers else ("", "", "")
    if scheme.lower() != "bearer" or not key.strip():
        elsewhere = next((name for name in _OTHER_HEADERS if name in connection.headers), None)
        raise Unauthenticated(
            f"You sent the API key in '{elsewhere}', which this server does not read. "
            f"{_RIGHT_HEADER}{path_hint(connection.url.path, ())}"
            if elsewhere is not None and not headers
            else f"You didn't provide an API key. {_RIGHT_HEADER}"
        )
    return key.strip()


async def authenticate(connection: HTTPConnection) -> ApiKey:
    """The request's key, whatever its scopes. Reads only headers. Raises Unauthenticated and
    TooManyUnknownKeys."""
    keys: Keys = connection.app.state.keys
    address = connection.client.host if connection.client else ""
    try:
        key = await keys.require(read_api_key(connection), address)
    except (Unauthenticated, TooManyUnknownKeys):
        keys.refused.add_unauthenticated(address)
        raise
    ACTING_PROJECT.set(key.project_id)
    record = request_record(connection)
    is_new = record.key_id is None
    record.project, record.key_id, record.key_prefix = key.project, key.id, key.prefix
    record.key_headers = partial(connection.app.state.headers_of_key, key)
    of_connection = connection.scope.get("state", {})
    trust_connection = of_connection.get("trust_connection")
    if trust_connection is not None:
        trust_connection()
    close_connection = of_connection.get("close_connection")
    if close_connection is not None and is_new:
        record.at_end(connection.app.state.open_requests.add(key, close_connection))
    return key


async def authorize(connection: HTTPConnection) -> ApiKey:
    """The request's key, which may use its project: all of it with the scope `responses`, with
    `read` what changes nothing. Raises MissingScope, and what `authenticate` raises."""
    key = await authenticate(connection)
    require_scope(key, reads=connection.scope.get("method") in _READING_METHODS)
    return key


def require_scope(key: ApiKey, *, reads: bool) -> None:
    """`reads`: the request changes nothing. Raises MissingScope."""
    if Scope.RESPONSES not in key.scopes and not (reads and Scope.READ in key.scopes):
        raise MissingScope(Scope.READ if reads else Scope.RESPONSES)


def require_model(key: ApiKey, model: str) -> None:
    """Raises ModelNotAllowed unless requests with this key may use the model."""
    if not may_use(model, key.allowed_models, key.policy.models):
        raise ModelNotAllowed(admin_id(PROJECT, key.project_id), model)


async def _authorized_project(connection: HTTPConnection) -> UUID:
    return (await authorize(connection)).project_id


AnyKey = Annotated[ApiKey, Depends(authenticate)]
"""The request's key, whatever its scopes."""


async def authorize_admin(connection: HTTPConnection) -> ApiKey:
    """The request's key, which may change projects and keys. Raises MissingScope, and what
    `authenticate` raises."""
    key = await authenticate(connection)
    if Scope.ADMIN not in key.scopes:
        record = request_record(connection)
        keys: Keys = connection.app.state.keys
        keys.refused.add_unauthorized(actor_of(connection), f"{record.method} {record.route}")
        raise MissingScope(Scope.ADMIN)
    return key


async def _authorize_files(connection: HTTPConnection) -> ApiKey:
    key = await authenticate(connection)
    if Scope.FILES not in key.scopes:
        require_scope(key, reads=connection.scope.get("method") in _READING_METHODS)
    return key


FilesKey = Annotated[ApiKey, Depends(_authorize_files)]
"""The request's key, which may use the files of its project."""
Admin = Annotated[ApiKey, Depends(authorize_admin)]
"""The request's key, which may change projects and keys."""
Key = Annotated[ApiKey, Depends(authorize)]
"""The request's key, with the policy of its project."""
Project = Annotated[UUID, Depends(_authorized_project)]
"""The project of the request's key."""
