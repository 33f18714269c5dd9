"""What a model, and a count of tokens, get of images that were made."""

import json

from worker.translation.history.compaction import entries
from worker.translation.history.size import IMAGE_TOKENS, count_tokens
from worker.translation.history.walk import AnsweredServerCall, walk_history

IMAGE = {
    "id": "ig_1",
    "type": "image_generation_call",
    "status": "completed",
    "action": "edit",
    "revised_prompt": "A cat",
    "result": "A" * 4_000_000,
}
MADE_HERE = {**IMAGE, "turn": 1, "answer": "The image was edited, and the user sees it."}


def test_a_model_gets_a_call_with_its_prompt_and_no_image() -> None:
    [entry] = walk_history([MADE_HERE], {})
    assert isinstance(entry, AnsweredServerCall)
    assert json.loads(entry.call["arguments"]) == {"prompt": "A cat", "action": "edit"}
    assert entry.output == {"output": MADE_HERE["answer"]}


def test_the_bytes_of_an_image_are_no_tokens() -> None:
    """Else one image would compact the conversation."""
    assert count_tokens(MADE_HERE) < 50
    assert IMAGE_TOKENS < count_tokens(IMAGE) < IMAGE_TOKENS + 50


def test_a_summary_is_made_of_the_prompt_and_not_of_the_image() -> None:
    [entry] = entries([IMAGE])
    assert "A cat" in entry
    assert len(entry) < 500
