"""What an action has done, in a sentence that the next page shows once.

It travels in a cookie that is sealed with the session's token, not in the address: a link from
elsewhere cannot make the console say anything, and a page that is loaded again does not repeat it.
"""

import base64
import binascii
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import orjson

_MAX_TEXT = 800
"""Characters: a browser keeps cookies of 4 KiB."""
_MAX_REASONS = 3


@dataclass(frozen=True, slots=True)
class Notice:
    """A sentence, and where it leads."""

    text: str
    link: str = ""
    """below the console; empty: it leads nowhere"""
    label: str = "Show"
    """of the link"""
    is_warning: bool = False
    """Something of it was not done."""

    def to_cookie(self) -> str:
        """As a cookie has it, without its seal."""
        text = self.text if len(self.text) <= _MAX_TEXT else f"{self.text[:_MAX_TEXT]}…"
        # Without padding: `=` would put quotes around the cookie.
        return (
            base64.urlsafe_b64encode(orjson.dumps(asdict(self) | {"text": text}))
            .rstrip(b"=")
            .decode()
        )

    @classmethod
    def from_cookie(cls, value: str) -> "Notice | None":
        """The notice of a cookie whose seal is right. None: it is none."""
        try:
            return cls(**orjson.loads(base64.urlsafe_b64decode(f"{value}==")))
        except (binascii.Error, ValueError, TypeError):
            return None


def outcome(done: Sequence[str], refused: Sequence[str]) -> str:
    """What an action has done with several things. `done`: a text for each with which it was done;
    `refused`: a reason for each of the others."""
    sentences = []
    if done:
        sentences.append(f"{_things(done)}: {_counted(done)}.")
    if refused:
        sentences.append(f"Not done with {_things(refused)}: {_counted(refused)}.")
    return " ".join(sentences)


def _things(texts: Sequence[str]) -> str:
    return f"{len(texts)} response{'' if len(texts) == 1 else 's'}"


def _counted(texts: Sequence[str]) -> str:
    """The texts that are there most often, each once; with their numbers if they differ."""
    counts = Counter(texts).most_common()
    if len(counts) == 1:
        return counts[0][0]
    named = [f"{text} ({count})" for text, count in counts[:_MAX_REASONS]]
    more = sum(count for _, count in counts[_MAX_REASONS:])
    return "; ".join([*named, *([f"and other reasons ({more})"] if more else [])])
