"""tests/chaos/seeds.txt: the rounds that had a violation, which `./dev test` runs again."""

from dataclasses import dataclass
from pathlib import Path

SEEDS_FILE = Path(__file__).parents[1] / "seeds.txt"
OPTIONS = frozenset({"defaults"})


@dataclass(frozen=True, slots=True)
class Seed:
    """A line of the file."""

    number: int
    options: str
    """`defaults`: the default leases; empty: the shortened ones."""


def read_seeds(file: Path) -> list[Seed]:
    """The seeds of a file. A line is `SEED [defaults]: what it showed`; # begins a comment."""
    seeds = []
    for line in file.read_text().splitlines():
        number, _, options = line.partition("#")[0].partition(":")[0].strip().partition(" ")
        if options and options not in OPTIONS:
            raise ValueError(f"{file}: {options!r} is no option of a seed: {line!r}")
        if number:
            seeds.append(Seed(int(number), options))
    return seeds


def append_seed(file: Path, seed: Seed, what: str) -> None:
    """Adds a seed to the file, unless the file has it. `what`: its first violation."""
    if file.exists() and seed in read_seeds(file):
        return
    head = " ".join(filter(None, (str(seed.number), seed.options)))
    sentence = what.partition(" · ")[0].replace("\n", " ").replace("#", "number ")
    with file.open("a") as lines:
        lines.write(f"{head}: {sentence}\n")
