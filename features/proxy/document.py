"""The endpoints that are forwarded, in the API document."""

from features.proxy.endpoints import ENDPOINTS, ProxiedEndpoint
from features.reference import schemas
from features.reference.document import UPSTREAM_STATUSES
from features.reference.meaning import PARAMETERS, STATUSES
from models.wire.api_schema import Schema, nullable, object_schema, reference

CODES = {
    "endpoint_not_offered": "the model's upstream does not have this endpoint",
}
_BODY = (
    "A body of this endpoint in OpenAI's API. This server reads only `model`, to select the "
    "upstream. The upstream checks everything else."
)
_FORM_BODY = (
    "The same as a form. Fields and files are sent on while they arrive; what comes before "
    "`model` waits for it."
)
_ANSWER = (
    "The response of the upstream, byte for byte. The upstream's errors have its own status and "
    "body, in any form."
)
_CHAT: schemas.Json = {"model": "demo", "messages": [{"role": "user", "content": "Say hello."}]}
_BODIES: dict[str, dict[str, schemas.Json]] = {
    "chat": {"a question": _CHAT, "as a stream": _CHAT | {"stream": True}},
    "create_completion": {"a text": {"model": "demo", "prompt": "Once upon a time"}},
    "create_embeddings": {"two texts": {"model": "demo", "input": ["sun", "moon"]}},
    "rerank": {"two documents": {"model": "demo", "query": "sun", "documents": ["star", "sea"]}},
    "create_moderation": {"a text": {"input": "Say hello."}},
    "create_speech": {"a text": {"model": "demo", "input": "Hello.", "voice": "alloy"}},
    "generate_images": {"a prompt": {"model": "demo", "prompt": "A lighthouse"}},
    "edit_images": {
        "an image by URL": {
            "model": "demo",
            "prompt": "At night",
            "images": [{"image_url": "https://example.com/lighthouse.png"}],
        }
    },
}
"""Endpoint -> examples of its JSON bodies."""


def operations() -> dict[str, schemas.Json]:
    """Name of a route's function -> its operation."""
    return {endpoint.name: _operation(endpoint) for endpoint in ENDPOINTS}


def components(_deployment: schemas.Deployment) -> dict[str, Schema]:
    """The bodies of requests, as far as this server reads them."""
    model = schemas.described(schemas.STRING, PARAMETERS["model"])
    named: Schema = object_schema({"model": model})
    unnamed: Schema = schemas.OBJECT | {"properties": {"model": nullable(model)}}
    return {
        "ProxiedRequest": schemas.described(named, _BODY),
        "ProxiedForm": schemas.described(named, _FORM_BODY),
        "ProxiedRequestWithDefault": schemas.described(unnamed, _BODY),
    }


def _operation(endpoint: ProxiedEndpoint) -> schemas.Json:
    name = "ProxiedRequest" if endpoint.default_model is None else "ProxiedRequestWithDefault"
    body = schemas.request_body(name, _BODIES.get(endpoint.name, {}))
    if endpoint.takes_form:
        body["content"][schemas.FORM] = {"schema": reference("ProxiedForm")}
    ranges = [f"{each}*" if each.endswith("/") else each for each in endpoint.answer_types]
    answer = schemas.raw_response(_ANSWER, _CONTENT | {each: {} for each in ranges})
    return schemas.operation(endpoint.summary, answer, others=_ERRORS, body=body)


_CHUNK = schemas.described(schemas.OBJECT, "A chunk as the upstream sends it; `[DONE]` comes last.")
_CONTENT: schemas.Json = {
    schemas.JSON: {"schema": schemas.OBJECT},
    schemas.EVENT_STREAM: {"itemSchema": _CHUNK},
    "text/plain": {},
}
_ERROR = schemas.described(schemas.OBJECT, "`Error`, or the upstream's own body.")
_ERRORS = {
    str(status): schemas.raw_response(
        STATUSES.get(status, "The meaning depends on the upstream."),
        {schemas.JSON: {"schema": _ERROR}, "text/plain": {}},
    )
    for status in (*UPSTREAM_STATUSES, 409, 500, 503)
    if status not in (401, 424)
}
"""Errors of this server, or of the upstream with whatever body it has."""
