"""A response's parameters and history become one Chat Completions body (contract §7.1). Pure."""

import json
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from models.wire.events import Item
from models.wire.pairing import CALLS, OUTPUTS
from worker.translation.hosted import HostedFunction, is_chosen, spoken_name
from worker.translation.items import is_whole
from worker.translation.wrapping import CUSTOM_TOOL_ARGUMENT

Message = dict[str, Any]
Part = dict[str, Any]

_SAME = ("temperature", "top_p", "presence_penalty", "frequency_penalty")
"""Sent under their own names, and only if the client set them: the API's defaults break reasoning models."""

_SYSTEM = frozenset(("system", "developer"))

_CLIENTS = frozenset(("function", "custom"))
"""Tools that the client runs, offered as functions."""

_NEVER_FORWARDED = frozenset(("metadata", "store", "background", "truncation", "include", "instructions", "previous_response_id"))
"""Ours alone, whatever `passthrough` says; `store: true` upstream would keep there what our client deletes here."""


def chat_request(
    *,
    model: str,
    parameters: dict[str, Any],
    history: list[Item],
    max_tokens_field: str = "max_completion_tokens",
    developer_role: str = "system",
    single_system_message: bool = False,
    passthrough: Collection[str] = (),
    hosted: Mapping[str, HostedFunction] | None = None,
) -> dict[str, Any]:
    """The body for the upstream, always streamed, always with usage.

    `parameters` are those of models/wire/request.py; `history` is everything that was said so far, oldest first, references resolved,
    calls paired (models/wire/pairing.py); neither is changed. Parameters named in `passthrough` go through under their own names.
    `hosted` are the functions that this server runs, by the name the model is to know; a call of theirs in the history may say besides
    its item what the model was told (`answer`) and in which turn it was made (`turn`).
    """
    hosted = hosted or {}
    messages = _messages(parameters.get("instructions"), history, developer_role, hosted)
    body: dict[str, Any] = {
        "model": model,
        "messages": _with_one_system_message(messages) if single_system_message else messages,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    body.update((name, parameters[name]) for name in _SAME if name in parameters)
    if "max_output_tokens" in parameters:
        body[max_tokens_field] = parameters["max_output_tokens"]
    effort = parameters.get("reasoning", {}).get("effort")
    if effort is not None:
        body["reasoning_effort"] = effort
    text = parameters.get("text", {})
    body.update(_response_format(text))
    if "verbosity" in text and "verbosity" in passthrough:  # only OpenAI's own chat API knows it
        body["verbosity"] = text["verbosity"]
    body.update(_tools(parameters, hosted))
    body.update(_logprobs(parameters))
    for name in passthrough:
        if name in parameters and name not in body and name not in _NEVER_FORWARDED:
            body[name] = parameters[name]
    return body


def custom_tools(parameters: dict[str, Any]) -> frozenset[str]:
    """The names whose calls come back as custom tool calls, their one argument unwrapped."""
    return frozenset(tool["name"] for tool in parameters.get("tools", ()) if tool["type"] == "custom")


def callable_names(parameters: dict[str, Any], hosted: Mapping[str, HostedFunction] | None = None) -> frozenset[str] | None:
    """The only names the model may call, as `tool_choice` has it (contract §7.1: a hard constraint); None when it sets no such bound."""
    choice = parameters.get("tool_choice", "auto")
    if isinstance(choice, str):
        return frozenset() if choice == "none" else None
    chosen = choice["tools"] if choice["type"] == "allowed_tools" else [choice]
    return _chosen(chosen, hosted or {}) | {tool["name"] for tool in chosen if tool["type"] in _CLIENTS and "name" in tool}


def after_a_call(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters for the turns after the first: a demand to call a tool has been met, and would be met for ever."""
    choice = parameters.get("tool_choice", "auto")
    if isinstance(choice, str):
        return {**parameters, "tool_choice": "auto"} if choice == "required" else parameters
    return {**parameters, "tool_choice": {**choice, "mode": "auto"} if choice["type"] == "allowed_tools" else "auto"}


def _chosen(chosen: list[dict[str, Any]], hosted: Mapping[str, HostedFunction]) -> frozenset[str]:
    return frozenset(name for name, function in hosted.items() if any(is_chosen(function.tool, choice) for choice in chosen))


def wants_logprobs(parameters: dict[str, Any]) -> bool:
    """Whether the client is to get log probabilities; `top_logprobs` alone says only how many (contract §7.1)."""
    return "message.output_text.logprobs" in parameters.get("include", ())


def _response_format(text: dict[str, Any]) -> dict[str, Any]:
    wanted = text.get("format", {"type": "text"})
    if wanted["type"] == "text":
        return {}
    if wanted["type"] == "json_object":
        return {"response_format": {"type": "json_object"}}
    schema = {name: wanted[name] for name in ("name", "schema", "strict", "description") if name in wanted}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _logprobs(parameters: dict[str, Any]) -> dict[str, Any]:
    if not wants_logprobs(parameters):
        return {}
    most = parameters.get("top_logprobs", 0)
    return {"logprobs": True, "top_logprobs": most} if most else {"logprobs": True}


def _tools(parameters: dict[str, Any], hosted: Mapping[str, HostedFunction]) -> dict[str, Any]:
    """`tools`, `tool_choice` and `parallel_tool_calls`: all three or none, upstreams refuse the last two without the first."""
    choice = parameters.get("tool_choice")
    tools = [tool for tool in parameters.get("tools", ()) if tool["type"] in _CLIENTS]
    if isinstance(choice, dict) and choice["type"] == "allowed_tools":
        # chat servers other than OpenAI's know no allowed_tools: what is not allowed is not offered
        allowed = {(tool["type"], tool.get("name")) for tool in choice["tools"]}
        tools = [tool for tool in tools if (tool["type"], tool["name"]) in allowed]
        ours = _chosen(choice["tools"], hosted)
        hosted = {name: function for name, function in hosted.items() if name in ours}
        choice = choice["mode"]
    elif isinstance(choice, dict) and choice["type"] not in _CLIENTS:
        # a server's tools, or the one that has no name of its own: the model must call one of these
        tools, ours = [], _chosen([choice], hosted)
        hosted = {name: function for name, function in hosted.items() if name in ours}
        choice = "required"
    if not tools and not hosted:
        return {}
    sent: dict[str, Any] = {"tools": [*map(_tool, tools), *(_hosted_tool(name, function) for name, function in hosted.items())]}
    if choice is not None:
        sent["tool_choice"] = choice if isinstance(choice, str) else {"type": "function", "function": {"name": choice["name"]}}
    if "parallel_tool_calls" in parameters:
        sent["parallel_tool_calls"] = parameters["parallel_tool_calls"]
    return sent


def _hosted_tool(name: str, function: HostedFunction) -> dict[str, Any]:
    described = {} if function.description is None else {"description": function.description}
    return {"type": "function", "function": {"name": name, **described, "parameters": function.parameters}}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool["type"] == "custom":
        return {"type": "function", "function": _custom_function(tool)}
    function: dict[str, Any] = {name: tool[name] for name in ("name", "description", "parameters", "strict") if name in tool}
    function.setdefault("parameters", {"type": "object", "properties": {}})
    return {"type": "function", "function": function}


def _custom_function(tool: dict[str, Any]) -> dict[str, Any]:
    function: dict[str, Any] = {name: tool[name] for name in ("name", "description") if name in tool}
    argument = {"type": "string"}
    shape = tool.get("format", {"type": "text"})
    if shape["type"] == "grammar":
        # no chat server holds a model to a grammar; it can at least be told
        argument["description"] = f"Must match this {shape['syntax']} grammar:\n{shape['definition']}"
    function["parameters"] = {
        "type": "object",
        "properties": {CUSTOM_TOOL_ARGUMENT: argument},
        "required": [CUSTOM_TOOL_ARGUMENT],
        "additionalProperties": False,
    }
    return function


def _messages(instructions: str | None, history: list[Item], developer_role: str, hosted: Mapping[str, HostedFunction]) -> list[Message]:
    """The conversation; `instructions` are those of this request alone and come first."""
    transcript = _Transcript()
    answers = _answers(history)
    if instructions is not None:
        transcript.messages.append({"role": developer_role, "content": instructions})
    for position, item in enumerate(history):
        kind = item["type"]
        if kind in CALLS and position in answers:
            transcript.call(item, answers[position])
        elif kind in OUTPUTS:
            transcript.answered(item["call_id"])
        elif (answer := _hosted_answer(item)) is not None:
            transcript.ran(_as_function_call(item, spoken_name(item, hosted)), answer, item.get("turn"))
        elif kind == "message" and item["role"] == "assistant":
            transcript.said(item["content"])
        elif kind == "message":
            role = developer_role if item["role"] == "developer" else item["role"]
            transcript.told(role, item["content"])
        # Left out: calls that broke off with their response, which upstreams refuse for want of an output; reasoning, which is not
        # resent across turns; and hosted calls whose result nobody knows any more: the answer that followed holds it.
    transcript.end_turn()
    return transcript.messages


def _with_one_system_message(messages: list[Message]) -> list[Message]:
    """What all system and developer messages say, put together in one at the start: such templates refuse a second, wherever it stands."""
    said = [message["content"] for message in messages if message["role"] in _SYSTEM]
    if not said:
        return messages
    content: str | list[Part] = "\n\n".join(content for content in said if isinstance(content, str))
    if not all(isinstance(content, str) for content in said):
        content = [part for content in said for part in ([{"type": "text", "text": content}] if isinstance(content, str) else content)]
    return [{"role": "system", "content": content}, *(message for message in messages if message["role"] not in _SYSTEM)]


def _answers(history: list[Item]) -> dict[int, Item]:
    """The position of each answered call -> its output. An output belongs to the last call before it: some upstreams use an id again."""
    answers: dict[int, Item] = {}
    waiting: dict[str, int] = {}
    for position, item in enumerate(history):
        if item["type"] in CALLS:
            waiting[item["call_id"]] = position
        elif item["type"] in OUTPUTS and item["call_id"] in waiting:
            answers[waiting.pop(item["call_id"])] = item
    return answers


class _Turn:
    """What the model said in one go: text, a refusal, calls; and which of the calls are still to be answered."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.refusals: list[str] = []
        self.calls: list[tuple[Item, Item]] = []
        """Each with its output."""
        self.waiting: set[str] = set()
        """Ids of the calls whose output has not come by yet."""
        self.number: int | None = None
        """Tells the turns of a tool loop apart, where it is known."""

    @property
    def is_over(self) -> bool:
        """All its calls are answered: what the model says next, it says in a new turn."""
        return bool(self.calls) and not self.waiting


class _Transcript:
    """Items in, chat messages out.

    Chat demands what items do not: all calls of a turn, and the text around them, in one assistant message, and the answers right after
    it. So a turn stays open until its calls are answered or somebody else speaks, and is written when it ends.
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._turn = _Turn()

    def told(self, role: str, content: list[Part]) -> None:
        """Somebody other than the model spoke."""
        self.end_turn()
        self.messages.append({"role": role, "content": _chat_content(content)})

    def said(self, content: list[Part]) -> None:
        """The model spoke."""
        turn = self._open_turn()
        text = "".join(part["text"] for part in content if part["type"] == "output_text")
        if text:
            turn.texts.append(text)
        turn.refusals.extend(part["refusal"] for part in content if part["type"] == "refusal")

    def call(self, item: Item, output: Item) -> None:
        """The model called a tool, which will give this output."""
        turn = self._open_turn()
        turn.calls.append((item, output))
        turn.waiting.add(item["call_id"])

    def ran(self, item: Item, output: Item, number: int | None) -> None:
        """The model called a tool that this server ran, in the turn of this number; unless told otherwise, each call was a turn's only
        one: what came later may have been said for what came before."""
        turn = self._turn if number is not None and self._turn.number == number else self._open_turn()
        turn.number = number
        turn.calls.append((item, output))

    def answered(self, call_id: str) -> None:
        """The output of a call has come by."""
        self._turn.waiting.discard(call_id)

    def _open_turn(self) -> _Turn:
        if self._turn.is_over:
            self.end_turn()
        return self._turn

    def end_turn(self) -> None:
        """Writes the open turn: the assistant's message, then one tool message per call, then what only a user can show."""
        turn, self._turn = self._turn, _Turn()
        if not (turn.texts or turn.refusals or turn.calls):
            return
        message: Message = {"role": "assistant", "content": "\n\n".join(turn.texts) or None}
        if turn.refusals:
            message["refusal"] = "\n\n".join(turn.refusals)
        if turn.calls:
            message["tool_calls"] = [_tool_call(call) for call, _ in turn.calls]
        self.messages.append(message)
        shown: list[Part] = []
        for call, output in turn.calls:
            text, attachments = _tool_answer(output["output"], call["call_id"])
            self.messages.append({"role": "tool", "tool_call_id": call["call_id"], "content": text})
            shown += attachments
        if shown:
            self.messages.append({"role": "user", "content": shown})


def _hosted_answer(item: Item) -> Item | None:
    """What the model was told of a call that this server ran, as an output; None when that is not known."""
    told = item.get("answer")
    if told is None and item["type"] == "mcp_call" and item.get("status") != "incomplete":
        told = item.get("output")
        if told is None and item.get("error") is not None:
            told = f"Error: {_error_text(item['error'])}"
    return None if told is None else {"output": told}


def _error_text(error: Any) -> str:
    """The words in an error of whatever shape: a string, `{message}`, or `{content: [{text}]}` as MCP's tools give it."""
    if isinstance(error, dict):
        content = error.get("content")
        texts = [part["text"] for part in content if isinstance(part, dict) and "text" in part] if isinstance(content, list) else []
        error = "\n".join(map(str, texts)) or error.get("message") or json.dumps(error)
    return str(error)


def _as_function_call(item: Item, name: str) -> Item:
    """A call of a hosted tool as the function call it was for the model."""
    arguments = item.get("arguments", "")
    if item["type"] == "web_search_call":
        arguments = json.dumps({"query": (item.get("action") or {}).get("query", "")}, ensure_ascii=False)
    # templates of local servers parse the arguments; what is no object would make them refuse the whole conversation
    return {"type": "function_call", "call_id": item["id"], "name": name, "arguments": arguments if is_whole(arguments) else "{}"}


def _tool_call(item: Item) -> dict[str, Any]:
    if item["type"] == "custom_tool_call":
        arguments = msgspec.json.encode({CUSTOM_TOOL_ARGUMENT: item["input"]}).decode()
    else:
        arguments = item["arguments"] or "{}"
    return {"id": item["call_id"], "type": "function", "function": {"name": item["name"], "arguments": arguments}}


def _tool_answer(output: str | list[Part], call_id: str) -> tuple[str, list[Part]]:
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
        attachments += [{"type": "text", "text": f"The {noun} that tool call {call_id} returned:"}, _chat_part(part)]
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
                image["detail"] = "high" if detail == "original" else detail  # chat does not know `original`
            return {"type": "image_url", "image_url": image}
        case "input_file":
            return {"type": "file", "file": {name: part[name] for name in ("filename", "file_data") if name in part}}
        case "input_audio":
            return {"type": "input_audio", "input_audio": part["input_audio"]}
        case _:
            return {"type": "text", "text": part["text"]}
