"""/v1/schedules, as clients use it: slots become responses, missed ones by the policy."""

import asyncio
import secrets
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support import keys
from tests.support.api import JSON, UNKNOWN_RESPONSE_ID, Api, until
from tests.support.audit import audit_entries
from tests.support.fake_upstream import FakeUpstream, hang, reply
from tests.support.projects import limited_project
from tests.support.stack import Stack

NEVER = "0 0 29 2 *"
MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Schedules:
    """The schedules of a project of its own."""

    stack: Stack
    api: Api

    async def create(self, model: str = "demo", **fields: Any) -> JSON:
        """Creates one, which must succeed; without a time it does not run soon."""
        body = {"template": {"model": model, "input": "Hello."}, "missed": "run_once", **fields}
        if "run_at" not in body:
            body.setdefault("cron", NEVER)
        answer = await self.api.call("POST", "/schedules", body)
        assert answer.status == 200, answer.raw
        return answer.body

    async def get(self, schedule: str) -> JSON:
        answer = await self.api.call("GET", f"/schedules/{schedule}")
        assert answer.status == 200, answer.raw
        return answer.body

    async def act(self, schedule: str, action: str) -> JSON:
        answer = await self.api.call("POST", f"/schedules/{schedule}{action}", {})
        assert answer.status == 200, answer.raw
        return answer.body

    async def runs(self, schedule: str) -> list[JSON]:
        """All its runs, the first one first."""
        answer = await self.api.call("GET", f"/schedules/{schedule}/runs?order=asc&limit=100")
        assert answer.status == 200, answer.raw
        found: list[JSON] = answer.body["data"]
        return found

    async def until_runs(self, schedule: str, count: int) -> list[JSON]:
        """Its runs, as soon as there are so many."""

        async def enough() -> list[JSON] | None:
            found = await self.runs(schedule)
            return found if len(found) >= count else None

        found = await until(enough, 20)
        assert found is not None
        return found

    async def decided(self, schedule: str, ago: timedelta) -> None:
        """As if no process had looked at it for this time."""
        await self.stack.value(
            "UPDATE schedules SET decided_until = clock_timestamp() - %s::interval, "
            "upcoming = ARRAY[clock_timestamp()], due_at = clock_timestamp() "
            "WHERE id = %s::uuid RETURNING 1",
            f"{ago.total_seconds()} s",
            schedule.removeprefix("sched_"),
        )


@pytest.fixture
async def schedules(shared_stack: Stack) -> Schedules:
    key = await asyncio.to_thread(
        keys.create, shared_stack.dsn, f"schedules-{secrets.token_hex(4)}"
    )
    return Schedules(shared_stack, shared_stack.api(key=key))


def _daily(minutes_ago: int) -> str:
    """The expression for a time of day that was so many minutes ago, in UTC."""
    slot = datetime.now(UTC) - minutes_ago * MINUTE
    return f"{slot.minute} {slot.hour} * * *"


async def test_a_schedule_runs_once_with_the_stock_client(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    client, model = shared_stack.openai(), fake.script(reply("Good morning."))
    run_at = int(time.time()) + 3600
    made: Any = await client.post(
        "/schedules",
        cast_to=object,
        body={
            "name": "once",
            "run_at": run_at,
            "template": {"model": model, "input": "Greet me.", "metadata": {"from": "schedule"}},
            "metadata": {"team": "a"},
        },
    )
    assert (made["object"], made["status"], made["next_runs"]) == ("schedule", "active", [run_at])
    assert (made["cron"], made["time_zone"], made["missed"]) == (None, None, "run_once")
    assert made["template"]["input"] == "Greet me."

    run_at = int(time.time()) + 2
    await shared_stack.value(
        "UPDATE schedules SET run_at = to_timestamp(%s), upcoming = ARRAY[to_timestamp(%s)] "
        "WHERE id = %s::uuid RETURNING 1",
        *(run_at, run_at, made["id"].removeprefix("sched_")),
    )
    await client.post(f"/schedules/{made['id']}", cast_to=object, body={"name": "moved"})

    async def completed() -> Any:
        found: Any = await client.get(f"/schedules/{made['id']}", cast_to=object)
        return found if found["status"] == "completed" else None

    ended = await until(completed, 20)
    assert ended["next_runs"] == []
    assert ended["last_run"]["slot_at"] == run_at
    runs: Any = await client.get(f"/schedules/{made['id']}/runs", cast_to=object)
    [run] = runs["data"]
    assert (run["status"], run["trigger"], run["error"]) == ("created", "slot", None)
    api = shared_stack.api()
    response = await api.wait_for_end(run["response_id"])
    assert response["output_text"] == "Good morning."
    assert (response["background"], response["store"]) == (True, True)
    assert response["metadata"] == {"from": "schedule"}
    assert response["created_at"] >= run_at
    deleted: Any = await client.delete(f"/schedules/{made['id']}", cast_to=object)
    assert deleted == {"id": made["id"], "object": "schedule.deleted", "deleted": True}
    assert (await api.call("GET", f"/schedules/{made['id']}")).status == 404


async def test_a_time_of_day_in_its_zone_is_shown(schedules: Schedules) -> None:
    made = await schedules.create(cron="30 7 * * MON", time_zone="Asia/Tokyo")
    shown = [datetime.fromtimestamp(slot, UTC) for slot in made["next_runs"]]
    assert len(shown) == 5
    assert all((slot.weekday(), slot.hour, slot.minute) == (6, 22, 30) for slot in shown)
    assert shown == sorted(set(shown))
    assert (await schedules.get(made["id"])) == made
    moved = await schedules.api.call("POST", f"/schedules/{made['id']}", {"time_zone": "UTC"})
    first = datetime.fromtimestamp(moved.body["next_runs"][0], UTC)
    assert (first.weekday(), first.hour, moved.body["cron"]) == (0, 7, "30 7 * * MON")
    once = {"run_at": "2036-02-29T08:00:00.5+02:00", "name": "later"}
    moved = await schedules.api.call("POST", f"/schedules/{made['id']}", once)
    assert moved.body["next_runs"] == [moved.body["run_at"]] == [2_087_877_600]
    assert (moved.body["cron"], moved.body["name"]) == (None, "later")


_TEMPLATE: JSON = {"model": "demo", "input": "Hello."}
_INVALID: list[tuple[JSON, str | None, str]] = [
    ({"cron": NEVER}, "template", "missing_required_parameter"),
    ({"template": _TEMPLATE}, "cron", "missing_required_parameter"),
    ({"cron": "* * * *", "template": _TEMPLATE}, "cron", "invalid_value"),
    ({"cron": "* * * * * *", "template": _TEMPLATE}, "cron", "invalid_value"),
    ({"cron": "61 * * * *", "template": _TEMPLATE}, "cron", "invalid_value"),
    ({"cron": "0 0 31 2 *", "template": _TEMPLATE}, "cron", "invalid_value"),
    ({"cron": "* * */20 * 1L", "template": _TEMPLATE}, "cron", "invalid_value"),
    ({"cron": 5, "template": _TEMPLATE}, "cron", "invalid_type"),
    (
        {"cron": NEVER, "time_zone": "Mars", "template": _TEMPLATE},
        "time_zone",
        "invalid_value",
    ),
    ({"cron": NEVER, "run_at": 4102444800, "template": _TEMPLATE}, "run_at", "invalid_value"),
    ({"run_at": 1000, "template": _TEMPLATE}, "run_at", "invalid_value"),
    ({"run_at": "tomorrow", "template": _TEMPLATE}, "run_at", "invalid_value"),
    ({"run_at": "2036-01-01T00:00:00", "template": _TEMPLATE}, "run_at", "invalid_value"),
    ({"run_at": 1.5, "template": _TEMPLATE}, "run_at", "invalid_type"),
    (
        {"run_at": 4102444800, "time_zone": "UTC", "template": _TEMPLATE},
        "time_zone",
        "invalid_value",
    ),
    ({"cron": NEVER, "missed": "later", "template": _TEMPLATE}, "missed", "invalid_value"),
    ({"cron": NEVER, "every": "day", "template": _TEMPLATE}, "every", "unknown_parameter"),
    ({"cron": NEVER, "template": "Hello."}, "template", "invalid_type"),
    ({"cron": NEVER, "template": {"input": "x"}}, "template.model", "missing_required_parameter"),
    ({"cron": NEVER, "template": {**_TEMPLATE, "model": 5}}, "template.model", "invalid_type"),
    (
        {"cron": NEVER, "template": {**_TEMPLATE, "temperature": 9}},
        "template.temperature",
        "decimal_above_max_value",
    ),
    (
        {"cron": NEVER, "template": {**_TEMPLATE, "tools": [{"type": "none"}]}},
        "template.tools[0].type",
        "invalid_value",
    ),
    (
        {"cron": NEVER, "template": {**_TEMPLATE, "stream": True}},
        "template.stream",
        "unsupported_parameter",
    ),
    (
        {"cron": NEVER, "template": {**_TEMPLATE, "background": False}},
        "template.background",
        "unsupported_parameter",
    ),
    (
        {
            "cron": NEVER,
            "template": {
                **_TEMPLATE,
                "background": True,
                "previous_response_id": UNKNOWN_RESPONSE_ID,
                "wait_for_previous": True,
            },
        },
        "template.wait_for_previous",
        "unsupported_parameter",
    ),
    (
        {"cron": NEVER, "template": {**_TEMPLATE, "store": False}},
        "template.store",
        "unsupported_parameter",
    ),
    (
        {"cron": NEVER, "template": {**_TEMPLATE, "previous_response_id": UNKNOWN_RESPONSE_ID}},
        "template.previous_response_id",
        "previous_response_not_found",
    ),
]


async def test_what_could_not_run_is_refused_at_once(schedules: Schedules) -> None:
    for body, param, code in _INVALID:
        refused = await schedules.api.call("POST", "/schedules", body)
        found = (refused.status, refused.error["param"], refused.error["code"])
        assert found == (400, param, code), (body, refused.error)
    large = {**_TEMPLATE, "input": "x" * 300_000}
    refused = await schedules.api.call("POST", "/schedules", {"cron": NEVER, "template": large})
    assert (refused.status, refused.error["param"]) == (413, "template")
    listed = await schedules.api.call("GET", "/schedules")
    assert listed.body["data"] == []
    made = await schedules.create()
    path = f"/schedules/{made['id']}"
    for body, param, code in _INVALID[2:]:
        refused = await schedules.api.call("POST", path, body)
        assert (refused.error["param"], refused.error["code"]) == (param, code), body
    assert await schedules.get(made["id"]) == made


@pytest.mark.parametrize(
    ("missed", "statuses"),
    [
        ("skip", ["skipped"]),
        ("run_once", ["skipped", "created"]),
        ("run_all", ["created", "created", "created"]),
    ],
)
async def test_slots_that_were_missed(
    schedules: Schedules, fake: FakeUpstream, missed: str, statuses: list[str]
) -> None:
    """Three days without any web process, the last slot half an hour ago."""
    model = fake.script(reply("late"))
    made = await schedules.create(model, cron=_daily(30), missed=missed)
    await schedules.decided(made["id"], timedelta(days=3))
    await schedules.act(made["id"], "")
    runs = await schedules.until_runs(made["id"], len(statuses))
    assert [run["status"] for run in runs] == statuses
    slots = [run["slot_at"] for run in runs]
    assert slots == sorted(set(slots))
    assert 29 * 60 <= time.time() - slots[-1] <= 40 * 60
    for run in runs:
        assert (run["skipped_after"] is not None) == (run["status"] == "skipped")
        if run["response_id"] is not None:
            ended = await schedules.api.wait_for_end(run["response_id"])
            assert ended["output_text"] == "late"
    now = await schedules.get(made["id"])
    assert now["status"] == "active"
    assert now["next_runs"][0] == slots[-1] + 86_400
    assert await schedules.runs(made["id"]) == runs


async def test_a_paused_schedule_runs_when_it_is_resumed(
    schedules: Schedules, fake: FakeUpstream
) -> None:
    made = await schedules.create(fake.script(reply("x")), cron=_daily(30))
    paused = await schedules.act(made["id"], "/pause")
    assert (paused["status"], paused["next_runs"]) == ("paused", [])
    assert (await schedules.act(made["id"], "/pause"))["paused_at"] == paused["paused_at"]
    await schedules.decided(made["id"], timedelta(days=1))
    asked = await schedules.act(made["id"], "/run")
    assert (asked["trigger"], asked["status"]) == ("request", "created")
    assert await schedules.runs(made["id"]) == [asked]
    assert (await schedules.get(made["id"]))["status"] == "paused"
    resumed = await schedules.act(made["id"], "/resume")
    assert (resumed["status"], resumed["paused_at"]) == ("active", None)
    runs = await schedules.until_runs(made["id"], 2)
    assert [run["trigger"] for run in runs] == ["request", "slot"]


async def test_a_repeated_request_to_run_makes_one_run(
    schedules: Schedules, fake: FakeUpstream
) -> None:
    made = await schedules.create(fake.script(reply("x")))
    path, headers = f"/schedules/{made['id']}/run", {"idempotency-key": secrets.token_hex(8)}
    first, second = [await schedules.api.call("POST", path, b"", headers=headers) for _ in range(2)]
    assert first.status == 200, first.raw
    assert first.body == second.body
    other = await schedules.api.call("POST", path)
    assert other.body["id"] != first.body["id"]
    page = await schedules.api.call("GET", f"/schedules/{made['id']}/runs?limit=1")
    assert (page.body["data"], page.body["has_more"]) == ([other.body], True)
    after = f"/schedules/{made['id']}/runs?after={page.body['last_id']}"
    page = await schedules.api.call("GET", after)
    assert (page.body["data"], page.body["has_more"]) == ([first.body], False)
    entries = await audit_entries(schedules.stack, action="schedule.run")
    assert [entry["object"] for entry in entries].count(made["id"]) == 2


async def test_a_refused_run_has_its_error_and_the_next_slot_goes_on(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack, running=1)
    schedules = Schedules(shared_stack, project.api())
    made = await schedules.create(fake.script(reply("x")), cron=_daily(30))
    running = await schedules.api.create_background(fake.script([hang()]))
    await schedules.decided(made["id"], timedelta(hours=1))
    await schedules.act(made["id"], "")
    [refused] = await schedules.until_runs(made["id"], 1)
    assert (refused["status"], refused["response_id"]) == ("failed", None)
    assert refused["error"]["code"] == "rate_limit_exceeded"
    assert (await schedules.get(made["id"]))["status"] == "active"
    await schedules.api.cancel(running)
    await schedules.api.wait_for_end(running)

    async def runs_again() -> bool:
        return bool((await schedules.act(made["id"], "/run"))["status"] == "created")

    await until(runs_again, 20)


async def test_a_slot_that_kills_its_web_processes_is_given_up(schedules: Schedules) -> None:
    made, other = await schedules.create(cron=_daily(30)), await schedules.create()
    await schedules.stack.value(
        "UPDATE schedules SET tries = 5 WHERE id = %s::uuid RETURNING 1",
        made["id"].removeprefix("sched_"),
    )
    await schedules.decided(made["id"], timedelta(hours=1))
    await schedules.act(other["id"], "")
    [run] = await schedules.until_runs(made["id"], 1)
    assert (run["status"], run["error"]["type"]) == ("failed", "server_error")
    assert (await schedules.get(made["id"]))["status"] == "active"


async def test_a_schedule_runs_with_the_key_that_made_or_changed_it(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    name = f"schedules-{secrets.token_hex(4)}"
    first, second = [await asyncio.to_thread(keys.create, shared_stack.dsn, name) for _ in "12"]
    schedules = Schedules(shared_stack, shared_stack.api(key=first))
    other = Schedules(shared_stack, shared_stack.api(key=second))
    made = await schedules.create(fake.script(reply("x")))
    await shared_stack.value(
        "UPDATE api_keys SET revoked_at = now() WHERE prefix = left(%s, length(prefix)) "
        "AND project_id = (SELECT id FROM projects WHERE name = %s) RETURNING 1",
        first,
        name,
    )
    failed = await other.act(made["id"], "/run")
    assert (failed["status"], failed["error"]["code"]) == ("failed", "invalid_api_key")
    await other.act(made["id"], "")
    assert (await other.act(made["id"], "/run"))["status"] == "created"


async def test_a_key_that_is_rotated_hands_its_schedules_on(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    from tests.integration.operator.test_operations import backburner

    name = f"schedules-{secrets.token_hex(4)}"
    key = await asyncio.to_thread(keys.create, shared_stack.dsn, name)
    schedules = Schedules(shared_stack, shared_stack.api(key=key))
    made = await schedules.create(fake.script(reply("x")))
    prefix = await shared_stack.value(
        "SELECT k.id::text FROM api_keys k JOIN projects p ON p.id = k.project_id "
        "WHERE p.name = %s",
        name,
    )
    rotated = await backburner(shared_stack, "keys", "rotate", prefix, "--overlap", "0s")
    assert rotated.code == 0, rotated.err
    new = Schedules(shared_stack, shared_stack.api(key=rotated.out.strip().splitlines()[-1]))
    assert (await new.act(made["id"], "/run"))["status"] == "created"


async def test_a_schedule_of_another_project_does_not_exist(schedules: Schedules, api: Api) -> None:
    made = await schedules.create()
    run = await schedules.act(made["id"], "/run")
    for schedule in (made["id"], "sched_" + "0" * 32, "sched_x", "0"):
        for method, path in (
            *(("GET", ""), ("POST", ""), ("DELETE", ""), ("GET", "/runs")),
            *(("POST", "/pause"), ("POST", "/resume"), ("POST", "/run")),
        ):
            body: JSON | None = {} if method == "POST" else None
            answer = await api.call(method, f"/schedules/{schedule}{path}", body)
            assert answer.status == 404, (method, path)
            assert answer.error["message"] == f"No schedule found with id '{schedule}'."
    page = await api.call("GET", f"/schedules?after={made['id']}")
    assert page.status == 404
    assert await schedules.runs(made["id"]) == [run]


async def test_a_project_that_keeps_nothing_has_no_schedules(
    shared_stack: Stack, fake: FakeUpstream
) -> None:
    project = await limited_project(shared_stack)
    schedules = Schedules(shared_stack, project.api())
    made = await schedules.create(fake.script(reply("x")))
    policy = "UPDATE projects SET policy = '{\"zero_retention\": true}' WHERE id = %s RETURNING 1"
    await shared_stack.value(policy, project.id)

    async def is_refused() -> bool:
        body = {"cron": NEVER, "template": _TEMPLATE}
        return (await schedules.api.call("POST", "/schedules", body)).status == 400

    await until(is_refused, 20)
    failed = await schedules.act(made["id"], "/run")
    assert (failed["status"], failed["error"]["code"]) == ("failed", "unsupported_parameter")


async def test_a_list_has_pages(schedules: Schedules) -> None:
    made = [(await schedules.create(name=str(number)))["id"] for number in range(3)]

    async def page(query: str) -> tuple[list[str], bool]:
        answer = await schedules.api.call("GET", f"/schedules?{query}")
        return [each["id"] for each in answer.body["data"]], answer.body["has_more"]

    assert await page("limit=2") == ([made[2], made[1]], True)
    assert await page(f"limit=2&after={made[1]}") == ([made[0]], False)
    assert await page(f"order=asc&after={made[0]}") == (made[1:], False)


async def test_a_project_has_no_more_schedules_than_the_setting(schedules: Schedules) -> None:
    made = await schedules.create()
    await schedules.stack.value(
        "INSERT INTO schedules (id, project_id, api_key_id, cron, missed, template, decided_until,"
        " upcoming) SELECT gen_random_uuid(), project_id, api_key_id, cron, missed, template,"
        " decided_until, upcoming FROM schedules, generate_series(2, 200) WHERE id = %s::uuid"
        " RETURNING 1",
        made["id"].removeprefix("sched_"),
    )
    body = {"cron": NEVER, "template": _TEMPLATE}
    refused = await schedules.api.call("POST", "/schedules", body)
    assert (refused.status, refused.error["code"]) == (400, "invalid_value")
    assert "200 schedules" in refused.error["message"]
    await schedules.api.call("DELETE", f"/schedules/{made['id']}")
    assert (await schedules.api.call("POST", "/schedules", body)).status == 200


async def test_each_run_continues_the_same_conversation(
    schedules: Schedules, fake: FakeUpstream
) -> None:
    conversation = (await schedules.api.call("POST", "/conversations", {})).body["id"]
    model = fake.script(reply("first"), reply("second"))
    template = {"model": model, "input": "Hello.", "conversation": conversation}
    made = await schedules.create(template=template)
    for answer in ("first", "second"):
        run = await schedules.act(made["id"], "/run")
        ended = await schedules.api.wait_for_end(run["response_id"])
        assert ended["output_text"] == answer
    items = await schedules.api.call("GET", f"/conversations/{conversation}/items")
    assert len(items.body["data"]) == 4
