"""Images in a worker: models make and edit them."""

from collections.abc import Mapping
from typing import Any

from features.images.tool import ImageGeneration, ImageMaker
from features.images.upstream import ImageUpstreams
from models.projects.routes import ProjectRoutes
from models.wire.checks.server_tools import usable_image_tool
from models.wire.tools import IMAGE_GENERATION
from worker.run.resources import Resources, WorkerFeature
from worker.tools.provider import ToolContext, ToolProvider


class Images(WorkerFeature):
    """The tool `image_generation`."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(resources)
        settings = resources.settings
        self._upstreams = ImageUpstreams(settings.images.bytes)
        self._maker = ImageMaker(resources, self._upstreams, ProjectRoutes(settings))
        resources.tools[IMAGE_GENERATION] = self._tool

    async def close(self) -> None:
        """Closes the connections to upstreams."""
        await self._upstreams.close()

    def _tool(self, tool: Mapping[str, Any], context: ToolContext) -> ToolProvider:
        return ImageGeneration(self._maker, usable_image_tool(tool), context)


FEATURE = Images
"""The tool `image_generation`."""
