"""What a gate holds back is in no state of the turn, also where no event shows it yet."""

import json
from datetime import timedelta
from typing import Any, cast

import pytest

from features.moderation.worker import TurnGate
from models.config.feature_groups import ModerationSettings
from tests.support.chat_turns import call, calls, counter, delta
from worker.run.moderation import OutputFlagged
from worker.translation.chat.translator import ChatOptions, ChatTranslator
from worker.translation.tool_catalog import build_tool_catalog
from worker.upstream.chat_chunks import parse_chunk

BAD = "poison"
TOOLS = [{"type": "shell"}, {"type": "apply_patch"}, {"type": "function", "name": "look"}]
ARGUMENTS = {
    "shell": json.dumps({"commands": [f"echo {BAD}"]}),
    "apply_patch": json.dumps({"type": "create_file", "path": "a", "diff": f"+{BAD}"}),
    "look": json.dumps({"q": BAD}),
}


def translator() -> ChatTranslator:
    catalog = build_tool_catalog({"tools": TOOLS})
    return ChatTranslator(counter(), ChatOptions(tool_catalog=catalog))


async def may_pass(text: str) -> bool:
    return BAD not in text


@pytest.mark.parametrize("is_cut", [False, True], ids=["ended", "cut off"])
@pytest.mark.parametrize("tool", ARGUMENTS)
async def test_arguments_that_no_event_shows_are_held_back_for_however_long(
    tool: str, is_cut: bool
) -> None:
    settings = ModerationSettings(hold=timedelta(microseconds=1))
    turn, gate = translator(), TurnGate(translator(), may_pass, settings)
    seen: list[Any] = []
    try:
        for chunk in (calls(call(0, "a", tool, ARGUMENTS[tool])), delta(content="")):
            for passed in await gate.release([parse_chunk(json.dumps(chunk).encode())]):
                seen += turn.feed(cast("Any", passed))
        if not is_cut:
            await gate.finish(done_seen=True)
            pytest.fail("it was not flagged")
    except OutputFlagged:
        pass
    seen += turn.close_incomplete()
    assert BAD not in repr(seen) + json.dumps(turn.output)
