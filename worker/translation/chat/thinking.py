"""`<think>…</think>` at the beginning of a turn's content, for upstreams that leave the
reasoning in the text."""

_TAGS = {"<think>": "</think>", "<reasoning>": "</reasoning>"}
"""Opening -> closing tag. Bedrock writes the second pair, again in every chunk."""


class ThinkTagSplitter:
    """Splits content into reasoning and text. Tags may be cut anywhere between chunks.

    Only tags at the start of the turn count: later the model may write about the tag itself. White
    space between the last tag and the text is dropped.
    """

    def __init__(self) -> None:
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
        text, self._buffer = self._buffer + content, ""
        reasoning = []
        while text and not self._is_in_text:
            if self._closing:
                piece, text = self._split_at_closing(text)
                reasoning.append(piece)
            else:
                text = self._find_opening(text)
        return "".join(reasoning), text

    def flush(self) -> tuple[str, str]:
        """The reasoning and the text that were held back when the turn ended: they were no tag."""
        pending, self._buffer = self._buffer, ""
        return (pending, "") if self._closing else ("", pending)

    def _find_opening(self, text: str) -> str:
        """Looks for an opening tag. Returns the text after it, or all of the text if there is
        none."""
        start = text.lstrip()
        for opening, closing in _TAGS.items():
            if start.startswith(opening):
                self._closing = closing
                return start[len(opening) :]
        if any(opening.startswith(start) for opening in _TAGS):
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
