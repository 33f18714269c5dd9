"""Forwarded endpoints in a web process: the calls of upstreams, and what they have used, written to
the database together (docs/proxied-endpoints.md).

An upstream gets the operator's credential and headers, and of the client's request only the body.
"""

import asyncio
from dataclasses import asdict

import aiohttp
import psycopg
import structlog

from features.proxy.endpoints import ProxiedEndpoint
from features.proxy.requests import OutgoingBody
from features.proxy.response import CONNECTION_ERRORS, ProxiedCall, ProxiedResponse, upstream_error
from models.config.routes import Destination, limits_of
from models.config.upstream import UpstreamSettings
from models.config.upstream_access import request_headers
from models.db.database import DATABASE_UNAVAILABLE, Jsonb, Pool, execute
from models.db.queries.api_keys import ApiKey
from models.db.queries.usage import INSERT_PROXIED
from models.errors import UPSTREAM_UNREACHABLE, RunFailed
from models.ids import new_uuid
from models.load.budget import SharedBudget
from models.prices import PriceList, UsedAmounts
from models.wire.token_counts import TokenUsage, UsageKind
from web.state import AppState, Feature

_INTERVAL = 1.0
_MAX_WAITING = 100_000
"""Entries that wait while Postgres is unavailable; further ones are dropped."""


class ProxiedUsage:
    """Collects entries of one web process, and writes them once a second. A process that is killed
    loses those of its last second."""

    def __init__(self, pool: Pool, prices: PriceList | None = None) -> None:
        """`prices` None: no cost is known."""
        self._pool = pool
        self._prices = prices
        self._waiting: list[dict[str, object]] = []

    def add_tokens(
        self,
        key: ApiKey,
        model: str,
        upstream: str,
        usage: TokenUsage,
        kind: UsageKind = UsageKind.COMPLETIONS,
        units: int = 0,
        tier: str | None = None,
    ) -> None:
        """A model was called for this key. `model`: as clients name it. `units`: what its kind
        counts besides tokens. `tier`: the service tier, for the cost."""
        if len(self._waiting) >= _MAX_WAITING:
            return
        tokens = asdict(usage)
        del tokens["seconds"]
        self._waiting.append(
            {
                "entry_id": str(new_uuid()),
                "project_id": str(key.project_id),
                "api_key_id": str(key.id),
                "model": model,
                "upstream": upstream,
                "service_tier": None,
                "kind": kind.value,
                "requests": 1,
                **tokens,
                "units": units,
                "cost": self._cost(model, upstream, usage, units, tier),
            }
        )

    def _cost(
        self, model: str, upstream: str, usage: TokenUsage, units: int, tier: str | None
    ) -> int | None:
        """None: not known. Without any token the upstream has not counted them."""
        if self._prices is None:
            return None
        amounts = UsedAmounts(
            input_tokens=usage.input_tokens,
            cached_tokens=usage.cached_tokens,
            output_tokens=usage.output_tokens,
            units=units,
            has_tokens=bool(usage.input_tokens or usage.output_tokens),
        )
        return self._prices.cost(model, upstream, amounts, tier=tier)

    async def run(self) -> None:
        """Writes what was collected. Never returns."""
        while True:
            await asyncio.sleep(_INTERVAL)
            await self.store()

    async def store(self) -> None:
        """Writes what was collected until now. If Postgres is unavailable, it is kept."""
        entries = self._waiting
        if not entries:
            return
        self._waiting = []
        try:
            await self._insert(entries)
        except DATABASE_UNAVAILABLE as error:
            logger.warning("proxied_usage_not_stored", error=str(error).strip())
            self._waiting = entries + self._waiting

    async def _insert(self, entries: list[dict[str, object]]) -> None:
        """Inserts the entries. One that PostgreSQL refuses is left out, and logged: it must not
        cost the others. Raises what DATABASE_UNAVAILABLE names."""
        try:
            await execute(self._pool, INSERT_PROXIED, {"entries": Jsonb(entries)})
        except psycopg.DataError as error:
            if len(entries) == 1:
                fields = {name: entries[0][name] for name in ("project_id", "kind", "upstream")}
                logger.exception("proxied_usage_refused", error=str(error).strip(), **fields)
                return
            middle = len(entries) // 2
            await self._insert(entries[:middle])
            await self._insert(entries[middle:])


logger = structlog.get_logger()

_READ_BUFFER = 64 * 1024
"""Bytes that may wait to be read; aiohttp stops receiving at twice that."""


class Proxy(Feature):
    """The connections to the upstreams of forwarded requests, and what these have used."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        prices = PriceList(state.settings.prices, state.settings)
        self.usage = ProxiedUsage(state.pool, prices)
        web = state.settings.web
        self.spools = SharedBudget(
            "uploads", web.spools, web.spools_per_project, web.bodies_wait.total_seconds()
        )
        """Bytes of uploads in temporary files."""
        self._session: aiohttp.ClientSession | None = None

    async def forward(self, call: ProxiedCall) -> ProxiedResponse:
        """The response of the first upstream of the call that accepts the request.

        Cancelling closes the connection. Raises RunFailed (502, 504) if no upstream responds, and
        the error of a body that the client does not send completely.
        """
        *others, last = call.upstreams
        for destination in others:
            try:
                proxied = await self._send(destination, call)
            except RunFailed as failure:
                if not call.request.may_repeat:
                    raise
                _log_skipped(destination, failure.message)
                continue
            if not proxied.should_try_next:
                return proxied
            await proxied.close()
            _log_skipped(destination, f"status {proxied.status_code}")
        return await self._send(last, call)

    def start(self) -> None:
        """Begins to store what requests have used."""
        self.state.side_tasks.start(self.usage.run(), "proxied-usage")

    async def close(self) -> None:
        """Stores what was used last, and closes all connections."""
        await self.usage.store()
        if self._session is not None:
            await self._session.close()

    async def _send(self, destination: Destination, call: ProxiedCall) -> ProxiedResponse:
        body = await call.request.open(destination.model)
        upstream = destination.upstream
        limits = limits_of(self.state.settings.limits, upstream)
        # A stream begins soon; a response in one piece begins when the model has finished.
        timeout = limits.first_token if call.request.wants_stream else limits.turn
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                upstream_response = await self._post(upstream, call.endpoint, body)
        except TimeoutError:
            raise upstream_error(504, "The upstream did not answer in time.") from None
        except CONNECTION_ERRORS as error:
            if call.request.failure is not None:
                raise call.request.failure from None
            logger.info("upstream_unreachable", upstream=upstream.name, error=type(error).__name__)
            raise upstream_error(502, UPSTREAM_UNREACHABLE) from None
        proxied = ProxiedResponse(
            call,
            upstream_response,
            upstream,
            limits,
            self.state.settings.web.send_timeout.total_seconds(),
            self.state.grace_expired,
        )
        try:
            return await proxied.check_head()
        except BaseException:
            await proxied.close()
            raise

    async def _post(
        self, upstream: UpstreamSettings, endpoint: ProxiedEndpoint, body: OutgoingBody
    ) -> aiohttp.ClientResponse:
        return await self._get_session().post(
            f"{upstream.base_url.rstrip('/')}{endpoint.path}",
            params=upstream.plain_query,
            data=body.data,
            headers={**request_headers(upstream), **body.headers, "accept": endpoint.accept},
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(
                total=None, connect=None, sock_connect=upstream.connect_timeout.total_seconds()
            ),
        )

    def _get_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),  # no client may get another client's cookies
                auto_decompress=False,
                read_bufsize=_READ_BUFFER,
                trust_env=True,
            )
        return self._session


def _log_skipped(destination: Destination, reason: str) -> None:
    logger.info("upstream_skipped", upstream=destination.upstream.name, reason=reason)


FEATURE = Proxy
