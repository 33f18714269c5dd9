"""How statements are repeated while Postgres is unavailable, and how their rows are made."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg._queries import MAX_CACHED_STATEMENT_LENGTH

from cli.database.statements import all_statements
from models.db import database
from models.db.database import (
    fetch_unless_refused,
    retry_unless_refused,
    retry_while_unavailable,
)
from models.db.queries.claim import LOG_ENDS, LogEnd
from models.db.queries.read import LOG_PAGE
from models.db.queries.sweep import ORPHANS
from models.db.statement import Query
from models.errors import StatementRefused
from tests.support.api import until

SOME_ID = UUID(int=1)


async def _retry_while_others_fail(operation: Callable[[], Awaitable[None]]) -> None:
    await retry_unless_refused(operation, others_succeed=lambda: False)


async def test_a_read_that_can_wait_is_repeated_until_postgres_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database, "RETRY_DELAY", 0)
    failures = [psycopg.OperationalError("restarting"), psycopg.InterfaceError("closed")]

    async def read() -> str:
        if failures:
            raise failures.pop()
        return "row"

    assert await retry_while_unavailable(read, "waits") == "row"


@pytest.mark.parametrize("read", [retry_while_unavailable, _retry_while_others_fail])
async def test_a_read_that_is_cancelled_is_not_repeated_although_its_connection_is_lost(
    read: Callable[[Callable[[], Awaitable[None]]], Awaitable[None]],
) -> None:
    """Nobody waits for it any more: its client is gone, or its response was cancelled."""
    tries = 0
    begun = asyncio.Event()

    async def lose_connection_when_cancelled() -> None:
        nonlocal tries
        tries += 1
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise psycopg.OperationalError("the connection was lost") from None

    task = asyncio.ensure_future(read(lose_connection_when_cancelled))
    await begun.wait()
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert tries == 1


async def test_a_history_that_nobody_needs_any_more_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The statement on its way ends by itself: its task fails, and no other one is begun."""
    statements: list[asyncio.Future[list[object]]] = []

    def fetch(*_: object, **_options: object) -> asyncio.Future[list[object]]:
        statements.append(asyncio.get_running_loop().create_future())
        return statements[-1]

    monkeypatch.setattr(database, "RETRY_DELAY", 0)
    monkeypatch.setattr(database, "fetch", fetch)
    pool: Any = None
    reading = asyncio.ensure_future(
        fetch_unless_refused(pool, LOG_PAGE, {}, others_succeed=lambda: False)
    )
    await until(lambda: len(statements) == 1)
    statements[0].set_exception(psycopg.OperationalError("Postgres is away"))
    await until(lambda: len(statements) == 2)
    reading.cancel()
    await asyncio.wait({reading})
    assert reading.cancelled()
    statements[1].set_exception(psycopg.OperationalError("Postgres is away"))
    await asyncio.wait({statements[1]})
    assert len(statements) == 2


async def test_a_refused_statement_is_not_repeated_for_ever() -> None:
    async def read() -> None:
        raise psycopg.errors.UniqueViolation

    with pytest.raises(psycopg.errors.UniqueViolation):
        await retry_while_unavailable(read)


async def test_a_refused_statement_is_given_up_only_while_others_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While Postgres does not answer, no response may fail for it (I9)."""
    monkeypatch.setattr(database, "_REFUSAL_DELAYS", (0, 0))
    monkeypatch.setattr(database, "RETRY_DELAY", 0)
    tries = 0

    async def refused() -> None:
        nonlocal tries
        tries += 1
        raise psycopg.errors.QueryCanceled

    def others_succeed() -> bool:
        return tries > 100

    with pytest.raises(StatementRefused):
        await retry_unless_refused(refused, others_succeed)
    assert tries == 103


async def test_a_statement_beyond_a_fixed_limit_is_not_repeated() -> None:
    async def too_large() -> None:
        raise psycopg.errors.ProgramLimitExceeded

    with pytest.raises(StatementRefused):
        await retry_unless_refused(too_large, lambda: False)


def test_rows_have_the_types_of_their_statement() -> None:
    assert LOG_ENDS.rows([(SOME_ID, 7)]) == [LogEnd(SOME_ID, 7)]
    assert ORPHANS.rows([(SOME_ID,)]) == [SOME_ID]


def test_a_response_without_events_has_no_block_to_show() -> None:
    [page] = LOG_PAGE.rows([("queued", False, None, None, None, None, None, None)])
    assert (page.status, page.block) == ("queued", None)


def test_no_statement_is_so_long_that_psycopg_reads_it_again_each_time() -> None:
    """A longer one is sent as Postgres reads it, with numbered parameters."""
    too_long = {
        name: statement
        for name, statement in all_statements().items()
        if len(statement.sql) > MAX_CACHED_STATEMENT_LENGTH
    }
    assert set(too_long) == {
        "create.INSERT_IN_CONVERSATION",
        "create.INSERT_IN_CONVERSATION_WITH_KEY",
        "create.INSERT_WITH_KEY",
        "end.END_TOGETHER",
        "end.END[completed]",
        "end.END[failed]",
        "end.END[incomplete]",
        "line.CLAIM_NEXT",
        "line.NEXT_IN_LINE",
        "listing.SEARCH_RESPONSES",
        "read.SHOWN_RESPONSES",
        "read.WATCHED_RESPONSES",
        "search_documents.ADD_DOCUMENTS",
        "usage.USAGE_SUMS",
    }
    for statement in too_long.values():
        assert isinstance(statement, Query)
        assert statement.numbered is not None
        assert b"%(" not in statement.numbered.sql
