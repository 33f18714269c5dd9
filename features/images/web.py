"""Images in a web process: what a create may ask of the tool."""

from models.config.upstream import UpstreamSettings
from models.db.queries.api_keys import ApiKey
from models.errors import InvalidRequest
from models.wire.checks.faults import shorten
from models.wire.checks.server_tools import usable_image_tool
from models.wire.request import CreateRequest
from models.wire.tools import IMAGE_GENERATION
from web.http.auth import require_model
from web.state import AppState, Feature


class ImageChecks(Feature):
    """The check of the tool `image_generation`."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        state.hooks.checks.append(self._check)

    async def _check(self, request: CreateRequest, key: ApiKey, *, native: bool) -> None:
        """Raises InvalidRequest for an image model or a mask that the project does not have, and
        ModelNotAllowed for a model that the key may not use. `native`: an upstream comes first that
        may know other models and masks; this server makes images if others answer in its place."""
        validation = self.state.validation
        if native and not self._may_follow(validation.upstreams_of(key, request.model)):
            return
        for index, tool in enumerate(request.parameters.get("tools", ())):
            if tool["type"] != IMAGE_GENERATION:
                continue
            where = f"tools[{index}]"
            options = usable_image_tool(tool) if native else tool
            model = options.get("model")
            if model and not (native or validation.upstreams_of(key, model)):
                raise InvalidRequest(
                    f"The image model '{shorten(model)}' does not exist.",
                    param=f"{where}.model",
                    code="model_not_found",
                )
            if model := model or self.state.settings.images.model:
                require_model(key, model)
            mask = options.get("input_image_mask", {})
            if "file_id" in mask:
                await validation.input_files.check_image(
                    key.project_id,
                    mask["file_id"],
                    f"{where}.input_image_mask.file_id",
                    upstreams=None if native else (),
                )

    def _may_follow(self, upstreams: list[UpstreamSettings]) -> bool:
        has_model = self.state.settings.images.model is not None
        return has_model and any(each.api != "responses" for each in upstreams)


FEATURE = ImageChecks
