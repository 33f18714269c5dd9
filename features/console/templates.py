"""The templates of all pages: Jinja2 with autoescape, read from the package at their first use.

A feature has its own in `features/<feature>/templates/`. No two of them have one name.
"""

import hashlib
import re
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

import features
from features.console.plots import compact, short_time
from features.operator.diagnosis import cause_text
from models.features import FEATURES
from models.ids import batch_id, response_id
from models.prices import shown_cost
from models.time_text import format_date, format_precise, format_seconds
from models.version import VERSION

STATIC = Path(__file__).parent / "static"
_FOLDERS = [Path(features.__path__[0], name, "templates") for name in FEATURES]
_HASH_LENGTH = 12
_SHORT_ID = len("resp_") + 16
_STATES = {
    "good": "completed created live enabled active delivered valid closed",
    "busy": "in_progress retrying draining silent failing validating finalizing cancelling "
    "partly_open",
    "wait": "queued waiting paused",
    "bad": "open failed dead disabled incomplete expired",
}
"""A class of the style sheet, and the statuses and states that have it; any other has `still`."""
_CLASSES = {state: kind for kind, states in _STATES.items() for state in states.split()}


def render(template: str, **values: object) -> str:
    """The text of a page. Every value is escaped."""
    return _environment().get_template(template).render(**values)


@cache
def static_hash(name: str) -> str:
    """The first digits of the SHA-256 of a static file."""
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:_HASH_LENGTH]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDERS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        badge=badge,
        cause=cause_text,
        count=count,
        cost=shown_cost,
        duration=format_seconds,
        date=format_date,
        size=size,
        age=age,
        clock=clock,
        precise_clock=precise_clock,
        precise=format_precise,
        batch_id=batch_id,
        response_id=response_id,
        compact=compact,
        prose=prose,
        short_time=short_time,
        short_id=lambda public_id: public_id[:_SHORT_ID],
    )
    environment.globals.update(static_hash=static_hash, version=VERSION)
    environment.globals["parts"] = environment.get_template("parts.html").module
    return environment


_MARKED = re.compile(r"\*\*(.+?)\*\*|`([^`]+)`")


def prose(text: str) -> Markup:
    """The paragraphs of a text of ours, with `**strong**` words and `code` as Markdown marks them.
    Everything is escaped."""
    paragraphs = [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]
    return Markup().join(Markup("<p>{}</p>").format(_marked(each)) for each in paragraphs)


def _marked(paragraph: str) -> Markup:
    parts: list[Markup] = []
    end = 0
    for found in _MARKED.finditer(paragraph):
        strong, code = found.groups()
        parts.append(escape(paragraph[end : found.start()]))
        kind, word = ("code", code) if strong is None else ("strong", strong)
        parts.append(Markup("<{0}>{1}</{0}>").format(kind, word))
        end = found.end()
    return Markup().join([*parts, escape(paragraph[end:])])


def badge(state: str) -> Markup:
    """A status in its colour; its name says the same."""
    kind = _CLASSES.get(state, "still")
    return Markup('<span class="badge {}">{}</span>').format(kind, state.replace("_", " "))


def count(number: int | None) -> str:
    """A number with narrow spaces between thousands; nothing for None."""
    return "" if number is None else f"{number:,}".replace(",", "\u202f")


def size(octets: float) -> str:
    """Bytes in the largest unit that fits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if octets < 1024 or unit == "GiB":
            return f"{octets:.0f} {unit}" if unit == "B" else f"{octets:.1f} {unit}"
        octets /= 1024
    raise AssertionError


def age(at: datetime | None, now: datetime | None = None) -> Markup:
    """How long ago a time was, with the time itself to read by pointing at it."""
    if at is None:
        return Markup("")
    seconds = max(0.0, ((now or datetime.now(UTC)) - at).total_seconds())
    return Markup('<time datetime="{0}" title="{0}">{1} ago</time>').format(
        format_date(at), format_seconds(seconds)
    )


def clock(at: datetime | None) -> Markup:
    """A time in UTC."""
    if at is None:
        return Markup("")
    text = at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}">{}</time>').format(format_date(at), text)


def precise_clock(at: datetime) -> Markup:
    """A time in UTC, with milliseconds."""
    text = at.astimezone(UTC).isoformat(" ", timespec="milliseconds").removesuffix("+00:00")
    return Markup('<time datetime="{}">{}</time>').format(format_date(at), text)
