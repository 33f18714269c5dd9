"""`<think>…</think>` at the beginning of a turn's content, for upstreams that leave the thinking in the text (contract §7.2)."""

OPENING = "<think>"
CLOSING = "</think>"


class ThinkTags:
    """Parts content into what was thought and what was said; tags may be cut anywhere between chunks.

    Only a tag that opens the turn counts: later the model may well write about the tag itself. White space around the tags
    belongs to neither side.
    """

    def __init__(self) -> None:
        self._held = ""
        self._part = self._before

    def split(self, content: str) -> tuple[str, str]:
        """The reasoning and the text that this content adds; what could still become a tag is held back."""
        held, self._held = self._held + content, ""
        return self._part(held)

    def rest(self) -> tuple[str, str]:
        """What was held back when the turn ended: it was no tag after all."""
        held, self._held = self._held, ""
        return (held, "") if self._part == self._inside else ("", held)

    def _before(self, text: str) -> tuple[str, str]:
        stripped = text.lstrip()
        if stripped.startswith(OPENING):
            self._part = self._inside
            return self._inside(stripped[len(OPENING) :].lstrip())
        if OPENING.startswith(stripped):
            self._held = text
            return "", ""
        self._part = self._after
        return "", text

    def _inside(self, text: str) -> tuple[str, str]:
        thought, tag, said = text.partition(CLOSING)
        if tag:
            self._part = self._between
            return thought.rstrip(), self._between(said)[1]
        keep = _might_end(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], ""

    def _between(self, text: str) -> tuple[str, str]:
        said = text.lstrip()
        if said:
            self._part = self._after
        return "", said

    def _after(self, text: str) -> tuple[str, str]:
        return "", text


def _might_end(text: str) -> int:
    """How many characters at the end could be white space before, or the beginning of, the closing tag."""
    for length in range(min(len(CLOSING) - 1, len(text)), 0, -1):
        if text.endswith(CLOSING[:length]):
            break
    else:
        length = 0
    head = text[: len(text) - length]
    return length + len(head) - len(head.rstrip())
