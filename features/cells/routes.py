"""/v1/organization/cell: what a cell shows of itself to those who look at all cells."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from features.cells.views import COLUMNS, read_view
from web.http.auth import Admin
from web.http.json_responses import json_response
from web.http.params import choice
from web.state import app_state

router = APIRouter(prefix="/v1/organization")
ROUTERS = (router,)


@router.get("/cell")
async def retrieve_cell(request: Request, _key: Admin) -> Response:
    """Its name, and the rows of a view."""
    view = choice(request, "view", tuple(COLUMNS)) or "projects"
    state = app_state(request)
    rows = await read_view(state.pool, view)
    return json_response(
        {"object": "cell", "name": state.settings.cell, "view": view, "data": rows}
    )
