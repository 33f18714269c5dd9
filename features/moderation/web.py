"""Moderation in a web process: what a create may ask for."""

from features.moderation.policy import ModerationPolicy, moderated_by_upstreams, unread_part
from models.db.queries.api_keys import ApiKey
from models.errors import InvalidRequest
from models.wire.checks.faults import shorten
from models.wire.request import CreateRequest
from web.http.auth import require_model
from web.state import AppState, Feature


class ModerationChecks(Feature):
    """The check of the parameter `moderation`."""

    def __init__(self, state: AppState) -> None:
        super().__init__(state)
        state.hooks.checks.append(self._check)

    async def _check(self, request: CreateRequest, key: ApiKey, *, native: bool) -> None:  # noqa: ARG002 - several upstreams may serve the model
        """Raises InvalidRequest where nothing can moderate, and ModelNotAllowed for a moderation
        model that the key may not use."""
        wanted = request.parameters.get("moderation")
        if wanted is None:
            return
        validation = self.state.validation
        upstreams = validation.upstreams_of(key, request.model)
        if moderated_by_upstreams(upstreams):
            return
        policy = ModerationPolicy.of(wanted)
        if not validation.upstreams_of(key, policy.model):
            if any(upstream.moderates for upstream in upstreams):
                return
            raise InvalidRequest(
                f"The moderation model '{shorten(policy.model)}' does not exist here, and no "
                "upstream of this model moderates. Name one of GET /v1/models, or leave "
                "'moderation' out.",
                param="moderation.model",
                code="model_not_found",
            )
        require_model(key, policy.model)
        place = unread_part(request.input) if policy.blocks_input else None
        if place is not None:
            raise InvalidRequest(
                f"Files and sound cannot be moderated: '{place}' could reach the model unread. "
                "Leave it out, or set 'moderation.policy.input.mode' to 'score'.",
                param=place,
                code="invalid_value",
            )


FEATURE = ModerationChecks
