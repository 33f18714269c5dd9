"""Names the tests that failed once and then passed: `python -m tests.support.flaky FIRST SECOND`.

FIRST and SECOND are the files in which pytest keeps the failed node ids of a run
(`cache/lastfailed`), of the first run and of the run that repeated its failures. The exit status is
1 if a test that passed at the second try is not in tests/flaky.txt.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

KNOWN = Path(__file__).parents[1] / "flaky.txt"


def known_ids(lines: Iterable[str]) -> set[str]:
    """The node ids in the lines of tests/flaky.txt. A node id may contain single spaces."""
    return {
        line.split("  ")[0].strip() for line in lines if line.strip() and not line.startswith("#")
    }


def unknown_flaky_ids(first: Iterable[str], second: Iterable[str], known: set[str]) -> list[str]:
    """The tests that failed in the first run only and are not known.

    Prints each that failed in the first run only.
    """
    flaky = sorted(set(first) - set(second))
    for node_id in flaky:
        print(f"flaky: {node_id}")
    return [node_id for node_id in flaky if node_id not in known]


def main(first: Path, second: Path) -> int:
    unknown = unknown_flaky_ids(
        json.loads(first.read_text()),
        json.loads(second.read_text()),
        known_ids(KNOWN.read_text().splitlines()),
    )
    if unknown:
        print(f"not in {KNOWN.name}: {', '.join(unknown)}")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
