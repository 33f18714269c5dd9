"""The keys of a project in the console: one is made and shown once, and one is revoked."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.console.access import OPERATORS
from features.console.page import Change, Page, PageError, Visit, confirmed, not_found
from features.tenants.bodies import PROJECT_SCOPES, grant_of
from features.tenants.project_pages import find_project, project_id
from features.tenants.service import KeyMadeBefore, create_key, revoke_key
from models.db.database import Connection, find_by_id
from models.db.queries import organization
from models.db.queries.organization import KeyDetails, ProjectDetails
from models.errors import InvalidRequest
from models.ids import API_KEY, admin_id, new_uuid, parse_admin_id
from models.keys import KeyGrant
from models.projects.scopes import Scope
from models.time_text import parse_duration

_key_id = partial(admin_id, API_KEY)
_parse_key = partial(parse_admin_id, API_KEY)
_MEANINGS = {
    Scope.RESPONSES: "everything of the project",
    Scope.READ: "only what changes nothing",
    Scope.FILES: "files and vector stores",
    Scope.CONSOLE: "a login to this console that shows the project alone; nothing of the API",
}


@dataclass(frozen=True, slots=True)
class KeyForm:
    """The form as it is shown."""

    project: ProjectDetails
    texts: QueryParams
    scopes: list[str]
    mistakes: Mapping[str, str]
    """by field"""

    def page(self, visit: Visit) -> Response:
        """The page."""
        return visit.page(
            "key_form.html",
            status=400 if self.mistakes else 200,
            form=self,
            public_id=project_id(self.project.id),
            meanings=[(name, _MEANINGS[Scope(name)]) for name in PROJECT_SCOPES],
            # Sent twice, the form makes one key: a second one would be shown to nobody.
            key_id=_key_id(new_uuid()),
        )


async def ask(visit: Visit) -> Response:
    """The form of a new key."""
    project = await find_project(visit)
    return KeyForm(project, QueryParams(), [Scope.RESPONSES.value], {}).page(visit)


async def create(visit: Visit) -> Response:
    """Makes a key, and shows it: the answer to this form is the only page that has it."""
    fields = await visit.form(visit.user.token)
    project = await find_project(visit)
    scopes = fields.getlist("scopes")
    try:
        grant = _grant(fields, scopes)
    except InvalidRequest as wrong:
        mistakes = {wrong.param or "": wrong.message}
        return KeyForm(project, fields, scopes, mistakes).page(visit)
    made, value = await _made(visit, project, grant, fields.get("key", ""))
    return visit.page(
        "key_made.html",
        key=made,
        value=value,
        public_id=project_id(project.id),
        is_login=Scope.CONSOLE in grant.scopes,
    )


def _grant(fields: QueryParams, scopes: list[str]) -> KeyGrant:
    """By the rules of the admin API. Raises InvalidRequest."""
    if not scopes:
        raise InvalidRequest("Choose what the key may do.", param="scopes")
    body: dict[str, Any] = {"scopes": scopes, "name": fields.get("name", "").strip() or None}
    models = fields.get("allowed_models", "").split()
    body["allowed_models"] = models or None
    if text := fields.get("expires_in_seconds", "").strip():
        body["expires_in_seconds"] = _seconds(text)
    return grant_of(body)


def _seconds(text: str) -> int:
    try:
        lifetime = parse_duration(text)
    except OverflowError:
        lifetime = timedelta.max
    if lifetime is None:
        raise InvalidRequest(
            "Write a duration such as 12h or 90d; empty: for ever.", param="expires_in_seconds"
        )
    return int(lifetime.total_seconds())


async def _made(
    visit: Visit, project: ProjectDetails, grant: KeyGrant, public_id: str
) -> tuple[KeyDetails, str]:
    key = _parse_key(public_id)
    try:
        async with visit.pool.connection() as connection:
            made = await create_key(connection, project, grant, visit.actor, key=key)
    except KeyMadeBefore:
        raise PageError(
            409,
            "This key was made before",
            "It was shown once, and cannot be shown again. If nobody has it, revoke it on the page "
            "of the project, and make another one.",
        ) from None
    if made is None:
        raise PageError(409, "The project is deleted", "It gets no more keys.")
    return made


async def _revoke(visit: Visit, fields: QueryParams) -> Change:
    """Revokes a key."""
    key = await _key(visit, fields.get("id", ""))
    used = "never" if key.last_used_at is None else f"{key.last_used_at:%Y-%m-%d %H:%M} UTC"

    async def make(connection: Connection) -> None:
        await revoke_key(connection, key, visit.actor)

    return Change(
        title=f"Revoke the key {key.prefix}…?",
        meaning="Requests with it are refused within seconds, for ever. Responses that it has "
        "created go on.",
        label="Revoke",
        back=f"/projects/{project_id(key.project_id)}",
        make=make,
        facts=[
            ("Project", key.project),
            ("Name", key.name or "none"),
            ("Scopes", ", ".join(key.scopes)),
            ("Last used", used),
        ],
    )


async def _key(visit: Visit, public_id: str) -> KeyDetails:
    key = await find_by_id(visit.pool, organization.KEY_OF_ANY_PROJECT, _parse_key(public_id))
    if key is None:
        raise not_found("key")
    return key


PAGES = (
    *confirmed("/projects/keys/revoke", _revoke),
    Page("/projects/{id}/keys/new", ask, roles=OPERATORS),
    Page("/projects/{id}/keys/new", create, method="POST"),
)
