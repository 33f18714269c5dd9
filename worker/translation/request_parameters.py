"""Rules about a request's parameters that hold for both APIs of an upstream."""

from collections.abc import Iterable, Mapping
from typing import Any

from models.wire.includes import LOGPROBS

SAMPLING_PARAMETERS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
"""Sent under their own names, and only if the client set them: the API's defaults break
reasoning models."""

_NEVER_FORWARDED = frozenset(
    (
        "metadata",
        "store",
        "background",
        "truncation",
        "include",
        "instructions",
        "previous_response_id",
    )
)
"""Parameters for this server alone, whatever `passthrough` lists. `store: true` would keep at
the upstream what our client deletes here."""


def copy_parameters(
    body: dict[str, Any], parameters: Mapping[str, Any], names: Iterable[str]
) -> None:
    """Copies those of the named parameters that the client set."""
    body.update((name, parameters[name]) for name in names if name in parameters)


def add_passthrough(
    body: dict[str, Any], parameters: Mapping[str, Any], passthrough: Iterable[str]
) -> None:
    """Copies the parameters of the upstream's setting `passthrough`, unless the body has them
    already or they must stay here."""
    for name in passthrough:
        if name in parameters and name not in body and name not in _NEVER_FORWARDED:
            body[name] = parameters[name]


def relax_tool_choice(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters for the turns after the first: a required tool call was made, and would
    otherwise be required again in each turn."""
    choice = parameters.get("tool_choice", "auto")
    if isinstance(choice, str):
        return {**parameters, "tool_choice": "auto"} if choice == "required" else parameters
    return {
        **parameters,
        "tool_choice": {**choice, "mode": "auto"} if choice["type"] == "allowed_tools" else "auto",
    }


def wants_summary(parameters: Mapping[str, Any]) -> bool:
    """Whether the client wants summaries of the reasoning."""
    return parameters.get("reasoning", {}).get("summary") is not None


def wants_logprobs(parameters: Mapping[str, Any]) -> bool:
    """Whether the client wants log probabilities. `top_logprobs` alone only says how many."""
    return LOGPROBS in parameters.get("include", ())
