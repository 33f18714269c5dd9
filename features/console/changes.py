"""A change that is confirmed on a page of its own."""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response

from features.console.errors import PageError
from features.console.visit import Visit


@dataclass(frozen=True, slots=True)
class Confirmation:
    """What a person confirms."""

    title: str
    """a question"""
    meaning: str
    """what will happen"""
    label: str
    """of the button"""
    path: str
    """below the console: where the form is sent"""
    back: str
    """below the console: where it came from"""
    fields: Sequence[tuple[str, str]]
    is_harmless: bool = False
    facts: Sequence[tuple[str, str]] = ()
    """what it is about, by name"""


def ask(visit: Visit, confirmation: Confirmation) -> Response:
    """The page with the question. Raises PageError (403) for somebody who only looks."""
    visit.require_operator()
    return visit.page("confirm_change.html", confirmation=confirmation)


def first(fields: dict[str, list[str]], name: str) -> str:
    """A field of a form; empty if it is missing."""
    return fields.get(name, [""])[0]


def not_found(what: str) -> PageError:
    """The page about something that does not exist."""
    return PageError(404, f"No such {what}", f"There is no {what} of this id. It may be deleted.")
