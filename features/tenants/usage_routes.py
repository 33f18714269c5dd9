"""/v1/organization/usage and /costs: what projects have used, in OpenAI's shapes
(docs/projects.md)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.db.database import fetch_idempotent
from models.db.queries.usage import USAGE, UsageRow, usage_values
from models.errors import InvalidRequest
from models.ids import API_KEY, PROJECT, admin_id, parse_admin_id
from models.prices import BILLIONTHS
from models.wire.checks.faults import missing
from models.wire.token_counts import UsageKind
from web.http.auth import Admin
from web.http.body import counted_json
from web.http.params import boolean, choice, integer
from web.state import app_state

router = APIRouter(prefix="/v1/organization")

WIDTHS = {"1m": (60, 60, 1440), "1h": (3600, 24, 168), "1d": (86_400, 7, 31)}
"""Width of a bucket -> its seconds, and how many a page has by default and at most."""
COST_WIDTHS = {"1d": (86_400, 7, 180)}
"""The same for costs."""
COST_GROUPS = {
    "project_id": "project_id",
    "user_id": "user_id",
    "api_key_id": "api_key_id",
    "line_item": "model",
    "upstream": "upstream",
}
"""What costs may be grouped by -> the label of usage. A line item is a model."""
_DAY = WIDTHS["1d"][0]
_COMMON_GROUPS = ("project_id", "user_id", "api_key_id", "model")
GROUPS = {
    kind: (
        *_COMMON_GROUPS,
        *(("batch", "service_tier", "completion_window") if kind is UsageKind.COMPLETIONS else ()),
        "upstream",
    )
    for kind in UsageKind
}
"""Kind -> what its usage may be grouped by."""
UNITS = {
    UsageKind.IMAGES: "images",
    UsageKind.AUDIO_SPEECHES: "characters",
    UsageKind.AUDIO_TRANSCRIPTIONS: "seconds",
    UsageKind.CODE: "cpu_milliseconds",
}
"""Kind -> the field with what is counted besides requests and tokens."""
_NOT_KEPT = ("sizes", "sources")
"""Filters of OpenAI's images that this server cannot apply."""
LATEST = 2**33
MAX_RESULTS = 10_000
"""Results of a page: it ends with the last bucket that is whole."""
_PAGE = "page_"


@dataclass(frozen=True, slots=True)
class _Page:
    """The buckets that a request asks for. Times are seconds since the epoch."""

    width: int
    start: int
    first: int
    """the begin of the first bucket"""
    page_end: int
    """the end of the last bucket of a full page"""
    end: int | None
    """None: until now"""

    @classmethod
    def of(cls, request: Request, widths: Mapping[str, tuple[int, int, int]] = WIDTHS) -> "_Page":
        """Raises InvalidRequest."""
        width, default_limit, max_limit = widths[
            choice(request, "bucket_width", tuple(widths)) or "1d"
        ]
        start = integer(request, "start_time", minimum=0, maximum=LATEST)
        if start is None:
            raise missing("start_time")
        end = integer(request, "end_time", minimum=0, maximum=LATEST)
        limit = integer(request, "limit", minimum=1, maximum=max_limit) or default_limit
        first = _page_start(request, width) or start // width * width
        return cls(width, start, first, first + limit * width, end)

    def until(self, bucket: int) -> "_Page":
        """The page without this bucket and those behind it. Raises InvalidRequest if none is
        left."""
        if bucket == self.first:
            raise InvalidRequest(
                f"One bucket has more than {MAX_RESULTS} results. Choose projects, keys or models, "
                "or fewer groups.",
                param="group_by",
                code="invalid_value",
            )
        return replace(self, page_end=bucket)

    @property
    def bounds(self) -> tuple[int, int]:
        """From when to before when it sums up. Without an end nothing that is counted is left out,
        although our clock may lag behind that of Postgres."""
        return (
            max(self.first, self.start) if self.width < _DAY else self.first,
            self.page_end if self.end is None else min(self.page_end, self.end),
        )

    def to_json(self, results: dict[int, list[dict[str, Any]]], now: int) -> dict[str, Any]:
        """`results`: by the begin of their bucket."""
        end = self.end
        if end is None:
            end = max(now + 1, *(begin + self.width for begin in results), 0)
        last = min(self.bounds[1], end)
        has_more = self.page_end < end
        return {
            "object": "page",
            "data": [
                {
                    "object": "bucket",
                    "start_time": begin,
                    "end_time": begin + self.width,
                    "results": results.get(begin, []),
                }
                for begin in range(self.first, last, self.width)
            ],
            "has_more": has_more,
            "next_page": f"{_PAGE}{last}" if has_more else None,
        }


def _route(kind: UsageKind) -> Callable[..., Awaitable[Response]]:
    async def usage(request: Request, _key: Admin) -> Response:
        return await counted_json(request, await _usage(request, kind))

    return usage


for _kind in UsageKind:
    router.add_api_route(
        f"/usage/{_kind.value}",
        _route(_kind),
        methods=["GET"],
        name=f"usage_{_kind.value}",
        description="What was used, in buckets of time.",
    )


@router.get("/costs", name="costs", description="What it cost, in buckets of a day.")
async def costs(request: Request, _key: Admin) -> Response:
    """Sums of the known costs."""
    page = _Page.of(request, COST_WIDTHS)
    groups = _groups(request, tuple(COST_GROUPS))
    models = _texts(request, "line_items") or None
    values = _values(request, page, [COST_GROUPS[name] for name in groups], models=models)
    page, rows = await _read(request, page, values)
    state = app_state(request)
    currency = state.settings.prices.currency.lower()
    results: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        results.setdefault(row.bucket, []).append(_cost_result(row, currency))
    return await counted_json(request, page.to_json(results, state.lease.clock.now()))


async def _usage(request: Request, kind: UsageKind) -> dict[str, Any]:
    """What was used of this kind. Raises InvalidRequest."""
    page, groups = _Page.of(request), _groups(request, GROUPS[kind])
    for name in _NOT_KEPT:
        if _texts(request, name):
            raise InvalidRequest(
                f"Unsupported parameter: '{name}' is not kept with the usage.",
                param=name,
                code="unsupported_parameter",
            )
    models, batch = _texts(request, "models") or None, _batch(request)
    values = _values(request, page, groups, kind=kind.value, models=models, batch=batch)
    page, rows = await _read(request, page, values)
    state = app_state(request)
    results: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        result = _result(row, kind)
        if kind is UsageKind.COMPLETIONS and "completion_window" in groups:
            result["price_factor"] = state.settings.prices.factor_of(row.completion_window)
        results.setdefault(row.bucket, []).append(result)
    return page.to_json(results, state.lease.clock.now())


def _values(
    request: Request, page: _Page, groups: Sequence[str], **wanted: object
) -> dict[str, object]:
    """The parameters of USAGE. `wanted`: further ones that are not null."""
    return usage_values(*page.bounds, page.width, groups) | {
        "project_ids": _ids(request, "project_ids", PROJECT),
        "api_key_ids": _ids(request, "api_key_ids", API_KEY),
        "max_rows": MAX_RESULTS + 1,
        **wanted,
    }


async def _read(
    request: Request, page: _Page, values: dict[str, object]
) -> tuple[_Page, list[UsageRow]]:
    """The rows, and the page that they fill. Raises InvalidRequest."""
    if _texts(request, "user_ids"):
        return page, []
    rows = await fetch_idempotent(app_state(request).pool, USAGE, values)
    if len(rows) <= MAX_RESULTS:
        return page, rows
    # The last bucket may have more results than were read: the next page begins with it.
    last = rows[-1].bucket
    return page.until(last), [row for row in rows if row.bucket < last]


def _groups(request: Request, among: Sequence[str]) -> list[str]:
    groups = _texts(request, "group_by")
    if unknown := sorted(set(groups).difference(among)):
        raise InvalidRequest(
            f"Invalid value: '{unknown[0][:100]}'. Supported values are: {', '.join(among)}.",
            param="group_by",
            code="invalid_value",
        )
    return groups


def _page_start(request: Request, width: int) -> int | None:
    """The begin of the requested page. Raises InvalidRequest."""
    page = request.query_params.get("page")
    if page is None:
        return None
    digits = page.removeprefix(_PAGE)
    is_ours = page != digits and digits.isascii() and digits.isdigit() and len(digits) < 11
    if not is_ours or int(digits) % width:
        raise InvalidRequest(
            "Invalid 'page': it is no 'next_page' of this list.", param="page", code="invalid_value"
        )
    return int(digits)


def _batch(request: Request) -> bool | None:
    """Whether only requests in batches are wanted, or only others. None: both."""
    if "batch" not in request.query_params:
        return None
    return boolean(request, "batch", default=False)


def _texts(request: Request, name: str) -> list[str]:
    """The values of a list, which clients spell `name`, `name[]` or with commas."""
    given = request.query_params.getlist(name) + request.query_params.getlist(f"{name}[]")
    return [text.replace("\0", "") for value in given for text in value.split(",") if text]


def _ids(request: Request, name: str, prefix: str) -> list[Any] | None:
    """None: all. An id of another form names nothing."""
    texts = _texts(request, name)
    if not texts:
        return None
    return [found for text in texts if (found := parse_admin_id(prefix, text)) is not None]


def _cost_result(row: UsageRow, currency: str) -> dict[str, Any]:
    amount = None
    if row.cost is not None:
        amount = {"value": row.cost / BILLIONTHS, "currency": currency}
    return {
        "object": "organization.costs.result",
        "amount": amount,
        "line_item": row.model,
        "project_id": None if row.project_id is None else admin_id(PROJECT, row.project_id),
        "user_id": None,
        "api_key_id": None if row.api_key_id is None else admin_id(API_KEY, row.api_key_id),
        "upstream": row.upstream,
        "quantity": None,
        "num_requests_without_cost": row.unpriced,
    }


def _result(row: UsageRow, kind: UsageKind) -> dict[str, Any]:
    result: dict[str, Any] = {
        "object": f"organization.usage.{kind.value}.result",
        "input_tokens": row.input_tokens,
        "output_tokens": row.output_tokens,
        "num_model_requests": row.requests,
        "project_id": None if row.project_id is None else admin_id(PROJECT, row.project_id),
        "user_id": None,
        "api_key_id": None if row.api_key_id is None else admin_id(API_KEY, row.api_key_id),
        "model": row.model,
        "upstream": row.upstream,
    }
    if kind in UNITS:
        result[UNITS[kind]] = row.units
    if kind is UsageKind.CODE:
        result["num_sessions"] = row.requests
    if kind is UsageKind.COMPLETIONS:
        result |= {
            "input_cached_tokens": row.cached_tokens,
            "output_reasoning_tokens": row.reasoning_tokens,
            "input_audio_tokens": 0,
            "output_audio_tokens": 0,
            "batch": row.batch,
            "service_tier": row.service_tier,
            "completion_window": row.completion_window,
            "price_factor": None,
        }
    return result
