"""Keys as text for people."""

from collections.abc import Sequence

from cli.operations.keys import ListedKey
from cli.output import GREEN, GREY, clean, fitted_table, paint
from models.operator.text import format_date, format_seconds

_SHORT_ID = 18


def keys(facts: Sequence[ListedKey]) -> str:
    """One line per key."""
    if not facts:
        return "there is no key"

    def rows(short: bool) -> list[tuple[str, ...]]:
        return [
            (
                f"{clean(key.prefix)}…",
                str(key.id)[:_SHORT_ID] if short else str(key.id),
                clean(key.project),
                clean(key.name or ""),
                ",".join(key.scopes),
                _ago(key.created_seconds) if short else format_date(key.created_at),
                _last_use(key, short=short),
                _validity(key, short=short),
            )
            for key in facts
        ]

    head = ("KEY", "ID", "PROJECT", "NAME", "SCOPES", "CREATED", "LAST USED", "STATE")
    return fitted_table(head, rows, ["PROJECT", "NAME"])


def _last_use(key: ListedKey, *, short: bool) -> str:
    if key.last_used_at is None or key.unused_seconds is None:
        return "never"
    return _ago(key.unused_seconds) if short else format_date(key.last_used_at)


def _validity(key: ListedKey, *, short: bool) -> str:
    if key.state == "valid":
        until = "" if short or key.expires_at is None else f" until {format_date(key.expires_at)}"
        return paint(f"valid{until}", GREEN)
    if key.revoked_at is not None and not short:
        return paint(f"revoked {format_date(key.revoked_at)}", GREY)
    return paint(key.state, GREY)


def _ago(seconds: float) -> str:
    return f"{format_seconds(seconds)} ago"
