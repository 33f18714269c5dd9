"""The static files: scripts, the style sheet, the icon. They need no login."""

from starlette.responses import FileResponse, Response

from features.console.errors import PageError
from features.console.page import Page
from features.console.templates import STATIC, static_hash
from features.console.visit import Visit

_MEDIA_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_NAMES = frozenset(file.name for file in STATIC.iterdir() if file.suffix in _MEDIA_TYPES)
_FOREVER = "public, max-age=31536000, immutable"
_SHORT = "public, max-age=60"


async def static_file(visit: Visit) -> Response:
    """A file. If the address has its hash, browsers keep it for ever."""
    name = visit.request.path_params["name"]
    if name not in _NAMES:
        raise PageError(404, "No such file", "There is no file at this address.")
    is_named_by_hash = visit.query.get("v") == static_hash(name)
    return FileResponse(
        STATIC / name,
        media_type=_MEDIA_TYPES[STATIC.joinpath(name).suffix],
        headers={
            "cache-control": _FOREVER if is_named_by_hash else _SHORT,
            "x-content-type-options": "nosniff",
        },
    )


PAGES = (Page("/static/{name}", static_file, needs_login=False),)
