"""A schedule that a command makes: it is checked by what a web process checks with, in this
process."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from cli.addresses import resolve_database
from cli.errors import RequestRefused
from cli.settings import NO_REDIS, child_settings, secret_keys_of
from features.schedules.queries import NOW
from features.schedules.web import Schedules
from features.tenants.key_commands import find_unrevoked_key
from models.config.settings import Settings
from models.db.database import fetch, open_pool
from models.db.queries.api_keys import FIND_API_KEY_BY_ID, ApiKey
from models.db.queries.audit import Actor
from models.errors import ApiError, IncorrectApiKey
from models.features import feature_parts
from models.ownership.lease import Lease
from web.http.auth import require_scope
from web.state import AppState

Json = dict[str, Any]

_CONNECTIONS = 2


async def create_alone(data: Path | None, key: str, body: Json, actor: Actor) -> Json:
    """The new schedule. `key`: how the operator names the key that it runs with. Raises
    RequestRefused with what the API would answer."""
    settings = child_settings(resolve_database(data).dsn, NO_REDIS)
    keys = SecretStr(secret_keys_of(data) or "")
    async with _state_of(settings.model_copy(update={"secret_keys": keys})) as state:
        try:
            found = await _key(state, key)
            return await Schedules.in_state(state).store.create(found, body, actor)
        except ApiError as error:
            raise RequestRefused(f"it is refused: {error.message}") from None


async def _key(state: AppState, name: str) -> ApiKey:
    async with state.pool.connection() as connection:
        named = await find_unrevoked_key(connection, name)
        rows = await fetch(connection, FIND_API_KEY_BY_ID, {"id": named.id})
    if not rows:
        raise IncorrectApiKey
    require_scope(rows[0], reads=False)
    return rows[0]


@asynccontextmanager
async def _state_of(settings: Settings) -> AsyncGenerator[AppState]:
    """What a web process has, without its tasks and its row among the processes."""
    pool = open_pool(settings, "operator", _CONNECTIONS)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(pool.close)
        await pool.open(wait=True)
        state = AppState(settings, "operator", Lease(settings, "web"), pool)
        if state.storage is not None:
            opened.push_async_callback(state.storage.close)
        for part in feature_parts("web"):
            feature = state.features[part.FEATURE] = part.FEATURE(state)
            opened.push_async_callback(feature.close)
        [now] = await fetch(pool, NOW, {})
        state.lease.clock.set(now)
        yield state
