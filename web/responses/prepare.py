"""From the body of a create to a request that may be stored: everything is checked, what it
continues and refers to is read, and its answer is looked up in the cache."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from models.config.settings import Settings
from models.db.database import Pool
from models.db.queries.api_keys import ApiKey
from models.ownership.lease import DatabaseClock
from models.wire.pairing import require_outputs
from models.wire.request import CreateRequest
from web.hooks import CreateCheck
from web.responses.answer_cache import WARM_UP, CacheLookup, RequestCache
from web.responses.continuation import Continuation, load_continuation, pending_steers
from web.responses.opening import Opening, PrecomputedResponse, precompute
from web.responses.validation import (
    RequestValidation,
    match_calls,
    require_valid_approvals,
)


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that may be stored, and what belongs to it."""

    request: CreateRequest
    """with its item references resolved"""
    continuation: Continuation
    lookup: CacheLookup
    opening: Opening
    precomputed: PrecomputedResponse | None
    """None: a worker has to run it"""
    steers: tuple[UUID, ...] = ()
    """the pending steers with which its input begins"""


class PrepareRequest:
    """Checks create requests."""

    def __init__(
        self,
        settings: Settings,
        pool: Pool,
        validation: RequestValidation,
        request_cache: RequestCache,
        clock: DatabaseClock,
        checks: Sequence[CreateCheck],
    ) -> None:
        self.validation = validation
        self._max_history = settings.limits.history
        self._max_waiting = settings.limits.waiting_chain
        self._pool = pool
        self._request_cache = request_cache
        self._clock = clock
        self._checks = checks

    async def prepare(
        self,
        key: ApiKey,
        request: CreateRequest,
        unstored_ids: Collection[UUID],
        *,
        new_id: UUID,
        generate: bool,
        takes_steers: bool = False,
    ) -> PreparedRequest:
        """The request with what it continues, and its answer if that is known.

        `new_id`: of its response. `unstored_ids`: responses with `store: false` that it may
        continue all the same. `generate`: False for a warm-up, whose answer is empty.
        `takes_steers`: its input begins with the pending steers of what it continues; the caller
        commits them. Raises InvalidRequest or NotFound.
        """
        continuation = await load_continuation(
            self._pool, key.project_id, request, unstored_ids, self._max_waiting
        )
        steers = await pending_steers(self._pool, continuation) if takes_steers else []
        if steers:
            pending = [item for steer in steers for item in steer.items]
            request = replace(request, input=[*pending, *request.input])
        request = await self._check_history(key, request, continuation)
        lookup = (
            await self._request_cache.lookup(key, request, continuation) if generate else WARM_UP
        )
        opening = Opening.of(request, new_id, self._clock.now())
        precomputed = None
        if lookup.answer is not None:
            precomputed = precompute(opening, lookup.answer, continuation.size_with(request.input))
        taken = tuple(steer.id for steer in steers)
        return PreparedRequest(request, continuation, lookup, opening, precomputed, taken)

    async def _check_history(
        self, key: ApiKey, request: CreateRequest, continuation: Continuation
    ) -> CreateRequest:
        """The request with its item references resolved.

        Raises InvalidRequest if its input does not fit what it continues.
        """
        project = key.project_id
        continuation.require_new(request.input)
        continuation.require_size(self._max_history, request.input)
        upstreams = self.validation.upstreams_of(key, request.model)
        items = await self.validation.resolve_items(request.input, project, upstreams=upstreams)
        if items is not request.input:
            request = replace(request, input=items)
        native = bool(upstreams) and upstreams[0].api == "responses"
        for check in self._checks:
            await check(request, key, native=native)
        await match_calls(self._pool, continuation, items, require_outputs)
        await require_valid_approvals(self._pool, continuation, request)
        return request
