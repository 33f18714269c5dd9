"""Reasoning and text in the content of an upstream that mixes them: `<think>` tags and code
fences are taken out."""

from worker.translation.chat.structured import FenceStripper
from worker.translation.chat.thinking import ThinkTagSplitter


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
