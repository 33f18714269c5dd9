"""What of a response's progress follows from its items and events."""

from models.wire.events import Item
from models.wire.progress import count_calls, estimated_tokens, written_size
from models.wire.snapshot import AttemptsFold


def test_calls_of_server_tools_are_counted_and_those_of_clients_are_not() -> None:
    items: list[Item] = [
        {"type": "mcp_list_tools", "tools": []},
        {"type": "mcp_call", "status": "completed"},
        {"type": "mcp_call", "status": "failed"},
        {"type": "web_search_call", "status": "searching"},
        {"type": "code_interpreter_call", "status": "in_progress"},
        {"type": "function_call", "status": "in_progress"},
        {"type": "message", "status": "in_progress"},
    ]
    assert count_calls(items) == (2, 2)


def test_all_that_the_model_wrote_is_counted_in_bytes() -> None:
    items: list[Item] = [
        {"type": "message", "content": [{"type": "output_text", "text": "four"}]},
        {"type": "message", "content": [{"type": "refusal", "refusal": "no"}]},
        {"type": "reasoning", "summary": [{"text": "äö"}], "content": None},
        {"type": "mcp_call", "arguments": "{}", "output": "not the model's"},
    ]
    assert written_size(items) == 4 + 2 + 4 + 2
    assert [estimated_tokens(size) for size in (0, 1, 4, 5)] == [0, 1, 1, 2]


def test_deltas_of_an_abandoned_attempt_do_not_count() -> None:
    fold = AttemptsFold()

    def write(attempt: int, delta: str) -> None:
        message = {"id": f"msg_{attempt}", "type": "message", "content": []}
        added = {"type": "response.output_item.added", "output_index": attempt, "item": message}
        fold.add(attempt, added)
        name = {"item_id": message["id"], "output_index": attempt, "content_index": 0}
        part = {"type": "output_text", "text": ""}
        fold.add(attempt, {"type": "response.content_part.added", "part": part, **name})
        fold.add(attempt, {"type": "response.output_text.delta", "delta": delta, **name})

    write(1, "abandoned")
    assert fold.text_size == 9
    write(2, "né")
    assert fold.text_size == 3
