"""Runs the errands of a round, and completes the record at its end."""

import asyncio
import json
import random
import time
from typing import Any

from tests.chaos.audit.record import (
    BatchTrace,
    ClientRequest,
    KeptTrace,
    ObjectKind,
    ObjectTrace,
    ProxiedTrace,
    RunRecord,
    SearchTrace,
    StoredFile,
    StoreTrace,
)
from tests.chaos.audit.sources import upstream_log
from tests.chaos.campaign.errands.background import BackgroundErrands
from tests.chaos.campaign.errands.plan import Errand
from tests.chaos.campaign.errands.requests import ErrandRequests, SdkCreate, form
from tests.support.api import JSON, TERMINAL
from tests.support.batches import ENDED
from tests.support.chaos.recording_client import RecordedClients
from tests.support.fake_upstream import Script, reply, status

RETENTION = 4
"""Seconds for which the project of kept responses keeps them."""
_LONGEST = 45.0
"""Seconds after which an errand no longer waits."""
_KEPT_FOR = 22.0
"""Seconds in which a response with a short retention is purged, if it does not run longer."""
_WORDS = 60
"""Words of a file for each of its chunks."""
_PATHS: dict[ObjectKind, str] = {
    "file": "/files",
    "batch": "/batches",
    "vector store": "/vector_stores",
    "conversation": "/conversations",
    "webhook endpoint": "/webhook_endpoints",
    "response": "/responses",
    "kept response": "/responses",
    "schedule": "/schedules",
}
_LISTED: tuple[ObjectKind, ...] = ("file", "batch", "vector store", "webhook endpoint", "schedule")
_PROXIED: dict[str, tuple[str, JSON]] = {
    "/embeddings": ("embeddings", {"input": "x"}),
    "/moderations": ("moderations", {"input": "x"}),
    "/images/generations": ("images", {"prompt": "x", "n": 2}),
    "/audio/speech": ("audio_speeches", {"input": "x", "voice": "alloy"}),
    "/completions": ("completions", {"prompt": "x"}),
    "/chat/completions": ("completions", {"messages": [{"role": "user", "content": "x"}]}),
}
"""Path of a proxied endpoint -> the kind of its usage, and a body."""
_ANSWERED = b'{"object": "list", "data": [], "usage": {"total_tokens": 5, "prompt_tokens": 5}}'


class Errands:
    """The errands of a round. Those that cannot be done end without a trace of their object."""

    def __init__(
        self,
        clients: RecordedClients,
        seed: int,
        hook_url: str,
        *,
        admin_key: str,
        short_key: str,
    ) -> None:
        """`hook_url`: of the receiver of webhooks. `admin_key` may read the usage; `short_key` is
        of the project with a short retention."""
        self._record: RunRecord = clients.record
        self._stack = clients.stack
        self._requests = ErrandRequests(clients)
        self._short = ErrandRequests(clients, short_key)
        self._background = BackgroundErrands(self._record, self._requests, self._stack.fake)
        self._seed = seed
        self._hook_url = hook_url
        self._admin_key = admin_key
        self._began = int(time.time()) - 60

    async def run(self, number: int, errand: Errand) -> None:
        """Does everything that the client of one errand does."""
        await asyncio.sleep(errand.at)
        name = f"e{self._seed}-{number}"
        match errand.kind:
            case "file":
                await self._file(name, errand)
            case "batch":
                await self._batch(name, errand)
            case "store":
                await self._store(name, errand)
            case "conversation":
                items = [{"type": "message", "role": "user", "content": f"First of {name}."}]
                body: JSON = {"items": items, "metadata": {"name": name}}
                await self._plain("conversation", name, errand, body)
            case "endpoint":
                # No event that it would get: only its own existence is judged.
                body = {"name": name, "url": self._hook_url, "event_types": ["batch.expired"]}
                await self._plain("webhook endpoint", name, errand, body)
            case "response":
                await self._response(name, errand)
            case "proxied":
                await self._proxied(name, errand)
            case "kept":
                await self._kept(name, errand)
            case "chain":
                await self._background.chain(name, errand)
            case "schedule":
                await self._background.schedule(name, errand)
            case "steered":
                await self._background.steered(name, errand)

    # --- objects ---

    def _trace(self, kind: ObjectKind, name: str, errand: Errand) -> ObjectTrace:
        trace = ObjectTrace(kind, name, errand.retry)
        self._record.objects.append(trace)
        return trace

    async def _plain(
        self, kind: ObjectKind, name: str, errand: Errand, body: JSON
    ) -> ObjectTrace | None:
        """Makes an object of which only its existence is judged, reads and perhaps deletes it."""
        trace = self._trace(kind, name, errand)
        if await self._create(trace, errand, body) is None:
            return None
        await self._look(trace)
        if errand.delete is not None or errand.is_deleted_at_end or kind == "webhook endpoint":
            await asyncio.sleep(errand.delete or 0)
            await self._delete(trace)
        return trace

    async def _create(self, trace: ObjectTrace, errand: Errand, body: JSON) -> str | None:
        resources = {
            "batch": "batches",
            "vector store": "vector_stores",
            "conversation": "conversations",
            "webhook endpoint": "webhooks",
            "response": "responses",
        }

        async def sdk(client: Any) -> Any:
            return await getattr(client, resources[trace.kind]).create(**body)

        return await self._requests.create(trace, errand, _PATHS[trace.kind], body, sdk)

    async def _look(self, trace: ObjectTrace) -> ClientRequest:
        path = f"{_PATHS[trace.kind]}/{trace.id}"
        await self._requests.as_stranger(trace, path)
        return await self._requests.insist(trace, "get", "GET", path)

    async def _delete(self, trace: ObjectTrace) -> None:
        path = f"{_PATHS[trace.kind]}/{trace.id}"
        await self._requests.insist(trace, "delete", "DELETE", path)
        await self._requests.insist(trace, "get", "GET", path)

    async def _upload(
        self, name: str, errand: Errand, content: bytes, purpose: Any = "assistants"
    ) -> ObjectTrace:
        trace = self._trace("file", name, errand)

        async def sdk(client: Any) -> Any:
            return await client.files.create(file=(name, content), purpose=purpose)

        create: SdkCreate = sdk
        body = form(name, content, purpose)
        await self._requests.create(trace, errand, "/files", body, create)
        return trace

    async def _file(self, name: str, errand: Errand) -> None:
        trace = await self._upload(f"{name}.txt", errand, name.encode() * 100)
        if trace.id is not None:
            await self._look(trace)
            if errand.delete is not None:
                await asyncio.sleep(errand.delete)
                await self._delete(trace)

    # --- batches ---

    async def _batch(self, name: str, errand: Errand) -> None:
        lines = [f"{name}-{number}" for number in range(errand.size)]
        is_chat = errand.size % 3 == 0
        url = "/v1/chat/completions" if is_chat else "/v1/responses"
        for line in lines:
            self._script(line, reply("done ", line, gap=0.2))
        said = {"messages": [{"role": "user", "content": "x"}]} if is_chat else {"input": "x"}
        requests = [
            {"custom_id": line, "method": "POST", "url": url, "body": {"model": line, **said}}
            for line in lines
        ]
        content = "".join(f"{json.dumps(request)}\n" for request in requests).encode()
        file = await self._upload(f"{name}.jsonl", errand, content, "batch")
        if file.id is None:
            return
        batch = BatchTrace(self._trace("batch", name, errand), lines)
        self._record.batches.append(batch)
        body: JSON = {
            "input_file_id": file.id,
            "endpoint": url,
            "completion_window": "24h",
            "metadata": {"name": name},
        }
        trace = batch.created
        if await self._create(trace, errand, body) is None:
            return
        await self._requests.as_stranger(trace, f"/batches/{trace.id}")
        if errand.delete is not None:
            await asyncio.sleep(errand.delete)
            await self._requests.insist(trace, "cancel", "POST", f"/batches/{trace.id}/cancel", {})
        shown = await self._until(trace, f"/batches/{trace.id}", ENDED)
        if shown is not None:
            await self._read_results(batch, shown)

    async def _read_results(self, batch: BatchTrace, shown: JSON) -> None:
        found: dict[str, list[str]] = {}
        for field in ("output_file_id", "error_file_id"):
            raw: bytes | None = b""
            if shown[field] is not None:
                raw = await self._requests.read(f"/files/{shown[field]}/content")
            if raw is None:
                return
            found[field] = [json.loads(line)["custom_id"] for line in raw.splitlines()]
        batch.status = shown["status"]
        batch.output, batch.errors = found["output_file_id"], found["error_file_id"]

    async def _until(self, trace: ObjectTrace, path: str, statuses: Any) -> JSON | None:
        """GETs until the status is one of these; None if that takes too long."""
        end = time.monotonic() + _LONGEST
        while time.monotonic() < end:
            request = await self._requests.once(trace, "get", "GET", path)
            if request.status == 404 or request.body.get("status") in statuses:
                return request.body if request.status == 200 else None
            await asyncio.sleep(0.4)
        return None

    # --- vector stores ---

    async def _store(self, name: str, errand: Errand) -> None:
        store = StoreTrace(self._trace("vector store", name, errand))
        self._record.stores.append(store)
        trace = store.created
        if await self._create(trace, errand, {"name": name}) is None:
            return
        for number in range(min(errand.size, 3)):
            marker = f"{name}f{number}".replace("-", "x")
            words = [f"{marker}w{word}" for word in range(_WORDS * errand.size)]
            file = await self._upload(f"{marker}.txt", errand, " ".join(words).encode())
            if file.id is not None:
                store.files.append(StoredFile(file.id, words))
        path = f"/vector_stores/{trace.id}"
        static = {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}
        body: JSON = {
            "file_ids": [file.id for file in store.files],
            "chunking_strategy": {"type": "static", "static": static},
        }
        # A repeated create of a batch of files adds nothing: a file is in a store once.
        added = ObjectTrace("vector store", name)
        request = await self._requests.insist(added, "search", "POST", f"{path}/file_batches", body)
        if request.status != 200:
            store.files.clear()
            return
        await asyncio.gather(*(self._ingested(path, file) for file in store.files))
        await self._requests.as_stranger(trace, path)
        await self._search(store, path)
        if store.files and errand.delete is not None:
            removed = store.files[0]
            gone = f"{path}/files/{removed.id}"
            request = await self._requests.insist(added, "cancel", "DELETE", gone)
            if request.status == 200:
                removed.removed = request.answered
            await self._search(store, path)
        if errand.is_deleted_at_end:
            await self._delete(trace)

    async def _ingested(self, path: str, file: StoredFile) -> None:
        entry = ObjectTrace("vector store", file.id)
        shown = await self._until(entry, f"{path}/files/{file.id}", {"completed", "failed"})
        if shown is None:
            return
        raw = await self._requests.read(f"{path}/files/{file.id}/content")
        if raw is not None:
            file.status = shown["status"]
            file.chunks = [chunk["text"] for chunk in json.loads(raw)["data"]]

    async def _search(self, store: StoreTrace, path: str) -> None:
        words = [word for file in store.files for word in file.words[:2]]
        sought = ObjectTrace("vector store", store.created.name)
        body = {"query": " ".join(words) or "x", "max_num_results": 50}
        request = await self._requests.insist(sought, "search", "POST", f"{path}/search", body)
        if request.status == 200:
            found = [(one["file_id"], one["content"][0]["text"]) for one in request.body["data"]]
            store.searches.append(SearchTrace(request.sent, found))

    # --- responses ---

    async def _response(self, name: str, errand: Errand) -> None:
        self._script(name, reply(*(f"{name}.{word} " for word in range(errand.size)), gap=0.1))
        trace = self._trace("response", name, errand)
        body: JSON = {"model": name, "input": f"This is {name}.", "background": True}
        if await self._create(trace, errand, body) is None:
            return
        path = f"/responses/{trace.id}"
        await self._requests.as_stranger(trace, path)
        await self._until(trace, path, TERMINAL)
        if errand.delete is not None:
            await self._delete(trace)

    async def _kept(self, name: str, errand: Errand) -> None:
        """A response of a project with a short retention; half of them run for longer than that."""
        gap = (RETENTION + 2) / errand.size if errand.size % 2 else 0.1
        self._script(name, reply(*(f"{name}.{word} " for word in range(errand.size)), gap=gap))
        trace = ObjectTrace("kept response", name)
        body: JSON = {"model": name, "input": "x", "background": True}

        async def never(client: Any) -> Any:
            raise NotImplementedError

        if await self._short.create(trace, errand, "/responses", body, never) is None:
            return
        self._record.objects.append(trace)
        self._record.kept.append(KeptTrace(trace, RETENTION))
        end = time.monotonic() + _KEPT_FOR
        while time.monotonic() < end:
            request = await self._short.once(trace, "get", "GET", f"/responses/{trace.id}")
            if request.status == 404:
                return
            await asyncio.sleep(0.3)
        await self._until_ended(trace)

    async def _until_ended(self, trace: ObjectTrace) -> None:
        """Waits for a response that faults have kept from its end for long."""
        end = time.monotonic() + _LONGEST
        while time.monotonic() < end:
            request = await self._short.once(trace, "get", "GET", f"/responses/{trace.id}")
            if request.status == 404 or request.body.get("status") in TERMINAL:
                return
            await asyncio.sleep(0.4)

    # --- proxied requests ---

    async def _proxied(self, name: str, errand: Errand) -> None:
        rng = random.Random(name)  # must be repeatable, not secret
        for number in range(errand.size):
            path = rng.choice(list(_PROXIED))
            marker = f"{name}-{number}"
            is_chat = path == "/chat/completions"
            self._script(marker, reply("x") if is_chat else [status(200, _ANSWERED)])
            request = ClientRequest("create", "", time.monotonic())
            self._record.proxied.append(ProxiedTrace(marker, path, request))
            body = {"model": marker, **_PROXIED[path][1]}
            await self._requests.send_proxied(request, path, body)

    def _script(self, marker: str, script: Script) -> None:
        self._stack.fake.script(script, name=marker)

    # --- the end ---

    async def finish(self) -> None:
        """Completes the record: lists, usage, and the upstream's log."""
        for kind in _LISTED:
            await self._list(kind)
        await self._read_usage()
        markers = {line for batch in self._record.batches for line in batch.lines}
        markers |= {one.marker for one in self._record.proxied}
        markers |= {
            one.name
            for one in self._record.objects
            if "response" in one.kind or one.kind == "schedule"
        }
        self._record.object_calls = upstream_log(self._stack.fake, markers)

    async def _list(self, kind: ObjectKind) -> None:
        """Notes in each trace of this kind which objects have its name."""
        raw = await self._requests.read(f"{_PATHS[kind]}?limit=100&order=desc")
        if raw is None:
            return
        objects = json.loads(raw)["data"]
        for trace in self._record.objects:
            if trace.kind == kind:
                trace.listed = [one["id"] for one in objects if _name(one) == trace.name]

    async def _read_usage(self) -> None:
        """How often each proxied request was counted; waits a moment for those that are not."""
        end = time.monotonic() + 5
        while self._record.proxied:
            for kind in {kind for kind, _ in _PROXIED.values()}:
                await self._read_usage_of(kind)
            if time.monotonic() > end or all(
                one.counted or one.request.status != 200 for one in self._record.proxied
            ):
                return
            await asyncio.sleep(0.5)

    async def _read_usage_of(self, kind: str) -> None:
        traces = {one.marker: one for one in self._record.proxied if _PROXIED[one.path][0] == kind}
        if not traces:
            return
        models = "".join(f"&models[]={marker}" for marker in traces)
        path = f"/organization/usage/{kind}?start_time={self._began}&group_by[]=model{models}"
        raw = await self._requests.read(path, self._admin_key)
        results = [
            one
            for bucket in json.loads(raw or b'{"data": []}')["data"]
            for one in bucket["results"]
        ]
        for trace in traces.values():
            trace.counted = sum(
                one["num_model_requests"] for one in results if one["model"] == trace.marker
            )


def _name(shown: JSON) -> str | None:
    """The name that a client has given an object."""
    name: str | None = shown.get("filename") or shown.get("name")
    return name or (shown.get("metadata") or {}).get("name")
