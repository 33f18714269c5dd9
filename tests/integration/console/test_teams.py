"""Projects and keys that are made in the console, and a login that sees one project alone."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from psycopg.types.json import Json, Jsonb

from features.console.access import Role
from features.console.app import PAGES
from models.ids import admin_id, batch_id, new_uuid, response_id, vector_store_id
from models.keys import KeyGrant
from models.projects.scopes import Scope
from tests.support import keys
from tests.support.api import until
from tests.support.console import (
    OPERATOR_TOKEN,
    READ_ONLY_TOKEN,
    ConsolePage,
    ConsoleUser,
    console_user,
)
from tests.support.fake_upstream import FakeUpstream, reply
from tests.support.stack import Stack

_KEY = re.compile(r'<pre id="key">(bb-[\w-]{43})</pre>')
_CONSOLE_ONLY = KeyGrant(scopes=frozenset((Scope.CONSOLE,)))
_PROCESS = re.compile(r"process \d+ on ")


async def _insert(stack: Stack, table: str, **values: object) -> None:
    names, marks = ", ".join(values), ", ".join(["%s"] * len(values))
    statement = f"INSERT INTO {table} ({names}) VALUES ({marks}) RETURNING 1"
    await stack.value(statement, *values.values())


@dataclass(frozen=True, slots=True)
class Team:
    """A project with one of each; its name is part of every name in it."""

    name: str
    project: UUID
    response: str
    things: dict[str, UUID]
    login: str
    """a key with the scope console"""

    def path(self, template: str) -> str:
        """The page of this template about what this project has."""
        ids = {
            "/responses": self.response,
            "/projects": admin_id("proj", self.project),
            "/webhooks": admin_id("whe", self.things["webhook_endpoints"]),
            "/batches": batch_id(self.things["batches"]),
            "/schedules": admin_id("sched", self.things["schedules"]),
            "/vector-stores": vector_store_id(self.things["vector_stores"]),
        }
        if "{" not in template or template in ("/static/{name}", "/{rest:path}"):
            return template
        beginning = "/" + template.split("/")[1]
        return re.sub(r"\{\w+\}", ids[beginning], template)


async def _team(stack: Stack, fake: FakeUpstream) -> Team:
    name = f"team-{new_uuid().hex[-8:]}"
    client = stack.api(key=keys.create(stack.dsn, name))
    model = fake.script(reply(f"The answer of {name}."), name=f"model-of-{name}")
    response = await client.create_background(model, input=f"The question of {name}.")
    await client.wait_for_end(response)
    project = await stack.value("SELECT id FROM projects WHERE name = %s", name)
    key = await stack.value("SELECT id FROM api_keys WHERE project_id = %s", project)
    things = {
        table: new_uuid()
        for table in (
            *("webhook_endpoints", "batches", "files", "vector_stores", "schedules"),
            "containers",
        )
    }
    of_project = {"project_id": project}
    later = datetime.now(UTC) + timedelta(days=1)
    await _insert(
        stack,
        "webhook_endpoints",
        **of_project,
        id=things["webhook_endpoints"],
        url=f"https://{name}.invalid/hook",
        types=[],
        secret_key_id="k",
        secrets=b"s",
        disabled_at=datetime.now(UTC),
    )
    await _insert(
        stack,
        "files",
        **of_project,
        id=things["files"],
        filename=f"file-of-{name}",
        purpose="user_data",
        bytes=1,
        completed_at=datetime.now(UTC),
    )
    await _insert(
        stack,
        "batches",
        **of_project,
        id=things["batches"],
        api_key_id=key,
        endpoint="/v1/responses",
        input_file_id=things["files"],
        completion_window="24h",
        status="in_progress",
        total=1,
        model=f"model-of-{name}",
        expires_at=later,
        collector_until=later,
        expander_until=later,
    )
    await _insert(
        stack,
        "vector_stores",
        **of_project,
        id=things["vector_stores"],
        name=f"store-of-{name}",
        metadata=Json({}),
        language="english",
    )
    await _insert(
        stack,
        "schedules",
        **of_project,
        id=things["schedules"],
        api_key_id=key,
        name=f"schedule-of-{name}",
        cron="0 0 * * *",
        time_zone="UTC",
        missed="skip",
        decided_until=datetime.now(UTC),
        upcoming=[],
        template=Jsonb({"model": f"model-of-{name}"}),
    )
    await _insert(
        stack,
        "containers",
        **of_project,
        id=things["containers"],
        api_key_id=key,
        name=f"container-of-{name}",
        idle_time=timedelta(minutes=20),
    )
    login = keys.create(stack.dsn, name, grant=_CONSOLE_ONLY)
    return Team(name, project, response, things, login)


@pytest.fixture(scope="module")
async def teams(shared_stack: Stack, fake: FakeUpstream) -> AsyncIterator[tuple[Team, Team]]:
    """Two projects."""
    own, other = await _team(shared_stack, fake), await _team(shared_stack, fake)
    yield own, other
    for team in (own, other):
        for table in team.things:
            statement = f"DELETE FROM {table} WHERE id = %s RETURNING 1"
            await shared_stack.value(statement, team.things[table])


@pytest.fixture
async def operator(shared_stack: Stack) -> AsyncIterator[ConsoleUser]:
    async with console_user(shared_stack, OPERATOR_TOKEN) as one:
        yield one


async def _send(user: ConsoleUser, path: str, **fields: str) -> ConsolePage:
    """Opens a form, writes into its fields, and sends it."""
    form = await user.get(path)
    assert form.status == 200, form.text
    kept = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form.html)
    own = [(name, value) for name, value in kept if name != "next"]
    written = re.findall(r'<input name="([\w.]+)" value="([^"]*)"', form.html)
    texts = {**dict(own), **dict(written), **fields}
    token = ("form_token", form.form_token)
    sent = [token, *((name, text) for name, text in texts.items() if name != "form_token")]
    return await user.post(path, sent, follows=False)


# --- a login that sees one project ---


async def test_a_login_of_a_project_sees_that_one_alone(
    shared_stack: Stack, teams: tuple[Team, Team]
) -> None:
    """All routes, with the ids and the name of another project: nothing of that one is shown."""
    own, other = teams
    async with console_user(shared_stack, own.login) as user:
        token = (await user.reveal(f"/console/responses/{own.response}")).form_token
        for page in PAGES:
            path = f"/console{other.path(page.path)}"
            query = f"project={other.name}&id={other.response}"
            is_theirs = Role.PROJECT in page.allowed or not page.needs_login
            if page.method == "GET":
                answer = await user.get(f"{path}?{query}", follows=False)
                is_shown = is_theirs and "{" not in page.path
                expected = {200, 303, 400} if is_shown or page.path in ("", "/") else {404}
            else:
                if page.path in ("/logout", "/login"):
                    continue
                fields = [("form_token", token), ("id", other.response), ("name", other.name)]
                answer = await user.post(path, fields, follows=False)
                expected = {303} if is_theirs else {404}
            if page.path.startswith("/static/"):
                continue
            assert answer.status in expected, (page.method, page.path, answer.text)
            # A page that refreshes itself has its own address.
            shown = answer.html.replace(f"project={other.name}&amp;id=", "")
            assert other.name not in shown, (page.method, page.path)
        missing = await user.get(f"/console/responses/{response_id(new_uuid())}")
        foreign = await user.get(f"/console/responses/{other.response}")
        assert (missing.status, foreign.status) == (404, 404)


async def test_a_login_of_a_project_sees_all_of_its_own(
    shared_stack: Stack, teams: tuple[Team, Team]
) -> None:
    own, _ = teams
    shown = [page for page in PAGES if page.method == "GET" and Role.PROJECT in page.allowed]
    async with console_user(shared_stack, own.login) as user:
        first = await user.get("/console")
        assert own.name in first.text
        assert "Retrying" in first.text
        menu = first.html.partition("</nav>")[0]
        assert "/console/responses" in menu
        for absent in ("workers", "upstreams", "audit", "activity", "/console/projects"):
            assert absent not in menu
        for page in shown:
            if page.path.startswith("/responses/{response_id}/"):
                continue
            answer = await user.get(f"/console{own.path(page.path)}")
            assert answer.status == 200, page.path
            assert own.name in answer.text, page.path
            assert not _PROCESS.search(answer.text), page.path
            for act in ("Revoke", "Cancel", "Run again", "New key", "Pause:", "Disable"):
                assert f">{act}</" not in answer.html, (page.path, act)
        path = f"/console/responses/{own.response}"
        question = f"The question of {own.name}."
        assert question not in (await user.get(path)).text
        assert question in (await user.reveal(path)).text
        assert question in (await user.get(f"{path}/json")).text
        seen = await shared_stack.value(
            "SELECT min(actor || ' ' || key_prefix) FROM audit WHERE action = 'response.reveal'"
            " AND object = %s",
            own.response,
        )
        assert seen == f"key {own.login[:8]}"


async def test_a_login_of_a_project_ends_with_its_key(
    shared_stack: Stack, operator: ConsoleUser
) -> None:
    name = f"team-{new_uuid().hex[-8:]}"
    login = keys.create(shared_stack.dsn, name, grant=_CONSOLE_ONLY)
    async with console_user(shared_stack, login) as user:
        refused = await shared_stack.api(key=login).call("GET", "/models")
        assert (refused.status, refused.error["code"]) == (403, "missing_scope")
        key = await shared_stack.value(
            "SELECT id FROM api_keys WHERE hash = %s", keys.hash_key(login)
        )
        await _send(operator, f"/console/projects/keys/revoke?id={admin_id('key', key)}")
        assert (await user.get("/console/project", follows=False)).status == 303
    async with console_user(shared_stack) as user:
        for wrong in (login, keys.create(shared_stack.dsn, name)):
            assert (await user.log_in(wrong)).status == 403


# --- what an operator makes ---


async def test_a_key_is_made_by_a_form_and_shown_once(
    shared_stack: Stack, operator: ConsoleUser, fake: FakeUpstream
) -> None:
    name = f"made-{new_uuid().hex[-8:]}"
    made = await _send(operator, "/console/projects/new", name=name, weight="3")
    assert made.status == 303, made.text
    project = made.headers["location"]
    form = await operator.get(f"{project}/keys/new")
    hidden = re.search(r'name="key" value="(key_\w+)"', form.html)
    assert hidden is not None
    fields = [
        ("form_token", form.form_token),
        ("key", hidden[1]),
        ("name", "ci"),
        ("expires_in_seconds", "90d"),
        ("allowed_models", ""),
        ("scopes", "responses"),
    ]
    page = await operator.post(f"{project}/keys/new", fields, follows=False)
    found = _KEY.search(page.html)
    assert found is not None, page.text
    assert (page.status, page.headers["cache-control"]) == (200, "no-store")
    assert "location" not in page.headers
    key = found[1]
    made_with = shared_stack.api(key=key)
    assert (await made_with.create(fake.script(reply("Hello."))))["status"] == "completed"
    again = await operator.post(f"{project}/keys/new", fields)
    assert (again.status, "made before" in again.text) == (409, True)
    shown = await operator.get(project)
    assert (key[:8] in shown.text, key in shown.html) == (True, False)
    assert "1 min ago" in shown.text or " s ago" in shown.text
    assert all(key not in web.tail(10**9) for web in shared_stack.webs)
    done = "SELECT string_agg(action || ' ' || os_user, ', ' ORDER BY at) FROM audit"
    who = "console (operator token)"
    assert (
        await shared_stack.value(f"{done} WHERE project = %s", name)
        == f"project.create {who}, key.create {who}"
    )
    taken = await _send(operator, "/console/projects/new", name=name)
    assert (taken.status, "Another project has this name." in taken.text) == (400, True)


async def test_a_quota_that_is_set_in_the_form_is_enforced(
    shared_stack: Stack, operator: ConsoleUser, fake: FakeUpstream
) -> None:
    name = f"limited-{new_uuid().hex[-8:]}"
    client = shared_stack.api(key=keys.create(shared_stack.dsn, name))
    project = await shared_stack.value("SELECT id FROM projects WHERE name = %s", name)
    path = f"/console/projects/{admin_id('proj', project)}"
    limits = {"quotas.tokens_per_day": "50", "quotas.stored_bytes": "64MiB", "retention": "7d"}
    assert (await _send(operator, f"{path}/edit", **limits)).status == 303
    stored = await shared_stack.value("SELECT policy FROM projects WHERE name = %s", name)
    assert stored == {
        "quotas": {"tokens_per_day": 50, "stored_bytes": 64 * 1024 * 1024},
        "retention": "7d",
    }
    details = await shared_stack.value(
        "SELECT details FROM audit WHERE action = 'project.set' AND project = %s", name
    )
    assert details["policy"]["quotas"] == {"tokens_per_day": 50, "stored_bytes": "64MiB"}
    model = fake.script(reply("Hello."), name="of-a-limited-project")

    async def is_refused() -> bool:
        body = {"model": model, "input": "x " * 400}
        answer = await client.call("POST", "/responses", body)
        return answer.status == 429 and answer.error["code"] == "insufficient_quota"

    await until(is_refused, 10)
    form = await operator.get(f"{path}/edit")
    assert 'name="quotas.stored_bytes" value="64MiB"' in form.html
    assert (await _send(operator, f"{path}/edit", **{"quotas.tokens_per_day": ""})).status == 303
    assert "tokens_per_day" not in (
        await shared_stack.value("SELECT policy::text FROM projects WHERE name = %s", name)
    )


@pytest.mark.parametrize(
    ("field", "text", "mistake"),
    [
        ("name", " ", "Missing required parameter: 'name'"),
        ("name", "x" * 101, "expected 1 to 100 characters"),
        ("weight", "0", "weight"),
        ("quotas.running", "many", "Input should be a valid integer"),
        ("quotas.stored_bytes", "7 parsecs", "Must be a size such as"),
        ("retention", "soon", "Must be a duration such as"),
        ("egress.allow", "no host!", "no host!"),
        ("limits.body", "-1", "size"),
    ],
)
async def test_a_mistake_is_shown_at_its_field(
    operator: ConsoleUser, field: str, text: str, mistake: str
) -> None:
    fields = {"name": "never-made", field: text}
    page = await _send(operator, "/console/projects/new", **fields)
    assert page.status == 400
    at = page.html.index('aria-invalid="true"')
    tag = page.html[page.html.rindex("<", 0, at) : at]
    assert f'name="{field}"' in tag
    assert mistake in page.text
    assert text in page.html


async def test_lines_of_routes_and_models_are_read_and_shown_again(
    shared_stack: Stack, operator: ConsoleUser
) -> None:
    name = f"routed-{new_uuid().hex[-8:]}"
    routes = "gpt-*=default\nfast=default:gpt-5-mini"
    fields = {"name": name, "routes": routes, "models": "gpt-*\nfast", "zero_retention": "yes"}
    made = await _send(operator, "/console/projects/new", **fields)
    assert made.status == 303, made.text
    policy = await shared_stack.value("SELECT policy FROM projects WHERE name = %s", name)
    assert policy == {
        "zero_retention": True,
        "models": ["gpt-*", "fast"],
        "routes": {
            "gpt-*": ["default"],
            "fast": [{"upstream": "default", "model": "gpt-5-mini"}],
        },
    }
    edit = f"{made.headers['location']}/edit"
    shown = (await operator.get(edit)).html
    assert all(line in shown for line in routes.split("\n"))
    wrong = await _send(operator, edit, routes="gpt-*=nowhere")
    assert (wrong.status, "There is no upstream 'nowhere'" in wrong.text) == (400, True)
    # Somebody else has changed it since the form was opened.
    old = await _send(operator, edit, revision="older", weight="9")
    assert (old.status, "changed the project meanwhile" in old.text) == (400, True)


async def test_the_list_shows_who_is_near_a_limit_and_finds_by_name(
    shared_stack: Stack, operator: ConsoleUser, fake: FakeUpstream
) -> None:
    mark = new_uuid().hex[-8:]
    for name, limit in ((f"a-{mark}", 1000), (f"z-{mark}", 1)):
        key = keys.create(shared_stack.dsn, name)
        await shared_stack.value(
            "UPDATE projects SET policy = %s WHERE name = %s RETURNING 1",
            Jsonb({"quotas": {"requests_per_minute": limit}}),
            name,
        )
        await shared_stack.api(key=key).create(fake.script(reply("Hello.")))
    near = await operator.get(f"/console/projects?name={mark.upper()}")
    assert near.text.index(f"z-{mark}") < near.text.index(f"a-{mark}")
    assert 'class="full"' in near.html or 'class="near"' in near.html
    by_name = await operator.get(f"/console/projects?name={mark}&order=name")
    assert by_name.text.index(f"a-{mark}") < by_name.text.index(f"z-{mark}")
    assert (await operator.get("/console/projects?after=x")).status == 400
    assert "No project fits." in (await operator.get("/console/projects?name=nobody-has-it")).text


async def test_somebody_who_only_looks_makes_nothing(
    shared_stack: Stack, teams: tuple[Team, Team]
) -> None:
    path = f"/console/projects/{admin_id('proj', teams[0].project)}"
    async with console_user(shared_stack, READ_ONLY_TOKEN) as reader:
        token = ("form_token", (await reader.get(path)).form_token)
        for form in ("/console/projects/new", f"{path}/edit", f"{path}/keys/new"):
            assert (await reader.get(form)).status == 403
            fields = [token, ("name", "x"), ("scopes", "responses")]
            assert (await reader.post(form, fields)).status == 403
        assert "/keys/new" not in (await reader.get(path)).html


# --- the audit log ---


async def test_the_audit_page_shows_who_did_what(
    shared_stack: Stack, operator: ConsoleUser
) -> None:
    name = f"audited-{new_uuid().hex[-8:]}"
    await _send(operator, "/console/projects/new", name=name)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    for query, is_shown in (
        (f"project={name}", True),
        (f"project={name}&action=project", True),
        (f"project={name}&action=project.create&who=console", True),
        (f"project={name}&from={today}&to={today}", True),
        (f"project={name}&action=key", False),
        (f"project={name}&who=nobody", False),
        (f"project={name}&to=2026-01-01", False),
    ):
        page = await operator.get(f"/console/audit?{query}")
        assert page.status == 200
        assert ("console (operator token)" in page.text) is is_shown, query
        assert (f'href="/console/projects?name={name}"' in page.html) is is_shown
    for wrong in ("from=yesterday", "before=x"):
        assert (await operator.get(f"/console/audit?{wrong}")).status == 400
    async with console_user(shared_stack, READ_ONLY_TOKEN) as reader:
        assert (await reader.get("/console/audit")).status == 200
