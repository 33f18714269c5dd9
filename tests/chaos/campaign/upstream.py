"""What the scripted upstream answers to the requests of one planned response."""

import itertools
import json
import re

from tests.chaos.campaign.plan import Client
from tests.support import native_script
from tests.support.fake_upstream import (
    Exchange,
    Script,
    Step,
    drop,
    hang,
    reply,
    reset,
    status,
    text,
)
from tests.support.tool_turns import tool_turn

_ATTEMPTS = 6
"""Upstream requests of one response that get different words; later ones repeat the last."""
CONFIGURATION = """
[upstreams.chat]
base_url = "{base_url}"
api_key_env = "BACKBURNER_UPSTREAM__API_KEY"

[upstreams.native]
base_url = "{base_url}"
api_key_env = "BACKBURNER_UPSTREAM__API_KEY"
api = "responses"

[routes]
"*" = "chat"
"native-*" = "native"
"""
"""The scripted upstream as two: models named `native-…` are called by the Responses API."""


def scripts(number: int, client: Client, marker: str) -> list[Script]:
    """The answer to each request of response `number`; with tools it depends on the request."""
    answers = _answers(number, client)
    if not client.tools:
        return answers
    turns = [
        _tool_turn(client, [(tool, f"{marker}/{turn}.{index}") for index, tool in enumerate(tools)])
        for turn, tools in enumerate(client.tools)
    ]
    return [[_by_turn(turns, answers, re.compile(re.escape(marker) + r"/(\d+)\."))]]


def _answers(number: int, client: Client) -> list[Script]:
    """The upstream's answer to each request; every word is unique in its round."""
    words = [
        [f"{number}.{attempt}.{word} " for word in range(client.words)]
        for attempt in range(_ATTEMPTS)
    ]
    whole = _native_reply if client.is_native else reply
    answers: list[Script] = [whole(*attempt, gap=client.gap) for attempt in words]
    sent_before_fault = _partial(client, words[0][: client.upstream_fault_at])
    match client.upstream_fault:
        case "reset":
            answers[0] = [*sent_before_fault, reset()]
        case "drop":
            answers[0] = [*sent_before_fault, drop()]
        case "hang":
            answers[0] = [*sent_before_fault, hang()]
        case "refused first":
            answers.insert(0, [status(503, retry=True)])
        case "none":
            pass
    return answers


def _native_reply(*words: str, gap: float) -> list[Step]:
    return [
        native_script.begin(),
        native_script.message_item(*words, gap=gap),
        native_script.end(),
    ]


def _partial(client: Client, words: list[str]) -> list[Step]:
    """The beginning of an answer."""
    if not client.is_native:
        return [text(*words, gap=client.gap)]
    message = native_script.message_item(*words, gap=client.gap, closed=False)
    return [native_script.begin(), *([message] if words else [])]


def _tool_turn(client: Client, calls: list[tuple[str, str]]) -> list[Step]:
    """A turn that calls counting tools: (tool, key) each."""
    if not client.is_native:
        return tool_turn(*calls)
    items = [
        native_script.native_call(f"call_{number}", tool, json.dumps({"key": key}))
        for number, (tool, key) in enumerate(calls)
    ]
    return [native_script.begin(), *items, native_script.end()]


def _by_turn(turns: list[list[Step]], last: list[Script], turn_of_call: re.Pattern[str]) -> Step:
    """Sends the turn that follows the calls in the request; after all of them the last answer.

    `turn_of_call` matches the keys of this response's calls; its group is the number of the turn.
    """
    answers = itertools.chain(last, itertools.repeat(last[-1]))

    async def step(exchange: Exchange) -> None:
        done = {int(number) for number in turn_of_call.findall(exchange.request.body_text)}
        turn = 1 + max(done, default=-1)
        for next_step in turns[turn] if turn < len(turns) else next(answers):
            await next_step(exchange)

    return step
