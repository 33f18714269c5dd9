"""The page of containers in the console."""

from models.ids import CONTAINER, admin_id, new_uuid
from tests.support.audit import audit_entries
from tests.support.console import OPERATOR_TOKEN, console_user
from tests.support.projects import limited_project
from tests.support.stack import Stack

_EVIL = "<script>alert(1)</script>"


async def test_an_operator_sees_sessions_and_stops_one(shared_stack: Stack) -> None:
    project = await limited_project(shared_stack)
    container = new_uuid()
    await shared_stack.value(
        "INSERT INTO containers (id, project_id, name, idle_time, sandbox, session) "
        "VALUES (%s, %s, %s, '20 min', 'http://127.0.0.1:9', 's1') RETURNING 1",
        container,
        project.id,
        _EVIL,
    )
    await shared_stack.value(
        "INSERT INTO container_cells (id, container_id, project_id, session, ended_at, cpu_ms) "
        "VALUES (%s, %s, %s, 's1', now(), 1500) RETURNING 1",
        f"ci_{container.hex}",
        container,
        project.id,
    )
    name = await shared_stack.value("SELECT name FROM projects WHERE id = %s", project.id)
    public_id = admin_id(CONTAINER, container)
    async with console_user(shared_stack, OPERATOR_TOKEN) as user:
        page = await user.get(f"/console/code?project={name}&show=sessions")
        assert _EVIL not in page.html
        for shown in (_EVIL, name, "running", "1.5 s", "1g", "Stop"):
            assert shown in page.text
        path = f"/console/code/stop?id={public_id}"
        asked = await user.get(path)
        assert "Stop this session?" in asked.text
        fields = [("form_token", asked.form_token), ("id", public_id)]
        done = await user.post("/console/code/stop", fields)
        assert "The session is being ended." in done.text
        page = await user.get(f"/console/code?project={name}")
        assert "stopping" in page.text
        assert path not in page.html
        assert (await user.post("/console/code/stop", fields)).status == 409
        for unknown in ("", "cntr_1", admin_id(CONTAINER, new_uuid())):
            assert (await user.get(f"/console/code/stop?id={unknown}")).status == 404
    [entry] = await audit_entries(shared_stack, action="container.stop", object=public_id)
    assert (entry["outcome"], entry["project"]) == ("requested", name)
    await shared_stack.value("DELETE FROM containers WHERE id = %s RETURNING 1", container)
