"""Steps that cells of several victims share."""

from tests.support.api import until
from tests.support.chaos.lab import Lab
from tests.support.chaos.load import Load
from tests.support.fake_upstream import reply

TIES = """
    FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'advisory' AND l.granted AND l.mode = 'ExclusiveLock' AND a.datname = current_database()
      AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended(a.application_name, 0)
"""  # noqa: E501
COUNT_TIES = f"SELECT count(*) {TIES}"
COUNT_OLD_TIES = f"{COUNT_TIES} AND a.backend_start < clock_timestamp() - interval '5.5 seconds'"
"""Ties that are old enough for their processes to declare others dead, and half a second more."""


async def assert_create_refused(lab: Lab) -> str:
    """Checks that a create is answered 503; returns its model, which must never be called."""
    model = lab.fake.script(reply("never"))
    answer = await lab.stack.api().call(
        "POST", "/responses", {"model": model, "input": "x", "background": True}
    )
    assert answer.status == 503, answer.raw
    assert answer.headers["retry-after"] == "1"
    assert answer.error["type"] == "server_error"
    return model


async def assert_streams_continue(lab: Lab, load: Load) -> None:
    """Checks that readers get the second word, and that a new response completes."""
    load.release_second_word()
    await load.wait_for_words(2)
    await lab.assert_works()


async def assert_completes(lab: Lab, load: Load) -> None:
    """Checks that every response completes with its first attempt; ends the faults of proxies."""
    await load.finish()
    lab.heal()
    await load.assert_outcomes()


async def assert_no_process_died(lab: Lab, load: Load) -> None:
    """Checks that every response completes with its first attempt and no process was reaped."""
    await assert_completes(lab, load)
    assert not await lab.stack.value("SELECT count(*) FROM workers WHERE ended LIKE 'reaped%%'")


def assert_readers_stayed_connected(load: Load) -> None:
    """Checks that no reader of the load had to connect again."""
    assert [member.connections for member in load.members if member.frames] == [1, 1, 1]


async def wait_until_tied(lab: Lab) -> None:
    """Waits until every process could declare others dead for some time: if one of them had a
    reason to do so, it has done it."""
    await until(lambda: has_ties(lab, COUNT_OLD_TIES), 30)


async def has_ties(lab: Lab, count: str) -> bool:
    """Whether every process has a tie that `count` counts."""
    processes = len(lab.stack.webs) + len(lab.stack.workers)
    return bool(await lab.stack.value(count) == processes)
