"""The console: a form that makes an endpoint. Its signing secret is shown once."""

from dataclasses import dataclass

from starlette.datastructures import QueryParams
from starlette.responses import Response

from features.console.page import PageError, Visit
from features.webhooks import service
from features.webhooks.events import EventType
from features.webhooks.service import EndpointFields, EndpointProject
from models.db.database import fetch_idempotent
from models.db.queries.organization import FIND_PROJECTS, LIST_PROJECTS
from models.egress import EgressRefused
from models.projects.policy import ProjectPolicy
from models.secrets import NoKey

_MAX_NAME = 200
"""Characters, as in the API."""
_LISTED_PROJECTS = 200
"""Projects that the form offers; any other can be typed."""


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    """What the form has."""

    project: str = "default"
    name: str = ""
    url: str = ""
    types: tuple[str, ...] = ()
    """of events; empty: all"""

    @classmethod
    def from_fields(cls, fields: QueryParams) -> "NewEndpoint":
        """Of a form that was sent, or of the address of the page."""
        texts = {
            name: fields.get(name, default).strip()
            for name, default in (("project", "default"), ("name", ""), ("url", ""))
        }
        return cls(**texts, types=tuple(fields.getlist("type")))


async def show_form(visit: Visit) -> Response:
    """The empty form."""
    visit.require_operator()
    return await _form(visit, NewEndpoint.from_fields(visit.query))


async def make(visit: Visit) -> Response:
    """Makes the endpoint, and shows its secret; or the form again, with what is wrong."""
    wanted = NewEndpoint.from_fields(await visit.form(visit.user.token))
    try:
        made = await _make(visit, wanted)
    except PageError as mistake:
        return await _form(visit, wanted, mistake)
    return visit.page(
        "webhook_made.html",
        wanted=wanted,
        public_id=service.public_id(made.endpoint),
        secret=made.secret,
    )


async def _form(visit: Visit, wanted: NewEndpoint, mistake: PageError | None = None) -> Response:
    values = {"include_archived": False, "after": None, "max_rows": _LISTED_PROJECTS}
    projects = await fetch_idempotent(visit.pool, LIST_PROJECTS, values)
    return visit.page(
        "webhook_form.html",
        status=200 if mistake is None else mistake.status,
        wanted=wanted,
        mistake=mistake,
        projects=[project.name for project in projects],
        types=[event.value for event in EventType],
        max_name=_MAX_NAME,
    )


async def _make(visit: Visit, wanted: NewEndpoint) -> service.SigningSecret:
    """Raises PageError (400, 409) with what is wrong."""
    fields = EndpointFields(wanted.name, wanted.url, _types(wanted))
    if len(wanted.name) > _MAX_NAME or not wanted.name.isprintable():
        raise PageError(400, "No name", f"A name has at most {_MAX_NAME} characters of one line.")
    project, most = await _project(visit, wanted.project), visit.state.settings.webhooks.endpoints
    sealer, egress = visit.state.sealer, visit.state.egress
    try:
        async with visit.pool.connection() as connection:
            made = await service.create(
                connection, project, sealer, egress, fields, most, visit.actor
            )
    except EgressRefused as refusal:
        raise PageError(
            400,
            "Not reachable",
            f"The URL may not be reached: {refusal}. BACKBURNER_EGRESS__ALLOW names exceptions.",
        ) from None
    except NoKey:
        raise PageError(
            409,
            "No sealing key",
            "A signing secret is stored sealed, and there is no key: set BACKBURNER_SECRET_KEYS.",
        ) from None
    if made is None:
        raise PageError(409, "Too many", f"The project has {most} endpoints, or is archived.")
    return made


def _types(wanted: NewEndpoint) -> tuple[str, ...]:
    """All that can be chosen are all: also those of later releases."""
    known = [event.value for event in EventType]
    for name in wanted.types:
        if name not in known:
            raise PageError(400, "No such event", f"There are {', '.join(known)}.")
    return () if set(wanted.types) == set(known) else wanted.types


async def _project(visit: Visit, name: str) -> EndpointProject:
    rows = await fetch_idempotent(visit.pool, FIND_PROJECTS, {"name": name, "digits": None})
    for row in rows:
        if row.name == name and row.archived_at is None:
            egress = ProjectPolicy.from_json(row.policy).egress
            return EndpointProject(row.id, row.name, egress)
    raise PageError(400, "No such project", f"There is no project {name[:100]}.")
