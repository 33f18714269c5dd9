"""`backburner.toml`: found, read, and every key of it with its line.

The standard library reads TOML but forgets where anything stood. A second, coarser look at a file that is known to be valid TOML finds
the line of each key, so that a mistake can be told with it.
"""

import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE_NAME = "backburner.toml"
PATH_VARIABLE = "BACKBURNER_CONFIG"

KeyPath = tuple[str, ...]
"""A key and the tables around it, outermost first."""

_TOKEN = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|\#[^\n]*|\n|[\[\]{}=,.]|[^\s\[\]{}=,."'\#]+''',
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Mistake:
    """Something in the configuration that no process can start with.

    `source` is `file`, `environment` or `default` (nobody said anything, and that is the mistake); `where` names the file or the
    variable, `line` counts from 1; `key` is dotted.
    """

    source: str
    where: str
    message: str
    line: int | None = None
    key: str | None = None

    def __str__(self) -> str:
        place = f"{self.where}, line {self.line}" if self.line is not None else self.where
        return (
            f"{place}: {self.key}: {self.message}"
            if self.key is not None
            else f"{place}: {self.message}"
        )


class BadFile(Exception):
    """The file cannot be read as configuration at all."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        super().__init__("; ".join(map(str, mistakes)))
        self.mistakes = mistakes


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What the file says; without a file, nothing."""

    path: Path | None = None
    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def line(self, place: KeyPath) -> int | None:
        """The line of a key, or of the nearest table around it that has one; None when the file says nothing there."""
        for end in range(len(place), 0, -1):
            if place[:end] in self.lines:
                return self.lines[place[:end]]
        return None

    def has(self, place: KeyPath) -> bool:
        """Whether the file has a value at this very place."""
        value: Any = self.data
        for key in place:
            if isinstance(value, list) and key.isdigit() and int(key) < len(value):
                value = value[int(key)]
            elif isinstance(value, dict) and key in value:
                value = value[key]
            else:
                return False
        return True


def find_config_file() -> Path | None:
    """The file that `BACKBURNER_CONFIG` names, else `backburner.toml` in the working directory; None without either.

    An empty `BACKBURNER_CONFIG` means: no file, whatever lies there.
    """
    named = os.environ.get(PATH_VARIABLE)  # noqa: TID251  (it says where settings are, so it cannot be one of them)
    if named is not None:
        return Path(named) if named else None
    return Path(FILE_NAME) if Path(FILE_NAME).is_file() else None


def read_config_file(path: Path | None) -> ConfigFile:
    """The file's content. Raises BadFile when it cannot be read or is no TOML."""
    if path is None:
        return ConfigFile()
    try:
        text = path.read_bytes().decode()
        data = tomllib.loads(text)
    except OSError as error:
        raise BadFile(
            [Mistake("environment", str(path), f"cannot be read: {error.strerror}")]
        ) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise BadFile([Mistake("file", str(path), "is not UTF-8 text", line)]) from error
    except tomllib.TOMLDecodeError as error:
        message, line = _split_position(str(error), text)
        raise BadFile([Mistake("file", str(path), f"is not TOML: {message}", line)]) from error
    return ConfigFile(path, data, _lines(text))


def _split_position(message: str, text: str) -> tuple[str, int]:
    """The parser's words without the place, and the line."""
    found = re.fullmatch(
        r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", message, re.DOTALL
    )
    if found is None:
        return message, 1
    return found[1], int(found[2]) if found[2] else text.count("\n") + 1


def _lines(text: str) -> dict[KeyPath, int]:
    """The line of each table and of each key that begins one; keys inside an inline value have none of their own."""
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, words in _statements(text.replace("\r\n", "\n")):
        if words[0] == "[":
            table = tuple(map(_key, (word for word in words if word not in ("[", "]", "."))))
            place = table
        else:
            place = table + tuple(
                map(_key, (word for word in words[: words.index("=")] if word != "."))
            )
        for end in range(1, len(place) + 1):
            lines.setdefault(place[:end], number)
    return lines


def _statements(text: str) -> Iterator[tuple[int, list[str]]]:
    """Each header and each `key = value`, as its words, with the line it begins in."""
    line, depth, begun, words = 1, 0, 1, list[str]()
    for word in _TOKEN.findall(text + "\n"):
        if word == "\n" and depth == 0 and words:
            yield begun, words
            words = []
        elif word != "\n" and not word.startswith("#"):
            begun = begun if words else line
            words.append(word)
            depth += (word in ("[", "{")) - (word in ("]", "}"))
        line += word.count("\n")


def _key(word: str) -> str:
    return next(iter(tomllib.loads(f"{word} = 0"))) if word[0] in "\"'" else word
