"""Applies the planned faults of a round to a deployment, and undoes them."""

import asyncio
import os
import signal
import time

from tests.chaos.audit.record import FaultKind
from tests.chaos.campaign.deployment import MACHINES, Deployment
from tests.chaos.campaign.plan import PlannedFault
from tests.support.api import until
from tests.support.chaos.postgres_faults import changed_setting, full_disk
from tests.support.stack import Service

_STOP_TIMEOUT = 25.0
"""Seconds in which a process must end after SIGTERM, on a busy machine."""
_LOST_TIME = 1.0
"""Seconds whose commits a standby lacks."""

_SERVER_FAULTS: dict[str, FaultKind] = {
    "kill": "crashed",
    "crash": "crashed",
    "restart": "restarted",
    "hang": "hung",
    "flush": "flushed",
    "lose": "connections_lost",
    "read-only": "read_only",
    "block-commits": "commits_hang",
    "fill": "disk_full",
}
"""The first word of an action on a server, and what is recorded."""
_SETTINGS = {
    "read-only": ("default_transaction_read_only", "on"),
    "block-commits": ("synchronous_standby_names", "no_such_standby"),
}
"""The setting of PostgreSQL that such an action changes, and its value."""


class Faults:
    """The faults of one deployment; a server has one fault at a time."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._server_locks = {"postgres": asyncio.Lock(), "redis": asyncio.Lock()}

    async def apply(self, planned: PlannedFault) -> bool:
        """Applies the fault and undoes it after its duration.

        Returns False if there was no process for it.
        """
        verb, target = planned.action.split(" ")[0], planned.action.split(" ")[-1]
        if planned.action == "injector":
            await self._inject(planned)
        elif planned.action.startswith("fail over"):
            await self._fail_over(loses_commits=planned.action.endswith("commits"))
        elif planned.action == "double fault":
            await asyncio.gather(
                self._crash_postgres(planned),
                self._fault_process(planned, "kill", "worker"),
            )
        elif target == "machine":
            return await self._kill_machine(planned)
        elif target in ("postgres", "redis"):
            async with self._server_locks[target]:
                await self._fault_server(planned, verb, target)
        else:
            return await self._fault_process(planned, verb, target)
        return True

    async def _fault_process(self, planned: PlannedFault, verb: str, target: str) -> bool:
        processes = [
            process
            for process in self._targets(target)
            if process.running() and process.name not in self._deployment.frozen
        ]
        if not processes:
            return False
        process = processes[int(planned.target_share * len(processes))]
        if verb == "freeze":
            await self._freeze(process, planned.duration)
            return True
        self._deployment.record_fault("killed" if verb == "kill" else "stopped", process.name)
        self._deployment.forget(process)
        if verb == "kill":
            process.kill()
        else:
            await self._stop(process)
        await asyncio.sleep(planned.duration)
        self._deployment.replace(process)
        return True

    def _targets(self, target: str) -> list[Service]:
        if target == "web":
            return self._deployment.stack.webs
        return [
            process
            for process in self._deployment.stack.workers
            if (process.name in self._deployment.quarantine) == (target == "quarantine")
        ]

    async def _freeze(self, process: Service, seconds: float) -> None:
        fault = self._deployment.record_fault("frozen", process.name)
        self._deployment.frozen.add(process.name)
        process.pause()
        try:
            await asyncio.sleep(seconds)
        finally:
            process.resume()
            fault.end = time.monotonic()
            self._deployment.frozen.discard(process.name)

    async def _stop(self, process: Service) -> None:
        problems = self._deployment.problems
        process.request_stop()
        try:
            await until(lambda: not process.running(), _STOP_TIMEOUT)
        except AssertionError:
            problems.append(f"{process.name} did not stop within {_STOP_TIMEOUT} s of SIGTERM")
            process.kill()
        if process.exit_code() not in (0, -signal.SIGTERM, 70):
            problems.append(f"{process.name} ended with {process.exit_code()} after SIGTERM")

    async def _kill_machine(self, planned: PlannedFault) -> bool:
        """Kills all processes of a machine at once; they are started again later."""
        deployment = self._deployment
        processes = [
            process
            for process in deployment.processes_on(int(planned.target_share * MACHINES))
            if process.running() and process.name not in deployment.frozen
        ]
        for process in processes:
            deployment.record_fault("killed", process.name)
            deployment.forget(process)
            os.kill(process.pid, signal.SIGKILL)
        for process in processes:
            process.kill()  # waits for its end
        await asyncio.sleep(planned.duration)
        for process in processes:
            deployment.replace(process)
        return bool(processes)

    async def _crash_postgres(self, planned: PlannedFault) -> None:
        async with self._server_locks["postgres"]:
            await self._fault_server(planned, "crash", "postgres")

    async def _fault_server(self, planned: PlannedFault, verb: str, target: str) -> None:
        deployment = self._deployment
        server = deployment.postgres if target == "postgres" else deployment.valkey
        fault = deployment.record_fault(_SERVER_FAULTS[verb], target)
        match verb:
            case "flush":
                client = deployment.stack.redis()
                await client.flushall()
                await client.aclose()
            case "lose":
                deployment.redis_proxies.lose()
            case "hang":
                os.kill(server.pid, signal.SIGSTOP)
                await asyncio.sleep(planned.duration)
                os.kill(server.pid, signal.SIGCONT)
            case "read-only" | "block-commits":
                async with changed_setting(deployment.stack.dsn, *_SETTINGS[verb]):
                    await asyncio.sleep(planned.duration)
            case "fill":
                async with full_disk(deployment.stack.dsn):
                    await asyncio.sleep(planned.duration)
            case _:
                await asyncio.to_thread(server.stop if verb == "restart" else server.kill)
                await asyncio.sleep(planned.duration)
                await asyncio.to_thread(server.start)
        fault.end = time.monotonic()

    async def _fail_over(self, *, loses_commits: bool) -> None:
        """The primary dies, and all processes find the standby in its place."""
        deployment = self._deployment
        standby, primary = deployment.standby, deployment.postgres
        assert standby is not None
        if loses_commits:
            await standby.lose_contact()
            await asyncio.sleep(_LOST_TIME)
        else:
            await standby.make_synchronous()
        fault = deployment.record_fault("crashed", "postgres")
        if loses_commits:
            deployment.record_fault("commits_lost", "postgres")
        await asyncio.to_thread(primary.kill)
        deployment.fail_over_to(standby)
        await standby.promote()
        fault.end = time.monotonic()

    async def _inject(self, planned: PlannedFault) -> None:
        fault = self._deployment.record_fault("replies_lost", "postgres")
        self._deployment.injectors.set_rate(planned.rate)
        await asyncio.sleep(planned.duration)
        self._deployment.injectors.set_rate(0)
        fault.end = time.monotonic()
