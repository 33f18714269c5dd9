"""The tool `image_generation` of one request (docs/tools.md), the images in a conversation, which
an edit changes, and images in the file storage: the item of a call has a mark of its image
(models/wire/image_marks.py)."""

import asyncio
import base64
import hashlib
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog

from features.files.queries import COMPLETE_FILE, FILE_PARTS
from features.images import upstream
from features.images.queries import FIND_IMAGE, INSERT_IMAGE, ImageFile
from features.usage_entries import FeatureCall, count_call
from models.config.groups import ImageSettings
from models.db.database import fetch, fetch_when_available, retry_while_unavailable
from models.egress import EgressPolicy, EgressRefused
from models.errors import Unavailable, UpstreamFailed
from models.files.content import FileGone, write_part
from models.files.response_images import ResponseImages, image_file
from models.files.storage import CHUNK, FileStorage, StorageError
from models.ids import PROJECT, admin_id, parse_file_id
from models.projects.routes import ProjectRoutes
from models.wire.events import Item, PartialImage
from models.wire.image_marks import ImageMark, marks_of
from models.wire.token_counts import NO_TOKENS, UsageKind, usage_in
from worker.outbound.download import Downloader, DownloadError, FetchedFile
from worker.run.resources import Resources
from worker.run.stored_files import StoredFiles
from worker.tools.provider import ToolCallError, ToolContext, ToolResult
from worker.translation.functions import ServerFunction
from worker.translation.items.server_calls import OpenCallFactory, OpenImageCall

_WRITE_TIME = timedelta(seconds=30)
"""For an image: a storage that hangs must not take the time of the call."""


async def find_image(resources: Resources, project: UUID, item_id: str) -> ImageFile | None:
    """The image of an item, as `store_image` has stored it; None: it has not."""
    values = {"id": image_file(item_id), "project": project}
    rows = await fetch_when_available(resources.pool, FIND_IMAGE, values)
    return rows[0] if rows else None


async def store_image(
    resources: Resources, project: UUID, item_id: str, content: bytes, media_type: str
) -> ImageFile | None:
    """Stores the image of an item that is stored, once, before its result is. None: the image stays
    in the item. Waits while PostgreSQL is away."""
    storage, file = resources.storage, image_file(item_id)
    if storage is None or file is None:
        return None
    if (await resources.policies.policy(project)).zero_retention:
        return None  # A deleted file may stay for a while (docs/files.md).
    digest = (await asyncio.to_thread(hashlib.sha256, content)).hexdigest()
    values: dict[str, object] = {
        "id": file,
        "project": project,
        "item": item_id,
        "digest": digest,
        "bytes": len(content),
        "media_type": media_type,
        "upload_time": _WRITE_TIME,
    }
    try:
        await retry_while_unavailable(lambda: _write(resources, storage, values, content))
    except (StorageError, FileGone, TimeoutError) as error:
        # It was paid for: PostgreSQL has it, as without a storage.
        logger.warning("image_stored_in_item", item=item_id, error=str(error) or "it took too long")
        return None
    return ImageFile(digest, len(content), media_type)


async def _write(
    resources: Resources, storage: FileStorage, values: dict[str, object], content: bytes
) -> None:
    """May be repeated. Raises FileGone, StorageError and TimeoutError."""
    pool, file = resources.pool, values["id"]
    assert isinstance(file, UUID)
    await fetch(pool, INSERT_IMAGE, values)
    if not await fetch(pool, FILE_PARTS, {"id": file}):
        await write_part(pool, storage, file, _chunks(content), number=0, upload_time=_WRITE_TIME)
    completed = {"id": file, "bytes": values["bytes"], "media_type": values["media_type"]}
    if await fetch(pool, COMPLETE_FILE, {**completed, "purpose": None, "lifetime": None}):
        return
    if not await fetch(pool, FIND_IMAGE, {"id": file, "project": values["project"]}):
        raise FileGone("its response was deleted")


async def _chunks(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), CHUNK):
        yield content[start : start + CHUNK]


Source = str | FetchedFile | ImageMark
"""base64, an address, a file that is stored here, or an image that was made here."""


def editable(history: Sequence[Item]) -> list[Source]:
    """What an edit without further words means, oldest image first: the newest image that was made,
    and those that the conversation got after it; if none was made, all."""
    found: list[Source] = []
    for item in history:
        if item["type"] == "image_generation_call":
            if isinstance(image := item.get("result"), str) and image:
                found = [image]
            found = list(marks_of([item])) or found
            continue
        for content in (item.get("content"), item.get("output")):
            found += _parts(content)
    return found


def _parts(content: Any) -> Iterator[Source]:
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping) and part.get("type") == "input_image":
            url = part.get("image_url")
            if isinstance(url, (str, FetchedFile)):
                yield url


class InputImages:
    """Reads the images for one response."""

    def __init__(
        self,
        settings: ImageSettings,
        egress: EgressPolicy,
        files: StoredFiles,
        images: ResponseImages,
    ) -> None:
        """`files`: those of the project."""
        self._max_bytes = settings.bytes
        self._egress = egress
        self._files = files
        self._images = images
        self._downloads = Downloader(egress, redirects=egress.settings.redirects)

    async def read(self, source: Source) -> upstream.InputImage:
        """The image. Raises NoImage."""
        if isinstance(source, FetchedFile):
            content = source.content
            if content is None:
                content = await self._read_stored(source)
        elif isinstance(source, ImageMark):
            content = await self._read_made(source)
        elif source.startswith(("http://", "https://")):
            content = await self.download(source)
        else:
            content = await asyncio.to_thread(upstream.decoded, source, self._max_bytes)
        return upstream.InputImage(content, upstream.kind_of(content, self._max_bytes))

    async def mask(self, mask: Mapping[str, Any]) -> upstream.InputImage | None:
        """The mask of a tool. Raises NoImage."""
        if isinstance(url := mask.get("image_url"), str):
            return await self.read(url)
        wanted = parse_file_id(mask.get("file_id", ""))
        return None if wanted is None else await self._stored_mask(wanted)

    async def download(self, url: str) -> bytes:
        """The bytes at an address. Raises NoImage."""
        seconds = self._egress.settings.timeout.total_seconds()
        try:
            file = await self._downloads.fetch(url, max_bytes=self._max_bytes, time_limit=seconds)
        except (EgressRefused, DownloadError) as error:
            raise upstream.NoImage(f"The image could not be downloaded: {error}.") from None
        return file.content

    async def _read_made(self, mark: ImageMark) -> bytes:
        try:
            content = await self._images.image(self._files.project, mark)
        except Unavailable as error:
            raise upstream.NoImage(str(error)) from None
        if content is None:
            raise upstream.NoImage("The image that is to be edited does not exist any more.")
        return content

    async def _stored_mask(self, file: UUID) -> upstream.InputImage:
        found = (await self._files.find([file])).get(file)
        if found is None:
            raise upstream.NoImage("The file of the mask does not exist any more.")
        if found.size > self._max_bytes:
            raise upstream.NoImage(f"The mask is larger than {self._max_bytes} bytes.")
        content = (await self._read(found.read(self._max_bytes, self._deadline()))).content
        return upstream.InputImage(content, upstream.kind_of(content, self._max_bytes))

    async def _read_stored(self, file: FetchedFile) -> bytes:
        limit = self._egress.settings.file_bytes
        content: bytes = (await self._read(file.source.read(limit, self._deadline()))).content
        return content

    async def _read(self, reading: Any) -> Any:
        try:
            return await reading
        except UpstreamFailed as error:
            raise upstream.NoImage(str(error)) from None

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._egress.settings.timeout.total_seconds()


def project_files(pool: Any, storage: Any, project: UUID) -> StoredFiles:
    """The files that the project has now."""
    return StoredFiles(pool, storage, project, int(time.time()))


def encoded(content: bytes) -> str:
    """An image as items have it."""
    return base64.b64encode(content).decode()


logger = structlog.get_logger()

_DESCRIPTION = "Makes an image from a prompt. The user sees the image."
_EDITS = (
    " With the action 'edit' it changes the newest image of the conversation: the prompt says how."
)
_PROMPT = {"type": "string", "description": "What the image shows, in all details that matter."}
_ACTION = {"type": "string", "enum": ["generate", "edit"]}
_OPTIONS = ("size", "quality", "background", "output_format", "output_compression")
_OPTION_OF = {"generate": (*_OPTIONS, "moderation"), "edit": (*_OPTIONS, "input_fidelity")}
"""Action -> options that the Images API takes for it."""


@dataclass(frozen=True, slots=True)
class ImageMaker:
    """What all tools of a process share."""

    resources: Resources
    upstreams: upstream.ImageUpstreams
    routes: ProjectRoutes

    @property
    def settings(self) -> ImageSettings:
        """Which model makes images, and their limits."""
        return self.resources.settings.images

    async def make(
        self, project: UUID, model: str, request: upstream.ImageRequest, on_partial: Any
    ) -> upstream.MadeImage:
        """The answer of an upstream that serves the model for the project. Raises NoImage and
        ToolCallError."""
        policy = await self.resources.policies.policy(project)
        routes = self.routes.of(project, policy.routes)
        destinations = [each for each in routes.find(model) if each.upstream.base_url]
        return await self.upstreams.make(request, destinations, on_partial)

    async def count(
        self, context: ToolContext, item: Item, model: str, made: upstream.MadeImage
    ) -> None:
        """Adds the call to the usage of the project, once. Waits while PostgreSQL is away."""
        assert context.project is not None
        call = FeatureCall(
            UUID(hex=item["id"].rpartition("_")[2]),
            context.project,
            context.api_key,
            UsageKind.IMAGES,
            model,
            made.upstream,
            usage_in(made.answer.usage) or NO_TOKENS,
            units=1,
        )
        await count_call(self.resources, call)


class ImageGeneration:
    """Makes the images of one response. Without a model in the settings it offers no function."""

    in_order = False

    def __init__(self, maker: ImageMaker, tool: Mapping[str, Any], context: ToolContext) -> None:
        """`tool`: its options, checked."""
        assert context.project is not None
        self._maker = maker
        self._tool = tool
        self._context = context
        self._project = context.project
        self._max_bytes = maker.settings.bytes
        self.time: float | None = maker.settings.time.total_seconds()
        self._editable: list[Source] = []
        resources = maker.resources
        files = project_files(resources.pool, resources.storage, context.project)
        self._inputs = InputImages(maker.settings, context.egress, files, resources.images)

    def pending(self, history: Sequence[Item]) -> list[OpenCallFactory]:
        """Only the model starts calls; what they may edit is in the history."""
        self._editable = editable(history)
        return []

    def functions(self) -> list[ServerFunction]:
        if self._maker.settings.model is None:
            return []
        can_edit = bool(self._editable) and self._action in ("auto", "edit")
        has_choice = can_edit and self._action == "auto"
        parameters = {
            "type": "object",
            "properties": {"prompt": _PROMPT, **({"action": _ACTION} if has_choice else {})},
            "required": ["prompt"],
            "additionalProperties": False,
        }
        description = f"{_DESCRIPTION}{_EDITS if has_choice else ''}"
        tool = {"type": "image_generation"}
        return [ServerFunction(tool, "image_generation", _open, description, parameters)]

    def owns(self, item: Item) -> bool:
        return bool(item["type"] == OpenImageCall.kind)

    def is_repeatable(self, item: Item) -> bool:  # noqa: ARG002 - each image is paid for
        return False

    async def run(self, item: Item) -> ToolResult:
        """Makes the image. Raises ToolCallError without a prompt, or if the outcome is unknown."""
        prompt = item.get("revised_prompt")
        if not prompt:
            raise ToolCallError("An image needs a 'prompt' that says what it shows.")
        try:
            return await self._make(item, prompt)
        except upstream.NoImage as error:
            reason = str(error)
            logger.info(
                "image_not_made",
                item=item["id"],
                project=admin_id(PROJECT, self._project),
                code=error.code,
                error=reason,
            )
            fields = {"type": "image_generation_error", "code": error.code, "message": reason}
            return ToolResult({"error": fields}, failed=True, tool_output=f"Error: {reason}")

    async def close(self) -> None:
        """Does nothing: the process has the connections."""

    @property
    def _action(self) -> str:
        action: str = self._tool.get("action", "auto")
        return action

    def _action_of(self, item: Item) -> str:
        action: str = item.get("action", "generate") if self._action == "auto" else self._action
        return action

    async def _make(self, item: Item, prompt: str) -> ToolResult:
        action = self._action_of(item)
        model: str = self._tool.get("model") or self._maker.settings.model or ""
        images = await self._input_images() if action == "edit" else []
        request = upstream.ImageRequest(
            item["id"],
            prompt,
            {**self._options(action), **self._response_format()},
            images,
            await self._inputs.mask(self._tool.get("input_image_mask", {})) if images else None,
            self._tool.get("partial_images", 0),
        )
        shown = 0

        async def show_partial(data: str) -> None:
            nonlocal shown
            try:
                preview = encoded(await asyncio.to_thread(upstream.decoded, data, self._max_bytes))
            except upstream.NoImage:
                return
            number, shown = shown, shown + 1
            await self._context.show(
                item["id"], lambda item_id, index: PartialImage(item_id, index, number, preview)
            )

        made = await self._maker.make(self._project, model, request, show_partial)
        await self._maker.count(self._context, item, model, made)
        content = await self._content(made)
        fields: dict[str, Any] = {"action": action, **made.answer.fields}
        kind = upstream.kind_of(content, self._max_bytes)
        resources = self._maker.resources
        stored = await store_image(resources, self._project, item["id"], content, kind)
        if stored is not None:
            return _result(fields, kind, stored.mark)
        return _result(fields, kind, await asyncio.to_thread(encoded, content))

    async def recover(self, item: Item) -> ToolResult | None:
        """The image that was stored, and counted, before its worker died. What the upstream
        reported about it is lost."""
        stored = await find_image(self._maker.resources, self._project, item["id"])
        if stored is None:
            return None
        return _result({"action": self._action_of(item)}, stored.media_type, stored.mark)

    async def _input_images(self) -> list[upstream.InputImage]:
        """What is edited. Raises NoImage."""
        newest = self._editable[-self._maker.settings.inputs :]
        if not newest:
            raise upstream.NoImage("There is no image in the conversation that could be edited.")
        images: list[upstream.InputImage] = []
        bytes_left = self._context.settings.egress.file_bytes
        for source in newest:
            images.append(await self._inputs.read(source))
            bytes_left -= len(images[-1].content)
            if bytes_left < 0:
                raise upstream.too_large(self._context.settings.egress.file_bytes)
        return images

    def _options(self, action: str) -> dict[str, Any]:
        return {name: self._tool[name] for name in _OPTION_OF[action] if name in self._tool}

    def _response_format(self) -> dict[str, str]:
        wanted = self._maker.settings.response_format
        return {} if wanted is None else {"response_format": wanted}

    async def _content(self, made: upstream.MadeImage) -> bytes:
        """The image itself. Raises NoImage."""
        if made.answer.data:
            return await asyncio.to_thread(upstream.decoded, made.answer.data, self._max_bytes)
        return await self._inputs.download(made.answer.url)


def _result(fields: dict[str, Any], media_type: str, image: Any) -> ToolResult:
    """The result of a call that has made an image. `image`: the field `result`."""
    verb = "edited" if fields["action"] == "edit" else "made"
    return ToolResult(
        {**fields, "output_format": media_type.rpartition("/")[2], "result": image},
        tool_output=f"The image was {verb}, and the user sees it.",
    )


def _open(output_index: int, new_id: Any) -> OpenImageCall:
    return OpenImageCall(output_index, new_id(OpenImageCall.prefix))
