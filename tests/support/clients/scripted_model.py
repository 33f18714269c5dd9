"""A model whose prompt contains the answers of the upstream, turn by turn.

    Weather? [[call get_weather {"city": "Bonn"}]] [[then]] [[say In Bonn: {result}.]]

The last user message with such words counts. `[[then]]` begins the next turn; a turn is over when
the model has called something. In what is said, `{result}` is what the last tool gave back and
`{heard}` the number of user messages. Without any words the answer is a greeting. So a client's
program shows on one page what is asked and what comes back, and a recorded request needs no script
beside it.
"""

import json
import re
from typing import Any

from tests.support.api import JSON
from tests.support.fake_upstream import (
    Step,
    UpstreamRequest,
    call,
    delta,
    done,
    finish,
    reasoning,
    refusal,
    text,
    usage,
)

GREETING = "Hello from the model."
_COMMANDS = re.compile(r"\[\[(then|(?:say|think|refuse|call) .+?)\]\]", re.DOTALL)


def answer_from_prompt(request: UpstreamRequest) -> list[Step]:
    """The steps of the answer to this chat request."""
    messages = request.messages
    instruction = next(
        (at for at in range(len(messages) - 1, -1, -1) if _has_commands(messages[at])), None
    )
    if instruction is None:
        return [
            delta({"role": "assistant", "content": ""}),
            text(GREETING),
            finish(),
            usage(),
            done(),
        ]
    turns = _turns(_content(messages[instruction]))
    since = messages[instruction + 1 :]
    so_far = sum("tool_calls" in message for message in since)
    words = turns[so_far] if so_far < len(turns) else [f"say {GREETING}"]
    known = {
        "{result}": _last_result(since),
        "{heard}": str(sum(message["role"] == "user" for message in messages)),
    }
    return [*_steps(words, known, so_far), usage(), done()]


def _has_commands(message: JSON) -> bool:
    return bool(message["role"] == "user" and _COMMANDS.search(_content(message)))


def _content(message: JSON) -> str:
    content: Any = message.get("content")
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content)
    return str(content)


def _turns(prompt: str) -> list[list[str]]:
    turns: list[list[str]] = [[]]
    for words in _COMMANDS.findall(prompt):
        if words == "then":
            turns.append([])
        else:
            turns[-1].append(words)
    return turns


def _last_result(messages: list[JSON]) -> str:
    return next(
        (_content(message) for message in reversed(messages) if message["role"] == "tool"), ""
    )


def _steps(commands: list[str], known: dict[str, str], turn: int) -> list[Step]:
    steps: list[Step] = [delta({"role": "assistant", "content": ""})]
    calls = 0
    for word in commands:
        verb, _, rest = word.partition(" ")
        if verb == "call":
            name, _, arguments = rest.partition(" ")
            half = len(arguments) // 2
            steps.append(
                call(
                    calls,
                    f"call_{turn}_{calls}",
                    name,
                    *filter(None, (arguments[:half], arguments[half:] or "{}")),
                )
            )
            calls += 1
            continue
        for placeholder, value in known.items():
            rest = rest.replace(placeholder, value)
        say = {"say": text, "think": reasoning, "refuse": refusal}[verb]
        steps.append(say(*re.findall(r"\S+\s*", rest)))
    return [*steps, finish("tool_calls" if calls else "stop")]


def as_json(value: Any) -> str:
    """Text pieces of a JSON document."""
    return f"[[say {json.dumps(value)}]]"
