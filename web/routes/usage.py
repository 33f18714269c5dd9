"""/v1/organization/usage: what projects have used, in OpenAI's shapes (docs/projects.md)."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from models.db.database import fetch_idempotent
from models.db.queries.usage import USAGE, UsageRow
from models.errors import InvalidRequest
from models.ids import API_KEY, PROJECT, admin_id, parse_admin_id
from models.wire.checks.faults import missing
from web.http.auth import Admin
from web.http.json_responses import json_response
from web.http.params import boolean, choice, integer
from web.state import app_state

router = APIRouter(prefix="/v1/organization/usage", include_in_schema=False)

_WIDTHS = {"1m": (60, 60, 1440), "1h": (3600, 24, 168), "1d": (86_400, 7, 31)}
"""Width of a bucket -> its seconds, and how many a page has by default and at most."""
_GROUPS = ("project_id", "user_id", "api_key_id", "model", "batch", "service_tier", "upstream")
_LATEST = 2**33
_PAGE = "page_"


@router.get("/completions")
async def completions(request: Request, _key: Admin) -> Response:
    """What responses and chat completions have used, in buckets of time."""
    width, default_limit, max_limit = _WIDTHS[
        choice(request, "bucket_width", tuple(_WIDTHS)) or "1d"
    ]
    start = integer(request, "start_time", minimum=0, maximum=_LATEST)
    if start is None:
        raise missing("start_time")
    state = app_state(request)
    given_end = integer(request, "end_time", minimum=0, maximum=_LATEST)
    limit = integer(request, "limit", minimum=1, maximum=max_limit) or default_limit
    first = _page_start(request, width) or start // width * width
    page_end = first + limit * width
    # Without an end nothing that is counted is left out, although our clock may lag behind that of
    # Postgres.
    last = page_end if given_end is None else min(page_end, given_end)
    groups = _texts(request, "group_by")
    if unknown := sorted(set(groups) - set(_GROUPS)):
        raise InvalidRequest(
            f"Invalid value: '{unknown[0][:100]}'. Supported values are: {', '.join(_GROUPS)}.",
            param="group_by",
            code="invalid_value",
        )
    values = {
        "first": max(first, start) if width < _WIDTHS["1d"][0] else first,
        "last": last,
        "width": width,
        "group_by": groups,
        "project_ids": _ids(request, "project_ids", PROJECT),
        "api_key_ids": _ids(request, "api_key_ids", API_KEY),
        "models": _texts(request, "models") or None,
    }
    is_empty = boolean(request, "batch", default=False) or bool(_texts(request, "user_ids"))
    rows = [] if is_empty else await fetch_idempotent(state.pool, USAGE, values)
    by_bucket: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_bucket.setdefault(row.bucket, []).append(_result(row, groups))
    end = given_end
    if end is None:
        end = max(state.lease.clock.now() + 1, *(bucket + width for bucket in by_bucket), 0)
    last = min(last, end)
    has_more = page_end < end
    return json_response(
        {
            "object": "page",
            "data": [
                {
                    "object": "bucket",
                    "start_time": begin,
                    "end_time": begin + width,
                    "results": by_bucket.get(begin, []),
                }
                for begin in range(first, last, width)
            ],
            "has_more": has_more,
            "next_page": f"{_PAGE}{last}" if has_more else None,
        }
    )


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


def _result(row: UsageRow, groups: list[str]) -> dict[str, Any]:
    return {
        "object": "organization.usage.completions.result",
        "input_tokens": row.input_tokens,
        "input_cached_tokens": row.cached_tokens,
        "output_tokens": row.output_tokens,
        "output_reasoning_tokens": row.reasoning_tokens,
        "input_audio_tokens": 0,
        "output_audio_tokens": 0,
        "num_model_requests": row.requests,
        "project_id": None if row.project_id is None else admin_id(PROJECT, row.project_id),
        "user_id": None,
        "api_key_id": None if row.api_key_id is None else admin_id(API_KEY, row.api_key_id),
        "model": row.model,
        "batch": False if "batch" in groups else None,
        "service_tier": row.service_tier,
        "upstream": row.upstream,
    }
