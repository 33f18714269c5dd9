"""The prose of the API document: the meaning of parameters, error codes and statuses."""

from models.wire.without_effect import HEADER as IGNORED_HEADER

ABOUT = """\
A self-hosted server for the OpenAI Responses API, for background work that survives a crash of its
processes.

**Keys.** Every path under `/v1` requires `Authorization: Bearer <key>`. Without a valid key, every
path there is 401, whether it exists or not. With one, an unknown path is 404 `unknown_url`, and a
method that a path does not have is 405 with `Allow`.

**Errors.** Every error is `{"error": {"message", "type", "param", "code"}}`, with all four keys.
`x-should-retry: false` tells the official clients not to retry. Every response has `x-request-id`
and `openai-processing-ms`.
A request that is not valid HTTP gets a 400, one whose headers or URL are too large a 431 or 414,
and one that does not arrive in time a 408, in the same envelope; the connection is then closed.

**Background.** `POST /v1/responses` with `background: true` returns at once with status `queued`.
Poll `GET /v1/responses/{response_id}` until the status is neither `queued` nor `in_progress`, or
read its events with `?stream=true`, from any number on with `starting_after`. A foreground response
cannot be retrieved before it has ended, and afterwards only if it is stored. It is cancelled when
its client disconnects.

**WebSocket.** `GET /v1/responses` with an upgrade and the same key: send `response.create` frames
with the fields of the POST's body, and receive the events as frames, one JSON text each.
`cache` allows a cached answer. The documentation describes both.

**JSON** is UTF-8, with at most 190 levels. Integers fit in 64 bits and have no fraction (`16`, not
`16.0`). U+0000 and lone surrogates become U+FFFD.
"""

STREAM = """\
Server-Sent Events, with LF only. Each event is one block: `event: <type>`, then `data: <the event
as one line of JSON>`, then an empty line; `event` equals the `type` in the JSON. `sequence_number`
counts from 0 without gaps, and is the same for every reader and every replay. After the terminal
event comes `data: [DONE]`, which has no number. Lines that begin with `:` are comments that keep
the connection alive. There are no `id:` and no `retry:` lines. A stream without a terminal event
was interrupted: for a background response, continue with
`GET /v1/responses/{response_id}?stream=true&starting_after=<the last number>`. The stream of a
cancelled response ends with `response.failed`, whose response has the status `cancelled`."""

CREATE_BODY = (
    "null means absent, for every parameter. Unknown parameters are refused (unless they are "
    "null). Unknown keys inside items and tools have no effect, and are named in "
    f"`{IGNORED_HEADER}`, unless an upstream with the Responses API gets them."
)
IGNORED = (
    "Documented by OpenAI or sent by common clients; accepted without effect, and named in "
    f"`{IGNORED_HEADER}`."
)
PASSTHROUGH = "Passed unchanged to this deployment's upstream."
IDEMPOTENCY_KEY = (
    "The same key with the same body within 24 hours gets what the first request has made instead "
    "of a second one; a response as JSON or as a stream. With another body or path it is 400 "
    "`idempotency_key_reused`. Retries of the official SDKs are recognised without it, by "
    "`x-stainless-retry-count` and their body, for seconds, if the first try's connection was lost."
)

PARAMETERS: dict[str, str] = {
    "model": "The model, by its name in the upstream.",
    "input": "A text, which is one user message, or items. Every call needs an output after it and "
    "every output a call before it, in the input together with what it continues. Item ids must "
    "differ. It may only be empty with `previous_response_id` or `conversation`. This server "
    "fetches a `file_url`, only from public addresses unless this deployment allows others. A "
    "`file_id` names a file of the project.",
    "instructions": "A system message for this response only. Not inherited through "
    "`previous_response_id`.",
    "previous_response_id": "The response to continue. It must belong to the same project and have "
    "finished, unless `wait_for_previous` is true. Its input and output come before `input`.",
    "wait_for_previous": "Of this server. True: a background response whose previous response has "
    "not ended begins after that one has ended as `completed` or `incomplete`. If that one fails, "
    "is cancelled or is deleted, it ends as `failed`.",
    "conversation": "The conversation to use: its id, or an object with the id as `id`. Its items "
    "come before `input`. Input and output are added to it when the response ends as `completed` "
    "or `incomplete`, unless `store` is false. While one of its responses runs, another one is 400 "
    "`conversation_locked`. Excludes `previous_response_id`.",
    "store": "Whether the response can be retrieved after its end. `background` requires it, "
    "unless this deployment allows otherwise.",
    "background": "Return at once and run on the server, independent of the connection.",
    "background_options": "How a background response waits while all slots are taken. "
    "`completion_window`: `2h` and `8h` wait behind `soonest`, until half of the window is left; "
    "they need a standard `service_tier` and no `stream`. `continuation_id`: your name for a "
    "thread of responses; a follow-up waits as if it had come some minutes earlier. The Response "
    "shows them if they are sent.",
    "stream": "Return the events as Server-Sent Events.",
    "stream_options": "Only with `stream`. `include_obfuscation: true` pads the delta events, so "
    "that their length reveals nothing about their text.",
    "include": "Further output to include. `message.output_text.logprobs` adds log probabilities, "
    "`web_search_call.action.sources` and `file_search_call.results` the results of searches, "
    "`code_interpreter_call.outputs` what code has printed, "
    "`reasoning.encrypted_content` the sealed reasoning. The other values have no effect.",
    "tools": "The tools that the model may call. Web search is left out if the server has no "
    "provider for it. Names must differ within a namespace. The client runs `shell`, "
    "`local_shell`, `apply_patch`, `computer` and `tool_search` with `execution: client`; without "
    "it this server searches the tools with `defer_loading`. It lists and calls the tools of an "
    "`mcp` server; its credentials and the path of its address are never shown again. It searches "
    "its own vector stores for `file_search`, and runs `code_interpreter` and `shell` in its own "
    "containers. Tools that a model's upstream runs itself (`image_generation`, …) are passed to "
    "it if it supports the Responses API; otherwise they are refused.",
    "tool_choice": "Whether the model must call a tool, and which. The tool must be among `tools` "
    "or the tools that `input` adds; `required` needs at least one.",
    "parallel_tool_calls": "Whether the model may call several tools in one turn.",
    "max_tool_calls": "The largest number of calls of built-in tools.",
    "max_output_tokens": "The largest number of tokens the model may produce, with reasoning.",
    "temperature": "Sampling temperature.",
    "top_p": "Nucleus sampling: the share of probability to choose from.",
    "presence_penalty": "Passed to the model.",
    "frequency_penalty": "Passed to the model.",
    "top_logprobs": "How many alternatives to return for each token.",
    "text": "The format of the text (plain, JSON, or JSON that follows a schema) and its "
    "verbosity.",
    "reasoning": "How much the model reasons, and what of that is shown. `generate_summary` is the "
    "old name of `summary`.",
    "truncation": "What to do if the upstream reports that the request is too long for the model: "
    "`auto` leaves out the oldest turns and tries again; `disabled` refuses the request "
    "(foreground) or fails the response (background).",
    "context_management": "If the context has more than `compact_threshold` tokens before a turn, "
    "or is too long for the model, the history is compacted: a `compaction` item replaces it. "
    "Without a threshold, this server uses its default.",
    "metadata": "Up to 16 pairs, keys up to 64 characters, values up to 512. "
    "Shown in the Response.",
    "service_tier": "Passed to native upstreams, to the chat API of OpenAI and of OpenRouter, and "
    "to upstreams whose `passthrough` lists it. It has no effect on others. While responses wait "
    "for a slot of a worker, `priority` goes first and `flex` last. The Response shows the tier "
    "that the upstream reports, and without one the requested tier, or a lower one if the project "
    "may not have that.",
    "user": "Deprecated by OpenAI. Shown in the Response; sent to native upstreams, and to those "
    "whose `passthrough` lists it.",
    **dict.fromkeys(
        ("safety_identifier", "prompt_cache_key"),
        "Shown in the Response; sent to native upstreams, and to those whose `passthrough` lists "
        "it.",
    ),
    "cache": "Not a parameter of OpenAI. The answer may be one that this project got before for "
    "exactly the same request. A new answer is cached for `ttl` seconds, or for this server's "
    "default. `x-cache` reports whether the answer came from the cache. Answers for which the "
    "server ran tools are not cached.",
    "prompt": "Not supported: this server keeps no prompt templates.",
    "moderation": "Sent to native upstreams, and to those whose `passthrough` lists it. For other "
    "models this server calls the moderation model, by its route of `/v1/moderations`: see "
    "docs/moderation.md. Refused if nothing can moderate.",
    "image": "Sent to native upstreams, and to those whose `passthrough` lists it. At others "
    "images are never compressed, and `context_compression: enabled` is refused.",
    **dict.fromkeys(
        ("access_programs", "prompt_cache_options", "prompt_cache_retention"),
        "Sent to native upstreams, and to those whose `passthrough` lists it. Without effect at "
        f"others, which `{IGNORED_HEADER}` says.",
    ),
}

CODES: dict[str, str] = {
    "invalid_json": "the body is not JSON that can be stored",
    "invalid_type": "a value has the wrong type",
    "invalid_value": "a value is not supported, or has a wrong form",
    "invalid_request_error": "a stream was requested for a foreground response",
    "missing_required_parameter": "a required field is absent or null",
    "unknown_parameter": "the Responses API has no such parameter",
    "unsupported_parameter": "this server does not support the parameter",
    "mutually_exclusive_parameters": "two parameters exclude each other",
    "integer_below_min_value": "a number is too small",
    "integer_above_max_value": "a number is too large",
    "decimal_below_min_value": "a number is too small",
    "decimal_above_max_value": "a number is too large",
    "string_above_max_length": "a text is too long",
    "array_above_max_length": "a list is too long",
    "object_above_max_properties": "an object has too many keys",
    "empty_string": "a text is empty",
    "empty_array": "a list is empty",
    "invalid_json_schema": "the schema of `text.format` is not valid, or not valid as a strict one",
    "invalid_function_parameters": "the parameters of a function are not a valid JSON Schema, or "
    "not valid as a strict one",
    "input_too_large": "the referenced items, or the files, are together too large",
    "file_not_found": "the project does not have the file",
    "history_too_large": "what the response continues is larger than a worker may load",
    "invalid_encrypted_content": "a compaction or reasoning was changed, or belongs to another "
    "server or project",
    "invalid_form": "the body is not a form that can be read",
    "account_id_not_allowed": "an object of the upstream's account is not known to be the "
    "project's",
    "context_length_exceeded": "the upstream reports that the request is too long for the model",
    "invalid_file": "a file is empty, or not what its name, its purpose or its place claims",
    "item_not_found": "the item of a reference is not stored",
    "conversation_not_found": "the conversation does not exist",
    "conversation_locked": "a response of the conversation is running",
    "previous_response_not_found": "the response to continue does not exist",
    "previous_response_not_ready": "the response to continue has not finished",
    "previous_response_failed": "the response to wait for has failed or was cancelled",
    "too_many_waiting_responses": "too many responses wait in a row, or for the same one",
    "idempotency_key_reused": "the key was used before with another body",
    "model_not_found": "the model does not exist, or the project may not use it",
    "invalid_api_key": "no API key, or an unknown one",
    "missing_scope": "the key has no scope that allows the request",
    "host_not_allowed": "the request names a host that is not this server's",
    "unknown_url": "the path does not exist",
    "request_timeout": "the request did not arrive in time",
    "request_too_large": "the body is larger than a limit of this server",
    "url_too_long": "the URL is longer than the limit of this server",
    "headers_too_large": "the headers are larger than the limit of this server",
    "unsupported_media_type": "the body is not JSON, nor a form where the route takes one, or is "
    "compressed",
    "rate_limit_exceeded": "the project or the upstream limits the rate of requests, too much of "
    "the project is open, or the address has sent too many unknown keys",
    "insufficient_quota": "the project has used its budget, or stores as much as it may; or the "
    "upstream's account must be paid for",
    "http_error": "the tools of an MCP server could not be listed",
    "server_error": "nothing was stored and nothing will run",
    "upstream_not_configured": "the project's routes lead to no upstream of this server",
}
"""`error.code` -> when a client gets it; features have more."""

STATUSES: dict[int, str] = {
    400: "The request is not valid; nothing was stored. Or the upstream refused it (foreground).",
    401: "No API key, or an unknown one.",
    403: "The key may not do this, or the page is not served under this host name.",
    404: "The project has no such object, or the model's upstream no such endpoint.",
    408: "The upstream timed out the request (foreground, before any output), or a file did not "
    "arrive in time.",
    413: "The body is too large.",
    415: "The body is not JSON, nor a form where the route takes one, or is compressed.",
    416: "The range begins behind the end of the file.",
    422: "The upstream could not process the request (foreground, before any output). This server "
    "itself never returns 422.",
    424: "The tools of an MCP server could not be listed (foreground, before any output).",
    429: "A quota of the project, or its share of a process, is used up: nothing was stored. Or "
    "the upstream limits the rate of requests (foreground, before any output).",
    500: "An internal error of this server.",
    502: "The upstream is unreachable, refused this server's credential, closed the connection, or "
    "sent an invalid response.",
    503: "The database is unavailable, the server is stopping, or the project's routes lead to no "
    "upstream of this server: nothing was stored and nothing will run.",
    504: "The upstream took too long, or a limit of this server ended the run (foreground, before "
    "any output).",
}
"""Status of an error -> its meaning."""
