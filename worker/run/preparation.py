"""The beginning of a run: its first events, then history, files, credentials and tools."""

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import orjson

from models.db.database import (
    Pool,
    fetch_unless_refused,
    fetch_when_available,
    retry_while_unavailable,
)
from models.db.queries.claim import CHECKPOINTED_OUTPUT, CheckpointedItem
from models.db.queries.history import HISTORY, HistoryRow
from models.egress import EgressPolicy
from models.errors import (
    Deferred,
    FailedCall,
    RunError,
    ToolFailed,
    Unavailable,
    UpstreamFailed,
    history_too_large_message,
)
from models.ids import continue_after
from models.secrets import Sealed, Unreadable
from models.tracing.spans import Span
from models.wire.events import Item
from models.wire.image_marks import marks_of
from models.wire.json_input import json_size
from models.wire.purpose import Purpose
from models.wire.tools import with_added_search
from models.wire.urls import item_urls, parameter_urls
from worker.run.attachments import Attachments, history_urls, require_handed_on
from worker.run.attempt import Attempt
from worker.run.attempt_writer import AttemptWriter
from worker.run.compaction import Compactions, ends_with_trigger, expand_input
from worker.run.context import RunContext
from worker.run.moderation import Moderation, RunInput
from worker.run.output import history_item
from worker.run.resources import Resources
from worker.run.sealing import CallOrigins
from worker.run.stored_files import STORAGE_UNAVAILABLE, StoredFiles, storage_failure
from worker.tools.listing_cache import ListingCache
from worker.tools.provider import ToolContext
from worker.tools.toolbox import Toolbox
from worker.translation.returned_content import item_key

_DECODED_AT_ONCE = 256 * 1024
"""Bytes of a history that are decoded without a pause: one to three milliseconds."""


class NoMemory(RunError):
    """The worker has no memory for the history now: the response is released."""


async def prepare_run(
    attempt: Attempt,
    writer: AttemptWriter,
    resources: Resources,
    is_draining: Callable[[], bool],
    span: Span,
) -> RunContext:
    """The context of the run. `span`: of the attempt. Raises RunError if the response cannot run
    with this input, and NoMemory."""
    loaded, own_count, stored_origins = await _load_input(attempt, resources)
    purpose = attempt.stored.purpose
    if purpose is Purpose.ANSWER and ends_with_trigger(loaded):
        purpose = Purpose.COMPACT
    row = attempt.claim.row
    compactions = Compactions(
        row.project_id,
        resources.sealer,
        resources.settings.compaction,
        attempt.facts.parameters,
        history_parameter=attempt.continuation_parameter,
    )
    history, own_count, skipped = expand_input(loaded, own_count, compactions)
    egress = await _checked_egress(attempt, resources, history, own_count, skipped)
    stored = StoredFiles(resources.pool, resources.storage, row.project_id, row.created_at)
    attachments = Attachments(egress, resources.file_memory, stored=stored)
    try:
        history = await _with_images(attempt, resources, history)
        if purpose in (Purpose.ANSWER, Purpose.COUNT):
            history = await attachments.fetch(
                history,
                own_count,
                history_parameter=attempt.continuation_parameter,
                skipped=skipped,
                only_stored=purpose is Purpose.COUNT,
            )
        toolbox = await _open_toolbox(attempt, writer, resources, history, egress)
        run_input = RunInput(history, own_count, attachments.with_stored)
        moderation = await _open_moderation(attempt, resources, run_input)
    except BaseException as error:
        attachments.close()
        if isinstance(error, UpstreamFailed) and error.reason == STORAGE_UNAVAILABLE:
            raise _waiting_for_files(error, can_wait=attempt.facts.background) from error
        raise
    return RunContext(
        attempt=attempt,
        writer=writer,
        resources=resources,
        purpose=purpose,
        history=history,
        attachments=attachments,
        call_origins=CallOrigins(resources.pool, resources.sealer, row.project_id, stored_origins),
        toolbox=toolbox,
        compactions=compactions,
        moderation=moderation,
        is_draining=is_draining,
        span=span,
    )


async def write_first_events(attempt: Attempt, writer: AttemptWriter, pool: Pool) -> None:
    """Starts the response, or closes what an earlier attempt left open.

    Nothing depends on when a client receives `response.in_progress`. Stored at once, it would delay
    the request to the upstream, and a first delta that comes soon would wait for the next batch.
    """
    if attempt.is_first:
        writer.write(attempt.start(), may_wait=True)
        return
    rows: list[CheckpointedItem] = []
    if attempt.claim.row.checkpoint_number >= 0:
        rows = await fetch_when_available(pool, CHECKPOINTED_OUTPUT, {"id": attempt.claim.id})
    writer.write(attempt.resume(rows))
    output = attempt.output
    continue_after(item["id"] for item in [*output.items, *output.unstored_items])


async def _load_input(
    attempt: Attempt, resources: Resources
) -> tuple[list[Item], int, dict[str, str | None]]:
    """The history with the input of the request, how many of its last items are that input, and the
    origins of the items that were made here (worker/run/sealing.py).
    Raises what `_load_history` does, and NoMemory."""
    claimed = attempt.claim.row.input
    if claimed is not None:
        attempt.history_size = json_size(claimed)
        return claimed, len(claimed), {}
    async with resources.memory.load() as has_memory:
        if not has_memory:
            raise NoMemory
        return await _load_history(attempt, resources)


async def _load_history(
    attempt: Attempt, resources: Resources
) -> tuple[list[Item], int, dict[str, str | None]]:
    """What `_load_input` returns."""
    max_size = resources.settings.limits.history
    values = {"id": attempt.claim.id, "max_size": max_size}
    rows = await fetch_unless_refused(
        resources.pool, HISTORY, values, resources.ownership.others_succeed, json_as=bytes
    )
    if any(row.broken for row in rows):
        raise UpstreamFailed.of_request(
            "A response or conversation that this one continues has been deleted.",
            "history_deleted",
            param=attempt.continuation_parameter,
            envelope_code="previous_response_not_found"
            if attempt.facts.conversation_id is None
            else "conversation_not_found",
        )
    if rows[0].total_size > max_size:
        raise _history_too_large(attempt, max_size)
    attempt.history_size = rows[0].total_size
    items, origins = await decode_history(
        rows, partial(resources.fast_reads.wait, attempt.claim.row.project_id)
    )
    return items, sum(row.depth == 0 for row in rows), origins


async def decode_history(
    rows: Iterable[HistoryRow], pause: Callable[[], Awaitable[None]]
) -> tuple[list[Item], dict[str, str | None]]:
    """The items in the rows, and the origins of those that were made here. Awaits `pause` after
    each part of a large history: decoded at once, it would delay all other streams."""
    items: list[Item] = []
    origins: dict[str, str | None] = {}
    undecoded = _DECODED_AT_ONCE
    for row in rows:
        if row.payload is None:
            continue
        item = orjson.loads(row.payload)
        answer = None if row.result is None else orjson.loads(row.result)
        items.append(history_item(item, row.turn, answer))
        if row.is_output:
            origins[item_key(item)] = row.origin
        undecoded -= len(row.payload)
        if undecoded <= 0:
            undecoded = _DECODED_AT_ONCE
            await pause()
    return items, origins


async def _with_images(attempt: Attempt, resources: Resources, history: list[Item]) -> list[Item]:
    """The history with the images that are stored, if an upstream may want them: only native ones
    know image calls. Raises UpstreamFailed."""
    if next(marks_of(history), None) is None:
        return history
    project = attempt.claim.row.project_id
    policy = await resources.policies.policy(project)
    candidates = resources.upstreams.candidates(attempt.facts.model, project, policy)
    if not any(each.upstream.is_native for each in candidates):
        return history
    try:
        return await retry_while_unavailable(lambda: resources.images.filled(project, history))
    except Unavailable as error:
        raise storage_failure() from error


async def _checked_egress(
    attempt: Attempt, resources: Resources, history: list[Item], own_count: int, skipped: int
) -> EgressPolicy:
    """The egress rules of the response's project; read only if they may matter. Raises
    UpstreamFailed for a URL in the history or the parameters that the upstream may not fetch."""
    parameters = attempt.facts.parameters
    urls = [
        *history_urls(
            history,
            own_count,
            history_parameter=attempt.continuation_parameter,
            skipped=skipped,
        ),
        *parameter_urls(parameters, resources.all_passthrough),
    ]
    if not urls and not parameters.get("tools") and next(item_urls(history), None) is None:
        return resources.egress
    egress = await resources.egress_of(attempt.claim.row.project_id)
    await require_handed_on(urls, egress)
    return egress


def _waiting_for_files(failure: UpstreamFailed, *, can_wait: bool) -> RunError:
    """The error to raise while the storage of files does not answer."""
    if not can_wait:
        return failure
    return Deferred(1.0, [FailedCall("file storage", failure.reason, failure.message)])


def _history_too_large(attempt: Attempt, max_size: int) -> UpstreamFailed:
    return UpstreamFailed.of_request(
        history_too_large_message(max_size),
        "history_too_large",
        param=attempt.continuation_parameter if attempt.is_continuation else "input",
        envelope_code="history_too_large",
    )


async def _open_moderation(
    attempt: Attempt, resources: Resources, run_input: RunInput
) -> Moderation | None:
    for opens in resources.moderations:
        if (moderation := await opens(attempt, run_input)) is not None:
            return moderation
    return None


async def _open_toolbox(
    attempt: Attempt,
    writer: AttemptWriter,
    resources: Resources,
    history: list[Item],
    egress: EgressPolicy,
) -> Toolbox:
    tools = with_added_search(attempt.facts.parameters.get("tools", []), history)
    has_mcp = any(tool["type"] == "mcp" for tool in tools)
    credentials = _open_credentials(attempt, resources) if has_mcp else {}
    row = attempt.claim.row
    context = ToolContext(
        resources.settings,
        egress,
        credentials,
        attempt.include,
        row.project_id,
        row.api_key_id,
        tools,
        ListingCache(resources.redis, resources.sealer),
        writer.show_call,
    )
    return await Toolbox.of(tools, context, resources.tools)


def _open_credentials(attempt: Attempt, resources: Resources) -> dict[str, Any]:
    """The client's credentials for MCP servers: server_label -> `authorization`, `headers`."""
    row = attempt.claim.row
    if row.secrets_key_id is None or row.sealed_secrets is None:
        return {}
    try:
        return resources.sealer.open(row.id, Sealed(row.secrets_key_id, row.sealed_secrets))
    except Unreadable:
        message = (
            "The credentials for this response's MCP servers can no longer be read: "
            "this server's sealing keys have changed."
        )
        raise ToolFailed(message, reason="secrets_unreadable") from None
