"""An upstream's own count of a request's tokens, where it offers one (docs/state.md): OpenAI's, vLLM's and llama.cpp's ways to ask."""

from typing import Any, Protocol

import aiohttp
import httpx2
import orjson
import structlog

from models.config.upstream import UpstreamSettings

logger = structlog.get_logger()

_TIMEOUT = httpx2.Timeout(10.0)
_MAX_BODY = 32 * 1024 * 1024
"""Bytes of an answer: a list of all tokens may be in it."""
_COUNTED_FIELDS = (
    "model",
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "text",
    "reasoning",
    "parallel_tool_calls",
    "truncation",
)
"""What OpenAI's count takes of a request."""


class _NoCount(Exception):
    """The upstream's answer is no count."""


class _Post(Protocol):
    async def __call__(self, path: str, body: dict[str, Any]) -> Any:
        """The JSON that the upstream answers."""


async def count_upstream(
    http: httpx2.AsyncClient, settings: UpstreamSettings, body: dict[str, Any]
) -> int | None:
    """Tokens of this request as the upstream counts them; None where it offers no count, or gives none now."""
    count = _count_method(settings)
    if count is None:
        return None

    async def post(path: str, sent: dict[str, Any]) -> Any:
        return await _post(http, settings, path, sent)

    try:
        tokens = await count(post, body)
    except (
        _NoCount,
        ValueError,
        TypeError,
        KeyError,
        TimeoutError,
        OSError,
        httpx2.HTTPError,
        aiohttp.ClientError,
    ) as error:
        logger.warning("count_unavailable", upstream=settings.name, error=type(error).__name__)
        return None
    return tokens if type(tokens) is int and tokens >= 0 else None


def _count_method(settings: UpstreamSettings) -> Any:
    name = (
        ("responses" if settings.api == "responses" else "none")
        if settings.count == "auto"
        else settings.count
    )
    return {"responses": _responses, "vllm": _vllm, "llama.cpp": _llama_cpp, "none": None}[name]


async def _responses(post: _Post, body: dict[str, Any]) -> Any:
    return (
        await post(
            "/responses/input_tokens",
            {name: body[name] for name in _COUNTED_FIELDS if name in body},
        )
    )["input_tokens"]


async def _vllm(post: _Post, body: dict[str, Any]) -> Any:
    request: dict[str, Any] = {
        name: body[name] for name in ("model", "messages", "tools") if name in body
    }
    return (await post("../tokenize", {**request, "add_generation_prompt": True}))["count"]


async def _llama_cpp(post: _Post, body: dict[str, Any]) -> Any:
    request: dict[str, Any] = {name: body[name] for name in ("messages", "tools") if name in body}
    prompt = (await post("../apply-template", request))["prompt"]
    return len(
        (
            await post(
                "../tokenize", {"content": prompt, "add_special": True, "parse_special": True}
            )
        )["tokens"]
    )


async def _post(
    http: httpx2.AsyncClient, settings: UpstreamSettings, path: str, body: dict[str, Any]
) -> Any:
    """`path` after the base URL; `../` leaves out its last part, `/v1`: those servers keep such routes beside it."""
    base = settings.base_url.rstrip("/")
    url = (
        base.rpartition("/")[0] + path.removeprefix("..") if path.startswith("../") else base + path
    )
    headers = {
        **settings.plain_headers,
        "authorization": f"Bearer {settings.api_key.get_secret_value()}",
        "content-type": "application/json",
        "accept-encoding": "identity",
    }
    request = http.build_request(
        "POST",
        url,
        content=orjson.dumps(body),
        headers=headers,
        params=dict(settings.query) or None,
        timeout=_TIMEOUT,
    )
    answer = await http.send(request, stream=True)
    try:
        if not answer.is_success:
            raise _NoCount
        whole = bytearray()
        async for piece in answer.aiter_raw():
            whole += piece
            if len(whole) > _MAX_BODY:
                raise _NoCount
    finally:
        await answer.aclose()
    return orjson.loads(whole)
