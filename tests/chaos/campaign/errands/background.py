"""Errands of the background field: chains, schedules and steers (docs/background.md)."""

import asyncio
import json
import time
from typing import Any, Literal, NoReturn

from tests.chaos.audit.record import (
    JSON,
    ChainTrace,
    ClientRequest,
    ObjectTrace,
    RunRecord,
    ScheduleTrace,
    SteeredTrace,
    SteerTrace,
)
from tests.chaos.campaign.errands.plan import Errand
from tests.chaos.campaign.errands.requests import ErrandRequests
from tests.support.api import TERMINAL
from tests.support.fake_upstream import FakeUpstream, reply

_LONGEST = 50.0
"""Seconds after which an errand no longer waits."""
_PAUSE = 0.4
"""Seconds between two looks."""
_SETTLED = ("committed", "failed")


class BackgroundErrands:
    """The errands of a round that are about background responses alone."""

    def __init__(self, record: RunRecord, requests: ErrandRequests, fake: FakeUpstream) -> None:
        self._record = record
        self._requests = requests
        self._fake = fake

    # --- chains ---

    async def chain(self, name: str, errand: Errand) -> None:
        """Creates responses in a row, each waiting for the one before; perhaps the first is
        cancelled."""
        chain = ChainTrace([], [], is_stopped=errand.delete is not None)
        self._record.chains.append(chain)
        for number in range(errand.size):
            marker = f"{name}-{number}"
            words = (f"{marker}.{word} " for word in range(errand.size))
            self._fake.script(reply(*words, gap=0.2), name=marker)
            body: JSON = {"model": marker, "input": f"This is {marker}.", "background": True}
            if chain.links:
                body |= {
                    "previous_response_id": chain.links[-1].id,
                    "wait_for_previous": True,
                }
            link = self._response(marker, errand.retry)
            if await self._create(link, errand, body) is None:
                break
            chain.links.append(link)
        if chain.links and errand.delete is not None:
            await asyncio.sleep(errand.delete / 4)
            first = chain.links[0]
            path = f"/responses/{first.id}/cancel"
            await self._requests.insist(first, "cancel", "POST", path, {})
        for link in chain.links:
            chain.statuses.append(await self._end_of(link))

    # --- schedules ---

    async def schedule(self, name: str, errand: Errand) -> None:
        """Creates a schedule with one slot in a moment, and runs it some more times at once."""
        self._fake.script(reply(*(f"{name}.{word} " for word in range(3)), gap=0.1), name=name)
        schedule = ScheduleTrace(ObjectTrace("schedule", name, _without_sdk(errand)))
        self._record.objects.append(schedule.created)
        self._record.schedules.append(schedule)
        body: JSON = {
            "name": name,
            "run_at": int(time.time()) + 3 + errand.size % 3,
            "missed": "run_once",
            "template": {"model": name, "input": f"This is {name}."},
        }
        trace = schedule.created
        if await self._requests.create(trace, errand, "/schedules", body, _never) is None:
            return
        path = f"/schedules/{trace.id}"
        await self._requests.as_stranger(trace, path)
        for _ in range(errand.size % 3):
            schedule.requested += await self._requests.post(trace, f"{path}/run", {})
        await self._until_it_ran(schedule, path)
        for run in schedule.runs or ():
            if run["response_id"] is None:
                continue
            response = self._response(name)
            response.creates.append(_found(run["response_id"]))
            schedule.statuses[run["response_id"]] = await self._end_of(response)

    async def _until_it_ran(self, schedule: ScheduleTrace, path: str) -> None:
        """Waits for the slot and for all runs that were requested."""
        wanted = 1 + sum(one.status == 200 for one in schedule.requested)
        end = time.monotonic() + _LONGEST
        while time.monotonic() < end:
            raw = await self._requests.read(f"{path}/runs?limit=100")
            if raw is not None:
                schedule.runs = json.loads(raw)["data"]
                slots = [run for run in schedule.runs if run["trigger"] == "slot"]
                if slots and len(schedule.runs) >= wanted:
                    return
            await asyncio.sleep(_PAUSE)

    # --- steers ---

    async def steered(self, name: str, errand: Errand) -> None:
        """Creates a response, sends it input while it runs, and follows what continues it."""
        words = (f"{name}.{word} " for word in range(4 * errand.size))
        self._fake.script(reply(*words, gap=0.15), name=name)
        first = self._response(name)
        body: JSON = {"model": name, "input": f"This is {name}.", "background": True}
        if await self._create(first, errand, body) is None:
            return
        steered = SteeredTrace(first)
        self._record.steered.append(steered)
        path = f"/responses/{first.id}/steer"
        for number in range(1 + errand.size % 2):
            await asyncio.sleep(0.3)
            text = f"Steer {name}-s{number}."
            requests = await self._requests.post(first, path, {"input": text})
            steered.steers.append(SteerTrace(text, requests[-1], len(requests)))
        if errand.delete is not None:
            await self._requests.insist(
                first, "cancel", "POST", f"/responses/{first.id}/cancel", {}
            )
        await self._end_of(first)
        await self._until_settled(steered, path)
        await self._read_successors(steered)

    async def _until_settled(self, steered: SteeredTrace, path: str) -> None:
        end = time.monotonic() + _LONGEST
        while time.monotonic() < end:
            raw = await self._requests.read(f"{path}?limit=100")
            if raw is not None:
                steered.shown = json.loads(raw)["data"]
                if all(one["state"] in _SETTLED for one in steered.shown):
                    return
            await asyncio.sleep(_PAUSE)

    async def _read_successors(self, steered: SteeredTrace) -> None:
        """Follows each response that continues the steered one to its end, and reads its input."""
        successors = {one["successor_response_id"] for one in steered.shown or ()} - {None}
        for id_ in sorted(successors):
            response = self._response(steered.first.name)
            response.creates.append(_found(id_))
            status = await self._end_of(response)
            raw = await self._requests.read(f"/responses/{id_}/input_items?limit=100")
            inputs = [] if raw is None else list(_texts(json.loads(raw)["data"]))
            steered.successors[id_] = (status, inputs)

    # --- responses ---

    def _response(self, name: str, retry: Literal["none", "key", "sdk"] = "none") -> ObjectTrace:
        trace = ObjectTrace("response", name, retry)
        self._record.objects.append(trace)
        return trace

    async def _create(self, trace: ObjectTrace, errand: Errand, body: JSON) -> str | None:
        waits = {"wait_for_previous": body["wait_for_previous"]} if len(body) > 3 else None
        known = {name: value for name, value in body.items() if name != "wait_for_previous"}

        async def sdk(client: Any) -> Any:
            return await client.responses.create(**known, extra_body=waits)

        return await self._requests.create(trace, errand, "/responses", body, sdk)

    async def _end_of(self, trace: ObjectTrace) -> str:
        """The terminal status of a response; empty if it takes too long or it is gone."""
        end = time.monotonic() + _LONGEST
        while time.monotonic() < end:
            request = await self._requests.once(trace, "get", "GET", f"/responses/{trace.id}")
            if request.status == 404:
                break
            if request.body.get("status") in TERMINAL:
                return str(request.body["status"])
            await asyncio.sleep(_PAUSE)
        return ""


def _without_sdk(errand: Errand) -> Literal["none", "key"]:
    """The official client has no method for what is ours alone."""
    return "key" if errand.retry == "key" else "none"


async def _never(_: Any) -> NoReturn:
    raise AssertionError("it is not made by the official client")


def _found(id_: str) -> ClientRequest:
    """Stands for the create of a response that the server has made by itself."""
    now = time.monotonic()
    return ClientRequest("create", "", now, now, 200, {"id": id_})


def _texts(items: list[JSON]) -> list[str]:
    return [
        part["text"]
        for item in items
        if item.get("type") == "message"
        for part in item["content"]
        if "text" in part
    ]
