"""A response's parameters and history become one Chat Completions body (contract §7.1). Pure."""

from typing import Any

import msgspec

from models.wire.events import Item
from models.wire.pairing import is_call, is_output, match_outputs
from models.wire.tools import CallTarget, callable_tools
from worker.translation.chat.structured import format_fields, format_instructions
from worker.translation.dialect import Dialect, ReasoningBack
from worker.translation.history.server_calls import (
    as_function_call,
    denied_call_output,
    server_call_output,
)
from worker.translation.items.built_in_tools import BUILT_IN_TOOLS
from worker.translation.items.custom_tools import CUSTOM_TOOL_ARGUMENT
from worker.translation.items.reasoning import TurnReasoning
from worker.translation.items.server_calls import model_tool_name
from worker.translation.tool_catalog import ToolCatalog

Message = dict[str, Any]
Part = dict[str, Any]

_COPIED_PARAMETERS = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
"""Sent under their own names, and only if the client set them: the API's defaults break reasoning models."""

_SYSTEM_ROLES = frozenset(("system", "developer"))

NEVER_FORWARDED = frozenset(
    (
        "metadata",
        "store",
        "background",
        "truncation",
        "include",
        "instructions",
        "previous_response_id",
    )
)
"""Ours alone, whatever `passthrough` says; `store: true` upstream would keep there what our client deletes here."""

_OPENAI = Dialect()


def chat_request(
    *,
    model: str,
    parameters: dict[str, Any],
    history: list[Item],
    tool_catalog: ToolCatalog,
    dialect: Dialect = _OPENAI,
) -> dict[str, Any]:
    """The body for the upstream, always streamed, always with usage.

    `parameters` are those of models/wire/request.py; `history` is everything that was said so far, oldest first, references resolved,
    calls paired (models/wire/pairing.py); neither is changed. `offer` is what the two let the model call; a call in the history that this
    server ran may say besides its item what the model was told (`answer`) and in which turn it was made (`turn`). Parameters named in
    the dialect's `passthrough` go through under their own names.
    """
    text = parameters.get("text", {})
    messages = _messages(
        _instructions(parameters, dialect),
        history,
        dialect,
        tool_catalog,
        _reasoning_start(parameters, history, dialect),
    )
    body: dict[str, Any] = {
        "model": model,
        "messages": _with_one_system_message(messages)
        if dialect.single_system_message
        else messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body.update((name, parameters[name]) for name in _COPIED_PARAMETERS if name in parameters)
    if "max_output_tokens" in parameters:
        body[dialect.max_tokens_field] = parameters["max_output_tokens"]
    body.update(_effort(parameters, dialect))
    body.update(format_fields(text, dialect.structured_output))
    if (
        "verbosity" in text and "verbosity" in dialect.passthrough
    ):  # only OpenAI's own chat API knows it
        body["verbosity"] = text["verbosity"]
    tools = tool_catalog.to_json()
    body.update(tools)
    if tools and "parallel_tool_calls" in parameters:  # upstreams refuse it without tools
        body["parallel_tool_calls"] = parameters["parallel_tool_calls"]
    body.update(_logprobs(parameters))
    for name in dialect.passthrough:
        if name in parameters and name not in body and name not in NEVER_FORWARDED:
            body[name] = parameters[name]
    return body


def relax_tool_choice(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters for the turns after the first: a demand to call a tool has been met, and would be met for ever."""
    choice = parameters.get("tool_choice", "auto")
    if isinstance(choice, str):
        return {**parameters, "tool_choice": "auto"} if choice == "required" else parameters
    return {
        **parameters,
        "tool_choice": {**choice, "mode": "auto"} if choice["type"] == "allowed_tools" else "auto",
    }


def wants_logprobs(parameters: dict[str, Any]) -> bool:
    """Whether the client is to get log probabilities; `top_logprobs` alone says only how many (contract §7.1)."""
    return "message.output_text.logprobs" in parameters.get("include", ())


def _instructions(parameters: dict[str, Any], dialect: Dialect) -> str | None:
    """The client's, and what the upstream has to be told because no field of its API says it."""
    told = format_instructions(parameters.get("text", {}), dialect.structured_output)
    given: str | None = parameters.get("instructions")
    return given if told is None else told if given is None else f"{given}\n\n{told}"


def _effort(parameters: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    """`reasoning.effort` in the upstream's words."""
    effort = parameters.get("reasoning", {}).get("effort")
    if effort is None:
        return {}
    thinks = effort != "none"
    match dialect.effort_field:
        case "none":
            return {}
        case "reasoning":
            return {"reasoning": {"effort": effort}}
        case "enable_thinking":
            switches = {
                "enable_thinking": thinks,
                "thinking": thinks,
            }  # templates know one or the other
            given = (
                parameters.get("chat_template_kwargs")
                if "chat_template_kwargs" in dialect.passthrough
                else None
            )
            return {
                "chat_template_kwargs": {**switches, **given}
                if isinstance(given, dict)
                else switches
            }
        case "thinking":
            return {"thinking": {"type": "enabled" if thinks else "disabled"}}
        case "think":
            return {"think": thinks}
        case _:
            return {"reasoning_effort": effort}


def _reasoning_start(parameters: dict[str, Any], history: list[Item], dialect: Dialect) -> int:
    """The place in the history from which on the model gets its own thoughts back: since the user spoke last, or from the start where
    the client wants `reasoning.context: all_turns`."""
    if dialect.reasoning_back == "none":
        return len(history)
    if parameters.get("reasoning", {}).get("context") == "all_turns":
        return 0
    users = (
        place for place in range(len(history), 0, -1) if history[place - 1].get("role") == "user"
    )
    return next(users, 0)


def _logprobs(parameters: dict[str, Any]) -> dict[str, Any]:
    if not wants_logprobs(parameters):
        return {}
    most = parameters.get("top_logprobs", 0)
    return {"logprobs": True, "top_logprobs": most} if most else {"logprobs": True}


def _messages(
    instructions: str | None,
    history: list[Item],
    dialect: Dialect,
    tool_catalog: ToolCatalog,
    reasoning_start: int,
) -> list[Message]:
    """The conversation; `instructions` are those of this request alone and come first."""
    transcript = _MessageBuilder(tool_catalog, dialect.reasoning_back)
    developer_role = dialect.developer_role
    answers = match_outputs(history)
    requests = {item["id"]: item for item in history if item["type"] == "mcp_approval_request"}
    if instructions is not None:
        transcript.messages.append({"role": developer_role, "content": instructions})
    for position, item in enumerate(history):
        kind = item["type"]
        if is_call(item) and position in answers:
            transcript.add_call(item, history[answers[position]])
        elif is_output(item):
            transcript.mark_output_seen(item["call_id"])
        elif (answer := server_call_output(item)) is not None:
            transcript.add_server_call(
                as_function_call(item, model_tool_name(item, tool_catalog.server_functions)),
                answer,
                item.get("turn"),
            )
        elif (
            kind == "mcp_approval_response"
            and not item["approve"]
            and item["approval_request_id"] in requests
        ):
            refused = {**requests[item["approval_request_id"]], "type": "mcp_call"}
            transcript.add_server_call(
                as_function_call(refused, model_tool_name(refused, tool_catalog.server_functions)),
                denied_call_output(item),
                None,
            )
        elif kind == "message" and item["role"] == "assistant":
            transcript.add_assistant_message(item["content"])
        elif kind == "reasoning" and position >= reasoning_start:
            transcript.add_reasoning(item)
        elif kind == "message":
            role = developer_role if item["role"] == "developer" else item["role"]
            transcript.add_message(role, item["content"])
        # Left out: calls that broke off with their response, which upstreams refuse for want of an output; what the model thought before
        # the user spoke last; tools that were added, which the offer holds; and hosted calls whose result nobody knows any more: the
        # answer that followed holds it.
    transcript.end_turn()
    return transcript.messages


def _with_one_system_message(messages: list[Message]) -> list[Message]:
    """What all system and developer messages say, put together in one at the start: such templates refuse a second, wherever it stands."""
    said = [message["content"] for message in messages if message["role"] in _SYSTEM_ROLES]
    if not said:
        return messages
    content: str | list[Part] = "\n\n".join(content for content in said if isinstance(content, str))
    if not all(isinstance(content, str) for content in said):
        content = [
            part
            for content in said
            for part in (
                [{"type": "text", "text": content}] if isinstance(content, str) else content
            )
        ]
    return [
        {"role": "system", "content": content},
        *(message for message in messages if message["role"] not in _SYSTEM_ROLES),
    ]


class _AssistantTurn:
    """What the model said in one go: text, a refusal, calls; and which of the calls are still to be answered."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refusals: list[str] = []
        self.calls: list[tuple[Item, Item]] = []
        """Each with its output."""
        self.pending_calls: set[str] = set()
        """Ids of the calls whose output has not come by yet."""
        self.number: int | None = None
        """Tells the turns of a tool loop apart, where it is known."""
        self.reasoning: TurnReasoning | None = None

    @property
    def is_over(self) -> bool:
        """All its calls are answered: what the model says next, it says in a new turn."""
        return bool(self.calls) and not self.pending_calls


class _MessageBuilder:
    """Items in, chat messages out.

    Chat demands what items do not: all calls of a turn, and the text around them, in one assistant message, and the answers right after
    it. So a turn stays open until its calls are answered or somebody else speaks, and is written when it ends.
    """

    def __init__(self, tool_catalog: ToolCatalog, reasoning_back: ReasoningBack) -> None:
        self.messages: list[Message] = []
        self._tool_catalog = tool_catalog
        self._reasoning_back = reasoning_back
        self._turn = _AssistantTurn()
        self._pending_reasoning: list[Item] = []
        """Reasoning that belongs to the turn of what follows it."""

    def add_message(self, role: str, content: list[Part]) -> None:
        """Somebody other than the model spoke."""
        self.end_turn()
        self._pending_reasoning = []
        self.messages.append({"role": role, "content": _chat_content(content)})

    def add_reasoning(self, item: Item) -> None:
        """The model thought, and is to be told what."""
        self._pending_reasoning.append(item)
        if self._turn.pending_calls:  # some vendors tell what they thought after the call it led to
            self._attach_reasoning(self._turn)

    def add_assistant_message(self, content: list[Part]) -> None:
        """The model spoke."""
        turn = self._attach_reasoning(self._open_turn())
        text = "".join(part["text"] for part in content if part["type"] == "output_text")
        if text:
            turn.texts.append(text)
        turn.refusals.extend(part["refusal"] for part in content if part["type"] == "refusal")

    def add_call(self, item: Item, output: Item) -> None:
        """The model called a tool, which will give this output."""
        turn = self._attach_reasoning(self._open_turn())
        turn.calls.append((item, output))
        turn.pending_calls.add(item["call_id"])

    def add_server_call(self, item: Item, output: Item, number: int | None) -> None:
        """The model called a tool that this server ran, in the turn of this number; unless told otherwise, each call was a turn's only
        one: what came later may have been said for what came before."""
        turn = self._attach_reasoning(
            self._turn if number is not None and self._turn.number == number else self._open_turn()
        )
        turn.number = number
        turn.calls.append((item, output))

    def mark_output_seen(self, call_id: str) -> None:
        """The output of a call has come by."""
        self._turn.pending_calls.discard(call_id)

    def _open_turn(self) -> _AssistantTurn:
        if self._turn.is_over:
            self.end_turn()
        return self._turn

    def _attach_reasoning(self, turn: _AssistantTurn) -> _AssistantTurn:
        """The turn, with what was thought in it so far."""
        if self._pending_reasoning:
            turn.reasoning = turn.reasoning or TurnReasoning()
            for item in self._pending_reasoning:
                turn.reasoning.add(item)
            self._pending_reasoning = []
        return turn

    def end_turn(self) -> None:
        """Writes the open turn: the assistant's message, then one tool message per call, then what only a user can show."""
        turn, self._turn = self._turn, _AssistantTurn()
        if not (turn.texts or turn.refusals or turn.calls):
            return
        message: Message = {"role": "assistant", "content": "\n\n".join(turn.texts) or None}
        if turn.refusals:
            message["refusal"] = "\n\n".join(turn.refusals)
        if turn.reasoning is not None:
            message.update(turn.reasoning.fields(self._reasoning_back, message["content"]))
        if turn.calls:
            message["tool_calls"] = [_tool_call(call, self._tool_catalog) for call, _ in turn.calls]
        self.messages.append(message)
        shown: list[Part] = []
        for call, output in turn.calls:
            text, attachments = _tool_message_content(
                _output_content(output, self._tool_catalog), call["call_id"]
            )
            self.messages.append({"role": "tool", "tool_call_id": call["call_id"], "content": text})
            shown += attachments
        if shown:
            self.messages.append({"role": "user", "content": shown})


def _tool_call(item: Item, tool_catalog: ToolCatalog) -> dict[str, Any]:
    kind = item["type"]
    if kind in BUILT_IN_TOOLS:
        name, arguments = (
            tool_catalog.name_of(CallTarget(kind)),
            _json(BUILT_IN_TOOLS[kind].to_arguments(item)),
        )
    else:
        name = tool_catalog.name_of(CallTarget(kind, item["name"], item.get("namespace")))
        arguments = (
            item["arguments"] or "{}"
            if kind == "function_call"
            else _json({CUSTOM_TOOL_ARGUMENT: item["input"]})
        )
    return {
        "id": item["call_id"],
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def _output_content(output: Item, tool_catalog: ToolCatalog) -> str | list[Part]:
    """What a call's output tells the model: a text, or the parts the client sent."""
    match output.get("type"):
        case "shell_call_output":
            return _json(
                [
                    {name: ran[name] for name in ("stdout", "stderr", "outcome")}
                    for ran in output["output"]
                ]
            )
        case "apply_patch_call_output":
            told: str = output.get("output") or ""
            return f"{output['status']}: {told}" if told else output["status"]
        case "tool_search_output":
            names = [tool_catalog.name_of(each.target) for each in callable_tools(output["tools"])]
            return (
                f"These tools can be called now: {', '.join(names)}."
                if names
                else "No tools were found."
            )
        case "computer_call_output":
            return [
                {
                    "type": "input_image",
                    "image_url": output["output"]["image_url"],
                    "detail": "auto",
                }
            ]
        case _:
            said: str | list[Part] = output["output"]
            return said


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _tool_message_content(output: str | list[Part], call_id: str) -> tuple[str, list[Part]]:
    """The tool message's text, and the parts a tool message cannot carry, introduced by a text of their own."""
    if isinstance(output, str):
        return output, []
    texts = []
    attachments: list[Part] = []
    for part in output:
        if part["type"] == "input_text":
            texts.append(part["text"])
            continue
        noun = "image" if part["type"] == "input_image" else "file"
        texts.append(f"[{noun}: see the next user message]")
        attachments += [
            {"type": "text", "text": f"The {noun} that tool call {call_id} returned:"},
            _chat_part(part),
        ]
    return "\n".join(texts), attachments


def _chat_content(content: list[Part]) -> str | list[Part]:
    """A lone text stays a string: many local servers refuse lists of parts."""
    if not content:
        return ""
    if len(content) == 1 and content[0]["type"] == "input_text":
        text: str = content[0]["text"]
        return text
    return [_chat_part(part) for part in content]


def _chat_part(part: Part) -> Part:
    match part["type"]:
        case "input_image":
            image = {"url": part["image_url"]}
            detail = part.get("detail", "auto")
            if detail != "auto":
                image["detail"] = (
                    "high" if detail == "original" else detail
                )  # chat does not know `original`
            return {"type": "image_url", "image_url": image}
        case "input_file":
            return {
                "type": "file",
                "file": {name: part[name] for name in ("filename", "file_data") if name in part},
            }
        case "input_audio":
            return {"type": "input_audio", "input_audio": part["input_audio"]}
        case _:
            return {"type": "text", "text": part["text"]}
