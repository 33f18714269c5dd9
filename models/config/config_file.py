"""Reads `backburner.toml`, and finds the line of each of its keys.

The standard library parses TOML but does not keep lines, nor does tomlkit. A second pass over a
file that is known to be valid parses it piece by piece, so that a mistake can be reported with its
line.
"""

import os
import re
import tomllib
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FILE_NAME = "backburner.toml"
PATH_VARIABLE = "BACKBURNER_CONFIG"

KeyPath = tuple[str, ...]
"""A key and the tables around it, outermost first."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """Something in the configuration with which no process can start.

    `source` is `file`, `environment`, or `default` if the setting is missing. `where` names the
    file or the variable; `line` counts from 1; `key` is dotted.
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


class BadSettings(Exception):
    """No process can start with these settings."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        super().__init__("; ".join(map(str, mistakes)))
        self.mistakes = mistakes


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The content of the file; empty if there is no file."""

    path: Path | None = None
    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def line(self, place: KeyPath) -> int | None:
        """The line of a key, or of the nearest table around it; None if the file has neither."""
        for end in range(len(place), 0, -1):
            if place[:end] in self.lines:
                return self.lines[place[:end]]
        return None

    def has(self, place: KeyPath) -> bool:
        """Whether the file sets exactly this key."""
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
    """The file that `BACKBURNER_CONFIG` names, else `backburner.toml` in the working directory.

    None if there is neither, or if `BACKBURNER_CONFIG` is set and empty.
    """
    named = os.environ.get(PATH_VARIABLE)  # noqa: TID251  (settings cannot name their own file)
    if named is not None:
        return Path(named) if named else None
    return Path(FILE_NAME) if Path(FILE_NAME).is_file() else None


def read_config_file(path: Path | None) -> ConfigFile:
    """The file's content. Raises BadSettings if it cannot be read or is not TOML."""
    if path is None:
        return ConfigFile()
    try:
        text = path.read_bytes().decode()
        data = tomllib.loads(text)
    except OSError as error:
        raise BadSettings(
            [Mistake("environment", str(path), f"cannot be read: {error.strerror}")]
        ) from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise BadSettings([Mistake("file", str(path), "is not UTF-8 text", line)]) from error
    except tomllib.TOMLDecodeError as error:
        message, line = _split_position(str(error), text)
        raise BadSettings([Mistake("file", str(path), f"is not TOML: {message}", line)]) from error
    return ConfigFile(path, data, _lines(text))


def _split_position(message: str, text: str) -> tuple[str, int]:
    """The parser's message without its position, and the line."""
    match = re.fullmatch(
        r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", message, re.DOTALL
    )
    if match is None:
        return message, 1
    return match[1], int(match[2]) if match[2] else text.count("\n") + 1


def _lines(text: str) -> dict[KeyPath, int]:
    """The line of each table and of each key; keys inside an inline value have no line."""
    lines: dict[KeyPath, int] = {}
    table: KeyPath = ()
    statement, first_line = "", 1
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        first_line = first_line if statement else number
        statement += f"{line}\n"
        try:
            data = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:
            continue  # its value goes on in the next line
        if data:
            is_table = statement.lstrip().startswith("[")
            place = _keys(data) if is_table else table + _keys(_without_value(statement))
            table = place if is_table else table
            for end in range(1, len(place) + 1):
                lines.setdefault(place[:end], first_line)
        statement = ""
    return lines


def _without_value(statement: str) -> dict[str, Any]:
    """`key = value` with another value, which has no keys of its own."""
    for sign in re.finditer("=", statement):
        with suppress(tomllib.TOMLDecodeError):  # a sign in a quoted key
            return tomllib.loads(f"{statement[: sign.end()]} 0")
    raise AssertionError(statement)


def _keys(data: Any) -> KeyPath:
    """A key that is alone in its table, those of the tables in it, and so on."""
    if not isinstance(data, dict) or not data:
        return ()
    [(key, inner)] = data.items()
    return (key, *_keys(inner))
