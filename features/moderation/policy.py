"""What a request wants of its moderation, and who does it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from models.config.upstream import UpstreamSettings

BLOCK = "block"


@dataclass(frozen=True, slots=True)
class ModerationPolicy:
    """The request parameter `moderation`."""

    model: str
    blocks_input: bool
    """Flagged input reaches no upstream. Otherwise it only gets scores."""
    blocks_output: bool
    """Flagged output reaches no reader."""

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> "ModerationPolicy":
        """The parameter, as models/wire/checks/parameters.py has checked it."""
        policy = value.get("policy") or {}
        modes = {side: (policy.get(side) or {}).get("mode") for side in ("input", "output")}
        return cls(value["model"], modes["input"] == BLOCK, modes["output"] == BLOCK)


def moderated_by_upstreams(upstreams: Collection[UpstreamSettings]) -> bool:
    """Whether each upstream that may run the request moderates it itself: it gets the parameter."""
    return bool(upstreams) and all(upstream.moderates for upstream in upstreams)
