"""What this server does with what the official SDK can send and a chat upstream cannot use. All
else is kept: the Response or the item shows it, and the run uses it.

`tests/unit/wire/test_sdk_requests.py` compares these tables with the SDK's types. A new release may
bring more: then a check of models/wire/checks takes it, it is refused there with a sentence on what
to do, or, if nobody is harmed, its name is added here and to docs/wire.md.
"""

WITHOUT_EFFECT = {
    "parameters": (
        *("access_programs", "client_metadata"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
        *("reasoning.context", "reasoning.effort", "reasoning.mode", "safety_identifier"),
        *("service_tier", "text.verbosity", "top_logprobs", "user"),
    ),
    "tools": (
        *("allowed_callers", "async", "output_schema"),
        *("external_web_access", "search_content_types"),
    ),
    "input": (
        *("async", "caller", "detail", "name", "namespace", "phase", "prompt_cache_breakpoint"),
    ),
}
"""Accepted, and named in the header: parameters, and the fields of tools and of input items by
their last names. The table in docs/wire.md has the same."""

WITHOUT_EFFECT_AT_NATIVE = {
    "parameters": (),
    "tools": ("allowed_callers",),
    "input": (),
}
"""The same for a native upstream. The tools are those that this server runs."""

_ADDED = r"input\[(additional_tools|tool_search_output)\].tools"
_HOSTED = r"code_interpreter|image_generation|programmatic_tool_calling"

REFUSED_ANYWHERE = {
    r"prompt": "Send the text in 'instructions' and 'input'",
    r"input\[configuration_update\]": "Send 'reasoning' and 'text' with the request",
    rf"{_ADDED}\[(file_search|mcp|{_HOSTED})\]": "Send it in 'tools' of the request",
    rf"{_ADDED}\[shell\].environment\[container_": "Send it in 'tools' of the request",
    rf"{_ADDED}\[tool_search\].execution='server'": "or set 'execution' to 'client'",
    r"tools\[(code_interpreter|shell)\].*domain_secrets": "stores and shows the tools",
    r"tools\[mcp\].(connector|tunnel)_id": "Give the address of a remote MCP server",
}
"""Place -> a part of the sentence with which it is refused, at any upstream."""

REFUSED_AT_CHAT = {
    r"image.context_compression='enabled'": "Leave it out, or send smaller ones",
    rf"tool_choice\[\w+\](.type='({_HOSTED})')?$": "not found in 'tools'",
    r"tools\[image_generation\]": "set BACKBURNER_IMAGES__MODEL",
    r"tools\[programmatic_tool_calling\]": "Leave this tool out",
    r"tools\[shell\].environment\[container_auto\].skills": "have no skills. Give",
    r"tools\[\w+\](.tools\[\w+\])?.allowed_callers='programmatic'": "Add 'direct'",
}
"""The same, only at a chat upstream."""
