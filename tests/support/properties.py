"""Hypothesis profiles. `repeatable` is the default: each run tries the same examples and keeps no
database of them.

`./dev test <file> --hypothesis-profile explore` tries ten times as many, other ones in each run.
"""

from hypothesis import HealthCheck, settings

_EXPLORE = "explore"


def register_profiles() -> None:
    """Register both profiles and load `repeatable`.

    A `--hypothesis-profile` on the command line is loaded after it.
    """
    shared = settings(deadline=None, database=None, suppress_health_check=list(HealthCheck))
    settings.register_profile("repeatable", shared, derandomize=True, print_blob=False)
    settings.register_profile(_EXPLORE, shared, derandomize=False, print_blob=True)
    settings.load_profile("repeatable")


def examples(count: int) -> settings:
    """`count` examples in the profile `repeatable`, ten times as many in `explore`."""
    return settings(
        max_examples=count * (10 if settings.get_current_profile_name() == _EXPLORE else 1)
    )
