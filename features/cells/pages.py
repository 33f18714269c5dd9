"""All cells in the console of one of them."""

from starlette.responses import Response

from features.cells.remote import ask_all, merged
from features.cells.views import COLUMNS
from features.console.page import Page, Visit, choice


async def show(visit: Visit) -> Response:
    """The rows of one view of all cells, and which of them do not answer."""
    view = choice(visit.query, "view", COLUMNS, "projects")
    answers = await ask_all(visit.state.settings.cells, view)
    return visit.page(
        "cells.html",
        answers=answers,
        rows=merged(answers),
        columns=("cell", *COLUMNS[view]),
        views=[(name, name) for name in COLUMNS],
        chosen=view,
    )


PAGES = (Page("/cells", show, menu="Cells"),)
