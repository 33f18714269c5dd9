"""`<think>…</think>` at the beginning of a turn's content, for upstreams that leave the thinking in the text (contract §7.2)."""

_TAGS = {"<think>": "</think>", "<reasoning>": "</reasoning>"}
"""Opening -> closing tag; Bedrock writes the second pair, anew in every chunk"""


class ThinkTagSplitter:
    """Parts content into what was thought and what was said; tags may be cut anywhere between chunks.

    Only tags that open the turn count: later the model may well write about the tag itself. White space between the last tag and the
    text is dropped.
    """

    def __init__(self) -> None:
        self._buffer = ""
        self._closing = ""
        """The tag that ends the thinking; empty outside of it."""
        self._has_seen_reasoning = False
        self._is_in_text = False

    def split(self, content: str) -> tuple[str, str]:
        """The reasoning and the text that this content adds; what could still become a tag is held back."""
        if self._is_in_text:
            return "", content
        text, self._buffer = self._buffer + content, ""
        thoughts = []
        while text and not self._is_in_text:
            if self._closing:
                thought, text = self._split_at_closing(text)
                thoughts.append(thought)
            else:
                text = self._find_opening(text)
        return "".join(thoughts), text

    def flush(self) -> tuple[str, str]:
        """What was held back when the turn ended: it was no tag after all."""
        held, self._buffer = self._buffer, ""
        return (held, "") if self._closing else ("", held)

    def _find_opening(self, text: str) -> str:
        """Looks for an opening tag; gives back what follows it, or the text that shows there is none."""
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
        """The thought up to the closing tag or to what may become one, and what follows it."""
        thought, tag, after = text.partition(self._closing)
        if tag:
            self._closing, self._has_seen_reasoning = "", True
            return thought, after
        end = len(text) - _overlap(text, self._closing)
        self._buffer = text[end:]
        return text[:end], ""


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of the text are a beginning of the tag."""
    return next(
        (
            length
            for length in range(min(len(tag) - 1, len(text)), 0, -1)
            if text.endswith(tag[:length])
        ),
        0,
    )
