"""The content of an upstream that mixes reasoning and text, split while it streams:
`<think>…</think>` at the beginning of a turn, and code fences around JSON, are taken out.
"""


class ContentFilter:
    """The content of one turn, split into reasoning and text."""

    def __init__(self, *, think_tags: bool, think_opened: bool, fenced: bool) -> None:
        """`think_tags`: reasoning comes in tags. `think_opened`: of the first one, only the closing
        tag comes. `fenced`: the text is JSON that may come in a code fence."""
        has_tags = think_tags or think_opened
        self._think_tags = ThinkTagSplitter(is_opened=think_opened) if has_tags else None
        self._fence = FenceStripper() if fenced else None

    @property
    def is_transparent(self) -> bool:
        """Whether all content is text."""
        return self._think_tags is None and self._fence is None

    def split(self, content: str) -> tuple[str, str]:
        """The reasoning and the text in the next piece of content."""
        reasoning, text = (
            self._think_tags.split(content) if self._think_tags is not None else ("", content)
        )
        return reasoning, self._fence.strip(text) if self._fence is not None else text

    def decide(self) -> str:
        """The text in what is held back only because it may be reasoning: a call follows."""
        return self._think_tags.decide() if self._think_tags is not None else ""

    def flush(self, *, is_cut_off: bool) -> tuple[str, str]:
        """What was held back when the turn ended. `is_cut_off`: not in order."""
        reasoning, text = "", ""
        if self._think_tags is not None:
            reasoning, text = self._think_tags.flush(is_cut_off=is_cut_off)
        if self._fence is not None:
            text = self._fence.strip(text) + self._fence.flush()
        return reasoning, text


_TAGS = {
    "<think>": "</think>",
    "<reasoning>": "</reasoning>",
    "<thought>": "</thought>",
    "<seed:think>": "</seed:think>",
    "[THINK]": "[/THINK]",
    "◁think▷": "◁/think▷",
}
"""Opening -> closing tag. Bedrock writes the second pair, again in every chunk; Gemini the third,
Seed, Magistral and Kimi the others."""


class ThinkTagSplitter:
    """Splits content into reasoning and text. Tags may be cut anywhere between chunks.

    Only tags at the start of the turn count: later the model may write about the tag itself. White
    space between the last tag and the text is dropped.

    Where the upstream's template has written the opening tag (`is_opened`), the content begins
    with reasoning and has only the closing tag. Without any tag nobody knows which of the two the
    content is, so it is held back until a closing tag comes.
    """

    def __init__(self, *, is_opened: bool = False) -> None:
        self._undecided: list[str] | None = [] if is_opened else None
        """Content before a first tag, while it may be reasoning."""
        self._undecided_end = ""
        """The end of it, in which a tag may begin."""
        self._buffer = ""
        self._closing = ""
        """The tag that ends the reasoning; empty outside of it."""
        self._has_seen_reasoning = False
        self._is_in_text = False

    def split(self, content: str) -> tuple[str, str]:
        """The reasoning and the text that this content adds. A possible start of a tag is held
        back."""
        if self._is_in_text:
            return "", content
        if self._undecided is not None:
            return self._look_for_tags(content)
        text, self._buffer = self._buffer + content, ""
        reasoning = []
        while text and not self._is_in_text:
            if self._closing:
                piece, text = self._split_at_closing(text)
                reasoning.append(piece)
            else:
                text = self._find_opening(text)
        return "".join(reasoning), text

    def flush(self, *, is_cut_off: bool = False) -> tuple[str, str]:
        """The reasoning and the text that were held back when the turn ended: they were no tag.

        Content that began as reasoning and had no tag is text if the turn ended in order: the
        template has closed the tag as well. If the turn was cut off (`is_cut_off`), it is
        reasoning.
        """
        if self._undecided is not None:
            content = self.decide()
            return (content, "") if is_cut_off else ("", content)
        pending, self._buffer = self._buffer, ""
        return (pending, "") if self._closing else ("", pending)

    def decide(self) -> str:
        """Ends the wait for a tag; returns what was held back for it."""
        if self._undecided is None:
            return ""
        content, self._undecided, self._is_in_text = "".join(self._undecided), None, True
        return content

    def _look_for_tags(self, content: str) -> tuple[str, str]:
        """Looks for a closing tag, or for an opening one at the start, in content that may be
        reasoning."""
        assert self._undecided is not None
        self._undecided.append(content)
        end = self._undecided_end + content
        self._undecided_end = end[1 - _LONGEST_TAG :]
        start = "".join(self._undecided).lstrip() if len(self._undecided) <= _LONGEST_TAG else ""
        if any(start.startswith(opening) for opening in _TAGS):
            self._undecided = None
            return self.split(start)
        closing = next((closing for closing in _TAGS.values() if closing in end), None)
        if closing is None:
            return "", ""
        reasoning, _, text = "".join(self._undecided).partition(closing)
        self._undecided, self._has_seen_reasoning = None, True
        more, text = self.split(text)
        return reasoning + more, text

    def _find_opening(self, text: str) -> str:
        """Looks for an opening tag. Returns the text after it, or all of the text if there is
        none."""
        start = text.lstrip()
        for opening, closing in _TAGS.items():
            if start.startswith(closing):  # a parser of the server took the reasoning, not the tag
                self._has_seen_reasoning = True
                return start[len(closing) :]
            if start.startswith(opening):
                self._closing = closing
                return start[len(opening) :]
        if any(tag.startswith(start) for tags in _TAGS.items() for tag in tags):
            self._buffer = start if self._has_seen_reasoning else text
            return ""
        self._is_in_text = True
        return start if self._has_seen_reasoning else text

    def _split_at_closing(self, text: str) -> tuple[str, str]:
        """The reasoning up to the closing tag or to its possible start, and the text after the
        tag."""
        reasoning, tag, after = text.partition(self._closing)
        if tag:
            self._closing, self._has_seen_reasoning = "", True
            return reasoning, after
        end = len(text) - _overlap(text, self._closing)
        self._buffer = text[end:]
        return text[:end], ""


_LONGEST_TAG = max(map(len, _TAGS.values()))


def _overlap(text: str, tag: str) -> int:
    """Characters at the end of the text that are the start of the tag."""
    return next(
        (
            length
            for length in range(min(len(tag) - 1, len(text)), 0, -1)
            if text.endswith(tag[:length])
        ),
        0,
    )


class FenceStripper:
    """Removes a code fence from a text that comes in pieces: models that get only instructions
    often put one around JSON.

    A fence is a first line that begins with three backticks and a last line that is three
    backticks, with the white space around both. Any other text passes unchanged.
    """

    def __init__(self) -> None:
        self._buffer = ""
        self._has_fence: bool | None = None
        """None until it is known."""

    def strip(self, text: str) -> str:
        """The text that this piece adds. Text that may belong to a fence is held back."""
        if self._has_fence is False:
            return text
        pending, self._buffer = self._buffer + text, ""
        if self._has_fence is None:
            content = self._strip_opening(pending)
            if content is None:
                self._buffer = pending
                return ""
            pending = content
        return self._hold_back_closing(pending) if self._has_fence else pending

    def flush(self) -> str:
        """The text that was held back when the text ended, unless it was the closing fence."""
        pending, self._buffer = self._buffer, ""
        return "" if self._has_fence and pending.strip() == _FENCE else pending

    def _strip_opening(self, text: str) -> str | None:
        """The text after the opening fence; all of the text if it has no fence; None while that
        is not known."""
        start = text.lstrip()
        if not start.startswith(_FENCE[: len(start)]):
            self._has_fence = False
            return text
        line, ended, rest = start.partition("\n")
        if ended:
            self._has_fence = True
            return rest
        if len(line) > _MAX_FENCE_LINE:
            self._has_fence = False
            return text
        return None

    def _hold_back_closing(self, text: str) -> str:
        """The text without an end that may be the closing fence: white space, backticks, white
        space."""
        end = len(text.rstrip().rstrip("`").rstrip())
        self._buffer = text[end:]
        return text[:end]


_FENCE = "```"
_MAX_FENCE_LINE = 40
"""Characters of the line that opens a fence: room for the name of a language."""
