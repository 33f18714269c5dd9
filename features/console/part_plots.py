"""The plots by model, project or upstream, and where a click on one leads: to the list of the
responses of that time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Protocol
from uuid import UUID

from features.console.activity_parts import NO_UPSTREAM, PROJECT
from features.console.page import Visit
from features.console.plots import NUMBERS, Plot, Series, TimeAxis, draw
from models.db.database import fetch_idempotent
from models.db.queries.activity import OTHERS, READ_PARTS, PartSlot
from models.db.queries.organization import PROJECTS_BY_ID
from models.ids import first_id_at, response_id
from models.lifecycle import Status
from models.prices import BILLIONTHS

_SHOWN = 5
"""Names that have a line of their own."""
_SPARE = 60
"""Seconds by which a list begins earlier: it counts back from when it is opened."""
COMPLETED = (Status.COMPLETED.value, Status.INCOMPLETE.value)
FAILED = (Status.FAILED.value,)
_ENDED = (*COMPLETED, *FAILED)


class ListLink(Protocol):
    """The address of the list of a slot; None: of all the time."""

    def __call__(self, at: int | None, /, statuses: Sequence[str] = ...) -> str: ...


@dataclass(frozen=True, slots=True)
class ShownPart:
    """What has ended of one part, by the number of the slot."""

    name: str
    """as it is shown"""
    filters: dict[str, str] | None
    """the parameters of the list that shows it; None: no list does"""
    slots: dict[int, PartSlot]

    @property
    def is_rest(self) -> bool:
        """It is all that has no line of its own."""
        return any(slot.name == OTHERS for slot in self.slots.values())


def list_link(
    visit: Visit,
    axis: TimeAxis,
    at: int | None,
    /,
    statuses: Sequence[str] = (),
    filters: dict[str, str] | None = None,
) -> str:
    """The address of the responses that were created in the slot `at`; None: in all of the
    time."""
    begin = axis.time(at or 0).timestamp()
    end = axis.time(axis.count if at is None else at + 1).timestamp()
    since = math.ceil(datetime.now(UTC).timestamp() - begin) + _SPARE
    return visit.url(
        "/responses",
        **(filters or {}),
        status=list(statuses),
        since=f"{since}s",
        before=response_id(first_id_at(end)),
    )


async def read_parts(visit: Visit, kind: str, width: int, axis: TimeAxis) -> list[ShownPart]:
    """The parts that have ended most, the largest first, and the rest last."""
    values = {
        "width": width,
        "kind": kind,
        "since": axis.begin,
        "step": axis.step,
        "names": _SHOWN,
    }
    by_name: dict[str, dict[int, PartSlot]] = {}
    for row in await fetch_idempotent(visit.pool, READ_PARTS, values):
        if row.slot < axis.count:
            by_name.setdefault(row.name, {})[row.slot] = row
    projects = await _project_names(visit, by_name) if kind == PROJECT else None
    parts = [_shown(kind, name, slots, projects) for name, slots in by_name.items()]
    return sorted(parts, key=lambda part: (part.is_rest, -_ended(part)))


async def _project_names(visit: Visit, ids: dict[str, dict[int, PartSlot]]) -> dict[str, str]:
    values = {"ids": [UUID(each) for each in ids if each != OTHERS]}
    rows = await fetch_idempotent(visit.pool, PROJECTS_BY_ID, values)
    return {str(row.id): row.name for row in rows}


def _shown(
    kind: str, name: str, slots: dict[int, PartSlot], projects: dict[str, str] | None
) -> ShownPart:
    if name == OTHERS:
        return ShownPart("others", None, slots)
    if name == NO_UPSTREAM:
        return ShownPart("no upstream", None, slots)
    if projects is not None and name not in projects:
        return ShownPart(f"deleted project {name[:8]}", None, slots)
    shown = name if projects is None else projects[name]
    return ShownPart(shown, {kind: shown}, slots)


def _ended(part: ShownPart) -> int:
    return sum(slot.completed + slot.failed for slot in part.slots.values())


def plots_by_part(
    visit: Visit, kind: str, parts: Sequence[ShownPart], axis: TimeAxis, currency: str
) -> list[Plot]:
    """What has ended, tokens and costs, with a line for each part."""
    minutes = axis.step / 60

    def plot(title: str, value: Callable[[PartSlot], float], statuses: Sequence[str]) -> Plot:
        series = [_series(visit, axis, part, value, statuses) for part in parts]
        return draw(title, series, axis, NUMBERS)

    plots = [
        plot(
            f"Completed, per minute, by {kind}",
            lambda slot: slot.completed / minutes,
            COMPLETED,
        ),
        plot(f"Failed, per minute, by {kind}", lambda slot: slot.failed / minutes, FAILED),
        plot(
            f"Tokens, per minute, by {kind}",
            lambda slot: (slot.input_tokens + slot.output_tokens) / minutes,
            _ENDED,
        ),
    ]
    if any(slot.cost for part in parts for slot in part.slots.values()):
        title = f"Cost ({currency}), per hour, by {kind}"
        plots.append(plot(title, lambda slot: 60 * slot.cost / BILLIONTHS / minutes, _ENDED))
    return plots


def _series(
    visit: Visit,
    axis: TimeAxis,
    part: ShownPart,
    value: Callable[[PartSlot], float],
    statuses: Sequence[str],
) -> Series:
    values = [value(part.slots[at]) if at in part.slots else 0.0 for at in range(axis.count)]
    link: Callable[[int | None], str] | None = None
    if part.filters is not None:
        link = partial(list_link, visit, axis, statuses=statuses, filters=part.filters)
    return Series(
        part.name,
        values,
        is_rest=part.is_rest,
        link=None if link is None else link(None),
        point_link=link,
    )
