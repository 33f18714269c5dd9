"""Lists of tools of MCP servers in Redis, shared by the responses of a project for as long as the
server says (`ttlMs` of MCP 2026-07-28). Servers that say nothing are asked each time.

Redis may be lost or full at any moment: that is a miss. The lists of a project are the fields of
one hash, named by a digest of address and credentials. A project with too many lists begins again.
"""

import asyncio
import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
import structlog
from redis.asyncio import Redis

from models.redis.client import REDIS_ERRORS
from models.secrets import NoKey, Sealer

logger = structlog.get_logger()

_PATIENCE = 0.5
"""Seconds for a command."""
_MAX_LISTS = 64
"""Lists of a project."""
_MAX_BYTES = 512 * 1024
"""Of a list as JSON. A longer one is not kept."""
_MAX_TTL = 3600
"""Seconds that a list is kept at most, whatever its server says."""


@dataclass(frozen=True, slots=True)
class ListingCache:
    """The lists of all projects."""

    redis: Redis
    sealer: Sealer

    async def get(self, project: UUID, server: dict[str, Any]) -> list[dict[str, Any]] | None:
        """The tools of a server: its address and the headers with which it is asked. None: not
        known."""
        try:
            mark = self.sealer.fingerprint(server)
            async with asyncio.timeout(_PATIENCE):
                raw = await self.redis.hget(_key(project), mark)
            kept = None if raw is None else orjson.loads(raw)
        except (NoKey, TimeoutError, ValueError, *REDIS_ERRORS) as error:
            logger.info("mcp_list_not_cached", error=type(error).__name__)
            return None
        if kept is None or kept["until"] < time.time():
            return None
        tools: list[dict[str, Any]] = kept["tools"]
        return tools

    async def put(
        self, project: UUID, server: dict[str, Any], tools: list[dict[str, Any]], ttl: float
    ) -> None:
        """Keeps the tools for `ttl` seconds."""
        seconds = int(min(ttl, _MAX_TTL))
        if seconds <= 0:
            return
        try:
            mark = self.sealer.fingerprint(server)
            value = orjson.dumps({"until": time.time() + seconds, "tools": tools})
            if len(value) > _MAX_BYTES:
                return
            async with asyncio.timeout(_PATIENCE):
                if await self.redis.hlen(_key(project)) >= _MAX_LISTS:
                    await self.redis.delete(_key(project))
                await self.redis.hset(_key(project), mark, value)
                await self.redis.expire(_key(project), _MAX_TTL)
        except (NoKey, TimeoutError, TypeError, *REDIS_ERRORS) as error:
            logger.info("mcp_list_not_cached", error=type(error).__name__)


def _key(project: UUID) -> str:
    return f"mcp-lists:{project.hex}"
