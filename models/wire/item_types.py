"""The types of items and of content parts, and what is known of each type by itself."""

ID_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
    "web_search_call": "ws",
    "file_search_call": "fs",
    "code_interpreter_call": "ci",
    "image_generation_call": "ig",
    "mcp_list_tools": "mcpl",
    "mcp_call": "mcp",
    "mcp_approval_request": "mcpr",
    "mcp_approval_response": "mcpa",
    "computer_call": "cu",
    "computer_call_output": "cuo",
    "local_shell_call": "lsh",
    "local_shell_call_output": "lsho",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "apply_patch_call": "apc",
    "apply_patch_call_output": "apco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "additional_tools": "at",
    "compaction": "cmp",
    "compaction_trigger": "cmpt",
    "program": "prog",
    "program_output": "progo",
}
"""type -> prefix of the ids that this server makes for such items: `msg_…`."""

CALLS = {
    "function_call": "function call",
    "custom_tool_call": "custom tool call",
    "tool_search_call": "tool search call",
    "local_shell_call": "local shell call",
    "shell_call": "shell call",
    "apply_patch_call": "apply patch call",
    "computer_call": "computer call",
}
"""Calls of client tools -> how errors name them."""

SERVER_CALLS = frozenset(
    (
        *("mcp_call", "web_search_call", "file_search_call"),
        *("code_interpreter_call", "image_generation_call"),
    )
)
"""Calls of tools that this server or its upstream runs."""

OUTPUTS = {
    "function_call_output": "function call output",
    "custom_tool_call_output": "custom tool call output",
    "tool_search_output": "tool search output",
    "local_shell_call_output": "local shell call output",
    "shell_call_output": "shell call output",
    "apply_patch_call_output": "apply patch call output",
    "computer_call_output": "computer call output",
}
"""The outputs of such calls, which the client sends -> how errors name them."""

ADDS_TOOLS = frozenset(("additional_tools", "tool_search_output"))
"""Items that add tools to those of the request."""

APPROVAL_REQUEST = "mcp_approval_request"
APPROVAL_RESPONSE = "mcp_approval_response"

TEXT_FIELDS = {
    "output_text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "summary_text": "text",
}
"""type of a content part that is streamed -> the field that its deltas add to."""

ARGUMENT_FIELDS = {
    "function_call": "arguments",
    "custom_tool_call": "input",
    "mcp_call": "arguments",
    "code_interpreter_call": "code",
}
"""type of a call that is streamed -> the field that its deltas add to."""
