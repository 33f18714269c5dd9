"""The create request: everything about it that can be checked without reading from storage."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from models.errors import InvalidRequest
from models.wire import without_effect
from models.wire.checks.basic import Check
from models.wire.checks.faults import empty, missing, not_an_object, unknown_create_parameter
from models.wire.checks.json_schema import require_format_schema, require_function_schema
from models.wire.checks.parameters import (
    IGNORED_PARAMETERS,
    INCLUDE,
    LONG_WINDOWS,
    NATIVE_ONLY_PARAMETERS,
    NATIVE_PARAMETERS,
    PARAMETERS,
    CacheOptions,
)
from models.wire.events import Item
from models.wire.item_types import ADDS_TOOLS
from models.wire.items import NewId, input_items
from models.wire.mcp import split_credentials
from models.wire.tools import (
    WEB_SEARCH,
    added_tools,
    is_own_file_search,
    require_no_images,
    require_no_search,
    require_valid_choice,
)


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """A checked create request. Whether what it refers to exists is checked later."""

    model: str
    input: list[Item]
    """Normalised (models/wire/items.py). Item references are not resolved yet, and calls are not
    yet matched with outputs."""
    parameters: dict[str, Any]
    """Whatever else the client set. The Response echoes it, worker/translation reads it."""
    background: bool = False
    store: bool = True
    stream: bool = False
    previous_response_id: str | None = None
    """May not exist, or not be an id of this server."""
    conversation: str | None = None
    """The id of the conversation; may not exist, or not be an id of this server."""
    waits: bool = False
    """It begins when its previous response has ended (`wait_for_previous`, ADR 0073)."""
    cache: CacheOptions | None = None
    """The answer may come from the cache and may be cached (docs/cache.md)."""
    credentials: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    """What is only stored sealed of `mcp` tools: server_label -> fields (models/wire/mcp.py)."""
    omitted_tools: tuple[str, ...] = ()
    """Types of tools that were left out, because nothing can run them."""
    unknown_fields: dict[str, Any] = field(default_factory=dict)
    """Fields for a native upstream that this server does not know: place -> value. They are in the
    items and parameters too."""
    ignored: tuple[str, ...] = ()
    """Places of what has no effect (models/wire/without_effect.py)."""


@dataclass(frozen=True, slots=True)
class CreateRules:
    """What a create may ask for: by the upstream of its model and the settings of the server."""

    passthrough: Collection[str] = ()
    """Further parameters that are accepted unchecked."""
    ephemeral_background: bool = False
    """`background` is allowed with `store: false`."""
    has_web_search: bool = False
    """This server can search the web."""
    omits_web_search: bool = False
    """If nobody can, one with `external_web_access` is accepted, and `without_searches` drops
    it."""
    has_images: bool = False
    """This server can make images."""
    native: bool = False
    """The model's upstream supports the Responses API and runs tools itself."""
    strict_schemas: bool = False
    """A schema with `strict` must be one that OpenAI accepts."""
    unsent: Collection[str] = ()
    """What a chat upstream does not get of `UNSENT_BY_SOME` (models/wire/without_effect.py)."""

    @property
    def searches(self) -> bool:
        """Whether somebody searches the web: this server, or the upstream."""
        return self.has_web_search or self.native


NO_RULES = CreateRules()
"""Those of a chat upstream and a server without a web search."""


def parse_create(
    body: Any, *, new_id: NewId, rules: CreateRules = NO_RULES, generate: bool = True
) -> CreateRequest:
    """The request in a decoded body (models/wire/json_input.py).

    `new_id` makes ids for items without one. `generate` is false for a warm-up, which does not call
    the model and may have no input. Raises InvalidRequest, in OpenAI's wording (docs/wire.md).
    """
    checks = NATIVE_PARAMETERS if rules.native else _chat_checks(rules.passthrough)
    given, ignored = _known_parameters(body, checks, rules.passthrough)
    if not generate:
        given.setdefault("input", [])
    for name in ("model", "input"):
        if name not in given:
            raise missing(name)
    checked = {
        name: checks[name](value, name) if name in checks else value
        for name, value in given.items()
    }
    items = input_items(checked.pop("input"), new_id)
    unknown = without_effect.UnknownFields()
    ignored += _left_out(given, checked | {"input": items}, unknown if rules.native else None)
    ignored += _without_effect(checked, rules)
    if rules.strict_schemas:
        require_strict_schemas(checked, items)
    request = replace(
        _request(checked, items),
        unknown_fields=unknown.found,
        ignored=tuple(dict.fromkeys(ignored))[: without_effect.MAX_NAMES + 1],
    )
    _check_combinations(request, rules, generate=generate)
    return request


def _without_effect(checked: dict[str, Any], rules: CreateRules) -> list[str]:
    """The places of known parameters and fields that nobody uses."""
    names: list[str] = []
    if not rules.native:
        names += without_effect.unused_by_chat(checked, rules.passthrough, rules.unsent)
    if rules.has_web_search:
        names += without_effect.unused_by_search(checked.get("tools", ()))
    return names


def _request(checked: dict[str, Any], items: list[Item]) -> CreateRequest:
    """The request of these checked parameters, which are taken out of `checked`."""
    credentials: dict[str, dict[str, Any]] = {}
    if "tools" in checked:
        checked["tools"], credentials = split_credentials(checked["tools"])
    return CreateRequest(
        model=checked.pop("model"),
        input=items,
        background=checked.pop("background", False),
        store=checked.pop("store", True),
        stream=checked.pop("stream", False),
        previous_response_id=checked.pop("previous_response_id", None),
        conversation=checked.pop("conversation", None),
        waits=checked.get("wait_for_previous", False),
        cache=checked.pop("cache", None),
        parameters=checked,
        credentials=credentials,
    )


def without_searches(request: CreateRequest) -> CreateRequest:
    """The request for a server where nothing can search the web: without such tools among its own.

    Those in its items stay there, and no model is offered them.
    """
    tools = request.parameters.get("tools", [])
    omitted = {tool["type"] for tool in (*tools, *added_tools(request.input))} & WEB_SEARCH
    if not omitted:
        return request
    parameters = request.parameters
    if tools:
        kept = [tool for tool in tools if tool["type"] not in WEB_SEARCH]
        parameters = {**parameters, "tools": kept}
    return replace(request, parameters=parameters, omitted_tools=tuple(sorted(omitted)))


def with_approvals(request: CreateRequest, default: str) -> CreateRequest:
    """The request with a policy for each MCP server that it names without `require_approval`:
    `default`, `always` or `never`.

    It is stored with the request: a running response keeps it. `always` is what an absent policy
    means anyway (models/wire/mcp.py), and is not written.
    """
    tools = request.parameters.get("tools", ())
    if default == "always" or not any(map(_lacks_policy, tools)):
        return request
    tools = [
        {**tool, "require_approval": default} if _lacks_policy(tool) else tool for tool in tools
    ]
    return replace(request, parameters={**request.parameters, "tools": tools})


def _lacks_policy(tool: dict[str, Any]) -> bool:
    return tool["type"] == "mcp" and "require_approval" not in tool


def is_prewarm(body: Any) -> bool:
    """Whether the body of a create asks for `prompt_cache_options.prewarm`: the model is not
    called, as in a warm-up."""
    options = body.get("prompt_cache_options") if type(body) is dict else None
    return type(options) is dict and options.get("prewarm") is True


def require_include(values: list[str]) -> None:
    """Checks the `include[]` of a query, with the values of the parameter `include`.

    Raises InvalidRequest.
    """
    INCLUDE(values, "include")


def _chat_checks(passthrough: Collection[str]) -> Mapping[str, Check]:
    """The checks of the parameters for a chat upstream that gets those in `passthrough` as they
    are."""
    passed = [name for name in NATIVE_ONLY_PARAMETERS if name in passthrough]
    return PARAMETERS | {name: NATIVE_PARAMETERS[name] for name in passed} if passed else PARAMETERS


def _known_parameters(
    body: Any, checks: Mapping[str, Check], passthrough: Collection[str]
) -> tuple[dict[str, Any], list[str]]:
    """The body without nulls and ignored parameters, and the names of the latter. Raises
    InvalidRequest for unknown ones."""
    if type(body) is not dict:
        raise not_an_object(body)
    given, ignored = {}, []
    for name, value in body.items():
        if value is None:
            continue
        if name in checks or name == "input" or name in passthrough:
            given[name] = value
        elif name in IGNORED_PARAMETERS:
            ignored.append(name)
        else:
            raise unknown_create_parameter(name)
    return given, ignored


def _left_out(
    given: dict[str, Any], checked: dict[str, Any], unknown: without_effect.UnknownFields | None
) -> list[str]:
    """The places of what the checks have left out.

    `unknown`: for a native upstream, which may know it. Then it is put back, except in what this
    server reads itself.
    """
    names: list[str] = []
    for name, value in given.items():
        if name == "tools":
            for index, tool in enumerate(checked[name]):
                found = without_effect.left_out(value[index], tool, ((None, name), index))
                is_sent = tool["type"] != "mcp" and not is_own_file_search(tool)
                names += _ignored(found, unknown if is_sent else None)
        else:
            shape = _OBJECTS.get(name, checked[name])
            found = without_effect.left_out(value, shape, (None, name))
            names += _ignored(found, unknown if name in _SENT_ON else None)
    return names


def _ignored(
    found: list[without_effect.LeftOut], unknown: without_effect.UnknownFields | None
) -> list[str]:
    """The places of those that are not put back, as many as the header shows, and one more."""
    if unknown is not None:
        found = unknown.restore(found)
    return [
        without_effect.path_of(each.place, without_effect.shown_name)
        for each in found[: without_effect.MAX_NAMES + 1]
    ]


_OBJECTS: Mapping[str, Any] = {"conversation": {"id": None}, "cache": {"ttl": None}}
"""Parameters whose checks make something else of an object -> its fields."""
_STANDARD_TIERS = (None, "auto", "default")
_SENT_ON = ("input", "reasoning", "text", "tool_choice")
"""Parameters whose unknown fields a native upstream gets, besides `tools`."""


def _check_combinations(request: CreateRequest, rules: CreateRules, *, generate: bool) -> None:
    """Checks what parameters require of each other. Raises InvalidRequest."""
    parameters = request.parameters
    if request.waits:
        _check_wait(request)
    is_continuation = request.previous_response_id is not None or request.conversation is not None
    if request.previous_response_id is not None and request.conversation is not None:
        message = (
            "Mutually exclusive parameters. Ensure you are only providing one of: "
            "'previous_response_id' or 'conversation'."
        )
        raise InvalidRequest(message, param="conversation", code="mutually_exclusive_parameters")
    if not request.input and not is_continuation and generate:
        raise empty("input", "array")
    if request.background and not request.store and not rules.ephemeral_background:
        message = (
            "'background' needs 'store': true, because a background response is fetched later."
        )
        raise InvalidRequest(message, param="background", code="unsupported_parameter")
    if "background_options" in parameters:
        _check_background_options(request, parameters["background_options"])
    if "stream_options" in parameters and not request.stream:
        message = "The 'stream_options' parameter is only allowed when 'stream' is enabled."
        raise InvalidRequest(message, param="stream_options", code="invalid_value")
    if "tool_choice" in parameters:
        require_valid_choice(
            parameters["tool_choice"],
            [*parameters.get("tools", []), *added_tools(request.input)],
            has_web_search=rules.searches,
        )
    if not (rules.has_images or rules.native):
        require_no_images(parameters.get("tools", ()))
    if not rules.searches:
        _check_searches(request, may_omit_marked=rules.omits_web_search)


def _check_wait(request: CreateRequest) -> None:
    """Raises InvalidRequest for a request that cannot wait for a previous response."""
    reason = None
    if not request.background:
        reason = "'background': true, because no connection waits for so long"
    elif request.previous_response_id is None:
        reason = "'previous_response_id', the response whose end it waits for"
    if reason is not None:
        raise InvalidRequest(
            f"'wait_for_previous' needs {reason}.",
            param="wait_for_previous",
            code="unsupported_parameter",
        )
    if request.cache is not None:
        raise InvalidRequest(
            "'cache' cannot be combined with 'wait_for_previous': what the answer depends on is "
            "not known yet.",
            param="cache",
            code="unsupported_parameter",
        )


def _check_background_options(request: CreateRequest, options: Mapping[str, Any]) -> None:
    """Checks `background_options` as OpenAI's SDK describes them. Raises InvalidRequest."""
    window = options.get("completion_window")
    if not request.background:
        param = ".".join(("background_options", *list(options)[:1]))
        message = f"'{param}' needs 'background': true."
    elif window not in LONG_WINDOWS:
        return
    elif request.stream:
        param = "background_options.completion_window"
        message = f"The completion window '{window}' needs 'stream': false, or no 'stream'."
    elif request.parameters.get("service_tier") not in _STANDARD_TIERS:
        param = "background_options.completion_window"
        message = (
            f"The completion window '{window}' needs standard processing: leave 'service_tier' "
            "out, or send 'auto' or 'default'."
        )
    else:
        return
    raise InvalidRequest(message, param=param, code="invalid_value")


def _check_searches(request: CreateRequest, *, may_omit_marked: bool) -> None:
    """Raises InvalidRequest for a web search among the tools, also those that items add."""
    tools = request.parameters.get("tools", ())
    require_no_search(tools, "tools", may_omit_marked=may_omit_marked)
    for index, item in enumerate(request.input):
        if item["type"] in ADDS_TOOLS:
            where = f"input[{index}].tools"
            require_no_search(item["tools"], where, may_omit_marked=may_omit_marked)


def require_strict_schemas(
    parameters: Mapping[str, Any], items: Sequence[Item], where: str = "input"
) -> None:
    """Raises InvalidRequest for the first schema with `strict` that OpenAI would refuse: of
    `text.format`, or of a function among the tools, also those that items add.

    Both are checked already; servers ask for these rules (docs/output.md). `where` is the name of
    the list of items in the request.
    """
    text_format = parameters.get("text", {}).get("format", {})
    if text_format.get("strict"):
        require_format_schema(text_format, "text.format", strict=True)
    _require_strict_functions(parameters.get("tools", ()), "tools")
    for index, item in enumerate(items):
        if item["type"] in ADDS_TOOLS:
            _require_strict_functions(item["tools"], f"{where}[{index}].tools")


def _require_strict_functions(tools: Sequence[dict[str, Any]], where: str) -> None:
    for index, tool in enumerate(tools):
        place = f"{where}[{index}]"
        if tool["type"] == "namespace":
            _require_strict_functions(tool["tools"], f"{place}.tools")
        elif tool["type"] == "function" and tool.get("strict"):
            require_function_schema(tool, place, strict=True)
