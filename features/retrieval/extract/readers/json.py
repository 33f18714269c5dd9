r"""JSON is indexed as it is written, but with its characters: `é` for `\u00e9`."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from json import loads

_ESCAPE = re.compile(
    r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL
)
_LONGEST = len(r"\ud83d\ude00")


def read_json(texts: Iterable[str]) -> Iterator[str]:
    """The same text; escaped characters outside of ASCII are decoded. It is not parsed, so that it
    may be nested, or damaged, in any way."""
    rest = ""
    for text in texts:
        decoded, rest = _decode(rest + text)
        yield decoded
    yield _ESCAPE.sub(_character, rest)


def _decode(text: str) -> tuple[str, str]:
    """The decoded text, and the end that may begin with a part of an escape."""
    safe = max(0, len(text) - _LONGEST)
    parts = []
    end = 0
    for match in _ESCAPE.finditer(text):
        if match.start() >= safe:
            break
        parts += [text[end : match.start()], _character(match)]
        end = match.end()
    cut = max(safe, end)
    return "".join([*parts, text[end:cut]]), text[cut:]


def _character(match: re.Match[str]) -> str:
    return _decoded(match[0])


@lru_cache(4096)
def _decoded(escape: str) -> str:
    if len(escape) == 2:
        return escape
    character: str = loads(f'"{escape}"')
    # Half of a pair is no character, and neither are the controls of Latin-1.
    return character if character.isprintable() and not character.isascii() else escape
