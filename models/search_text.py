"""Search documents: what the words and the marks of a response are. The statements are in
models/db/queries/search_documents.py.

A document has the words of input and output as they are written, in lower case: PostgreSQL's
configuration `simple`, after every sign is replaced by a space. So `INV-4711` has the words `inv`
and `4711`, and is found by each of them. Marks begin with a sign that no word has.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from uuid import UUID

SIGNS: Final = (
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~\u00a1\u00a7\u00ab\u00b7\u00bb\u00bf"
    "\u2010\u2011\u2012\u2013\u2014\u2018\u2019\u201a\u201c\u201d\u201e\u2022\u2026\u2039\u203a"
    "\u3000\u3001\u3002\u300c\u300d\u300e\u300f\u3010\u3011\uff01\uff08\uff09\uff0c\uff0e\uff1a\uff1b\uff1f"
)
"""What separates words, beside white space: punctuation of ASCII, of Europe and of East Asia."""
_SPACES = str.maketrans(dict.fromkeys(SIGNS, " "))

PROJECT, MINUTE, HOUR, DAY = "§p", "§m", "§h", "§d"
KEY, USER, SAFETY_IDENTIFIER, CACHE_KEY, METADATA = "§k", "§u", "§s", "§c", "§t"
"""The beginnings of the marks. Behind that of a time is its number since 1970, behind the last four
a digest."""
MINUTE_MS: Final = 60_000
_MINUTES: Final = {MINUTE: 1, HOUR: 60, DAY: 24 * 60}
MAX_DAYS: Final = 60
"""Days of one search, as it has a mark for each."""
_TERM = re.compile(r'(-?)(?:"([^"]*)"?|(\S+))')
_HAS_WORD = re.compile(r"\w")


def search_words(text: str) -> str | None:
    """What an operator searches for, as `websearch_to_tsquery` reads it: words that must be there,
    phrases in quotes, `or`, and `-` before what must not. None: there is no word in it.

    A word with signs in it becomes a phrase.
    """
    terms = []
    for minus, quoted, bare in _TERM.findall(text):
        words = " ".join((quoted or bare).translate(_SPACES).split())
        if _HAS_WORD.search(words):
            is_phrase = bool(quoted) or " " in words
            terms.append(f'{minus}"{words}"' if is_phrase else f"{minus}{words}")
    return " ".join(terms) or None


def digest(text: str) -> str:
    """What a mark has in place of a text of a client, which may be long."""
    return hashlib.sha256(text.encode()).digest()[:16].hex()


def marks_query(marks: list[str]) -> str:
    """The text of a tsquery: one of the marks."""
    return " | ".join(f"'{mark}'" for mark in marks)


def minute_of(response: UUID) -> int:
    """The minute since 1970 in which the id of a response was made."""
    return (response.int >> 80) // MINUTE_MS


@dataclass(frozen=True, slots=True)
class Minutes:
    """A range of minutes since 1970; `end` is the first one behind it."""

    begin: int
    end: int

    @property
    def first_id(self) -> UUID:
        """The smallest id of a response in it."""
        return UUID(int=max(0, self.begin) * MINUTE_MS << 80)

    def marks(self) -> list[str]:
        """The fewest marks of days, hours and minutes that cover it."""
        return list(self._marks())

    def _marks(self) -> Iterator[str]:
        at = self.begin
        while at < self.end:
            mark, width = next(
                (mark, width)
                for mark, width in reversed(_MINUTES.items())
                if at % width == 0 and (at + width <= self.end or width == 1)
            )
            yield f"{mark}{at // width}"
            at += width

    def before(self, oldest: int) -> "Minutes":
        """The next range of a search backwards in time, twice as long, down to the minute `oldest`.
        A long one begins with an hour or a day, so that it has few marks."""
        length = min(2 * (self.end - self.begin), MAX_DAYS * _MINUTES[DAY])
        begin = self.begin - length
        for width in (_MINUTES[DAY], _MINUTES[HOUR]):
            if length >= 2 * width:
                begin -= begin % width
                break
        return Minutes(max(begin, oldest), self.begin)
