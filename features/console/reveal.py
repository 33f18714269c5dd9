"""Inputs and outputs of clients: hidden, until somebody asks to see them in this session.

The audit log has an entry when a session asks (`console.reveal`), and one for each response whose
page shows them then (`response.reveal`).
"""

from starlette.responses import Response

from features.console.access import Role, delete_reveal_cookie, set_reveal_cookie
from features.console.login import record
from features.console.page import Page, Visit


async def reveal(visit: Visit) -> Response:
    """Shows inputs and outputs in this session, and leads back to the page of the form."""
    fields = await visit.form(visit.user.token)
    await record(visit, "console.reveal")
    answer = visit.redirect(visit.own_path(fields.get("next", "")))
    set_reveal_cookie(visit.request, answer, visit.user, visit.root)
    return answer


async def hide(visit: Visit) -> Response:
    """Hides them again."""
    fields = await visit.form(visit.user.token)
    answer = visit.redirect(visit.own_path(fields.get("next", "")))
    delete_reveal_cookie(visit.request, answer, visit.root)
    return answer


_ROLES = frozenset((Role.OPERATOR, Role.PROJECT))
PAGES = (
    Page("/reveal", reveal, method="POST", roles=_ROLES),
    Page("/hide", hide, method="POST", roles=_ROLES),
)
