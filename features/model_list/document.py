"""The list of models in the API document."""

from openai.types import Model

from features.reference.schemas import Deployment, Json, list_of, operation, response, sdk_object
from models.wire.api_schema import Schema, reference


def operations() -> dict[str, Json]:
    """Name of a route's function -> its operation."""
    listed = response("The configured routes, and the upstreams' models.", "ModelList")
    return {
        "list_models": operation("List the models", listed, 502),
        "one_model": operation("Get a model", response("The model.", "Model"), 502),
    }


def components(_deployment: Deployment) -> dict[str, Schema]:
    """One model, and the list."""
    return {
        "Model": sdk_object(Model, ("shutdown_date",)),
        "ModelList": list_of(reference("Model")),
    }
