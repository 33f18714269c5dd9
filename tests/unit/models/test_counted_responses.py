"""What Redis has counted of a project's responses, corrected by what the database says."""

from models.ids import new_uuid
from models.projects.quotas import Usage
from models.redis.quota_counters import CountedResponses

NOW = 1_000_000
RUNNING, ENDED, CREATING, WAITING, JUST_CREATED, LOST = (new_uuid() for _ in range(6))


def _entry(tokens: int, age: int) -> bytes:
    return b"%d:0:%d" % (tokens, NOW - age * 1000)


def test_what_a_killed_process_has_left_is_removed_and_what_is_on_its_way_stays() -> None:
    counted = CountedResponses(
        NOW,
        {
            RUNNING.hex.encode(): _entry(5, 60),
            ENDED.hex.encode(): _entry(7, 60),
            CREATING.hex.encode(): _entry(11, 1),
            WAITING.hex.encode(): _entry(13, 60),
        },
        {each.hex.encode() for each in (RUNNING, ENDED, CREATING, WAITING)},
        reserved=100,
    )
    usage = Usage(
        open=[RUNNING, WAITING, JUST_CREATED, LOST],
        waiting=[WAITING, JUST_CREATED, LOST],
        young=frozenset((JUST_CREATED,)),
    )
    found = counted.corrections(usage)
    assert found.ended == [ENDED.hex.encode()]
    assert found.missing == found.unclaimed == [LOST.hex.encode()]
    assert found.claimed == [RUNNING.hex.encode()]
    assert found.reserved == 5 + 11 + 13 - 100


def test_a_redis_that_has_lost_everything_gets_all_of_it_again() -> None:
    usage = Usage(open=[RUNNING], waiting=[RUNNING], young=frozenset((RUNNING,)))
    found = CountedResponses(NOW, {}, set(), reserved=0).corrections(usage)
    assert found.missing == found.unclaimed == [RUNNING.hex.encode()]
    assert found.reserved == 0
