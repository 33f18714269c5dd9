"""What only a sentence can say: the meaning of parameters, of error codes, of statuses."""

ABOUT = """A self-hosted server for the OpenAI Responses API, built for background work that survives its machines.

**Keys.** Everything under `/v1` wants `Authorization: Bearer <key>`; without a good key every path there is 401, whether it exists or not.
With one, an unknown path is 404 `unknown_url`, and a method that a path does not have is 405 with `Allow`.

**Errors.** Every error is the envelope `{"error": {"message", "type", "param", "code"}}`, all four keys present. Where it helps, the
official clients are told by `x-should-retry: false` not to try again. Every answer carries `x-request-id`. What is no
HTTP at all is told so in plain text, with status 400.

**Background.** `POST /v1/responses` with `background: true` answers at once with status `queued`; poll `GET /v1/responses/{response_id}`
until the status is none of `queued` and `in_progress`, or read its events with `?stream=true`, from any number on with `starting_after`.
A foreground response cannot be found by its id before it has ended, and only afterwards if it is stored; when its client leaves, it is
cancelled.

**WebSocket.** `GET /v1/responses` with an upgrade and the same key: `response.create` frames, whose fields are those of the POST's body, are answered
with the events as frames, one JSON text each. A request can ask for a remembered answer with `cache`. Both are described in the documentation.

**JSON** is UTF-8, nested at most 190 deep; integers fit in 64 bits and are written without a fraction (`16`, not `16.0`); U+0000 and lone
surrogates become U+FFFD.
"""

STREAM = """Server-Sent Events, LF only. Each event is one block: `event: <type>`, then `data: <the event as one line of JSON>`, then an
empty line; `event` equals the `type` inside. `sequence_number` counts from 0 without holes, the same for every reader and every replay.
The terminal event is followed by `data: [DONE]`, which has no number. Lines that begin with `:` are comments that keep the connection
alive. There are no `id:` and no `retry:` lines. A stream that ends without a terminal event was cut off: for a background response, go
on with `GET /v1/responses/{response_id}?stream=true&starting_after=<the last number>`. The stream of a cancelled response ends with
`response.failed` whose response has the status `cancelled`."""

CREATE_BODY = (
    "null means absent, for every parameter. Unknown parameters are refused (unless they are null), unknown keys inside items "
    "and tools are ignored."
)
CHAT_BODY = "A body of Chat Completions. Only `model` is looked at, to find the upstream; everything else is the upstream's to judge."
IGNORED = "Documented by OpenAI or sent by common clients; accepted and ignored."
IGNORED_BY_COMPACT = "Documented by OpenAI; accepted and ignored."
PASSTHROUGH = "Handed on to this deployment's upstream as it is."

PARAMETERS: dict[str, str] = {
    "model": "The model, by the name that the upstream knows it by.",
    "input": "What the model is to answer: a text, which is one user message, or items. Every call needs an output after it and every "
    "output a call before it, in the input and the responses it goes on from together. Item ids must differ. It may only be empty with "
    "`previous_response_id` or `conversation`. A `file_url` is fetched by this server, from public addresses only, unless this deployment allows others.",
    "instructions": "A system message for this response alone; not inherited through `previous_response_id`.",
    "previous_response_id": "The response to go on from, of the same project and finished. What it was given and what it answered comes "
    "before `input`.",
    "conversation": "The conversation to speak in: its id, or an object that holds it as `id`. Its items come before `input`; input and "
    "output become part of it when the response has ended as `completed` or `incomplete`, unless `store` is false. While a response of it "
    "runs, another one is 400 `conversation_locked`. Excludes `previous_response_id`.",
    "store": "Whether the response can be fetched after its end. `background` needs it, unless this deployment allows otherwise.",
    "background": "Answer at once and run on the server, whatever becomes of the connection.",
    "stream": "Answer with the events as Server-Sent Events.",
    "stream_options": "Only with `stream`. `include_obfuscation: true` pads the events of deltas, so that their length tells nothing of what they say.",
    "include": "Further output to include. `message.output_text.logprobs` asks for log probabilities, "
    "`web_search_call.action.sources` for what searches have found; the others are accepted without effect.",
    "tools": "What the model may call. Web search is left out where the server has no provider for it. Names must differ within a "
    "namespace. `shell`, `local_shell`, `apply_patch` and `tool_search` are run by the client. The tools of an `mcp` server are listed "
    "and called by this server; its credentials and the path of its address are never shown again. Where the model's upstream speaks the "
    "Responses API itself, tools that it runs (`file_search`, `code_interpreter`, …) are handed on to it; elsewhere they are refused.",
    "tool_choice": "Whether and what the model must call; what it names must be among `tools` or the tools that "
    "`input` adds, and `required` needs some.",
    "parallel_tool_calls": "Whether the model may call several tools in one turn.",
    "max_tool_calls": "The most calls of built-in tools.",
    "max_output_tokens": "The most tokens the model may produce, reasoning included.",
    "temperature": "Sampling temperature.",
    "top_p": "Nucleus sampling: the share of probability that is looked at.",
    "presence_penalty": "Handed on to the model.",
    "frequency_penalty": "Handed on to the model.",
    "top_logprobs": "How many alternatives to give for each token.",
    "text": "The form of the text: plain, JSON, or JSON after a schema; and how verbose.",
    "reasoning": "How much the model is to think, and what of that is shown. `generate_summary` is the old name of `summary`.",
    "truncation": "What to do when the upstream says that the request is too long for the model: `auto` leaves out the oldest turns and tries "
    "again, `disabled` refuses (foreground) or fails (background).",
    "context_management": "When the context has more than `compact_threshold` tokens before a turn of the model, or is too long for it, the "
    "history is summed up: a `compaction` item takes its place. Without a threshold this server has one of its own.",
    "metadata": "Up to 16 pairs, keys up to 64 characters, values up to 512; shown in the Response.",
    "service_tier": "Handed on; the Response tells the tier that was used.",
    "user": "Deprecated by OpenAI; echoed.",
    "safety_identifier": "Echoed.",
    "prompt_cache_key": "Echoed.",
    "cache": "No parameter of OpenAI's. The answer may be one that this project got before to exactly the same question, and is remembered "
    "for it: for `ttl` seconds, or as long as this server does by default. `x-cache` says whether it was. Answers for which "
    "tools were run on the server are not remembered.",
    "prompt": "Not supported: this server keeps no prompt templates.",
}

CODES: dict[str, str] = {
    "invalid_json": "the body is no JSON that can be stored",
    "invalid_type": "a value has another type than it must have",
    "invalid_value": "a value is none of those supported, or has a wrong form",
    "invalid_request_error": "a stream was asked of a foreground response",
    "missing_required_parameter": "a field that is needed is absent or null",
    "unknown_parameter": "the Responses API has no such parameter",
    "unsupported_parameter": "this server does not do what the parameter asks",
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
    "invalid_json_schema": "the schema of `text.format` is none, or cannot be obeyed strictly",
    "invalid_function_parameters": "the parameters of a function are no JSON Schema, or one that cannot be obeyed strictly",
    "input_too_large": "the items that are referred to are too large together",
    "invalid_encrypted_content": "a compaction that was changed, or is not one of this server and project",
    "context_length_exceeded": "the upstream says that the request is too long for the model",
    "item_not_found": "an item reference names nothing that is stored",
    "conversation_not_found": "there is no such conversation",
    "conversation_locked": "a response of the conversation is running",
    "previous_response_not_found": "there is no such response to go on from",
    "previous_response_not_ready": "the response to go on from has not finished",
    "idempotency_key_reused": "the key came before with another body",
    "model_not_found": "the model does not exist",
    "invalid_api_key": "no key, or one that is not ours",
    "unknown_url": "no such path",
    "request_too_large": "the body is larger than this server takes",
    "unsupported_media_type": "the body is not JSON, or is compressed",
    "rate_limit_exceeded": "the upstream wants fewer requests",
    "http_error": "the tools of an MCP server could not be listed",
    "server_error": "nothing was stored and nothing will run",
    "invalid_stream_id": "over WebSocket: the name of a lane has a wrong form",
    "websocket_stream_limit_reached": "over WebSocket: the connection has used as many names of lanes as it may",
    "websocket_queue_full": "over WebSocket: too much waits on the connection",
    "websocket_connection_limit_reached": "over WebSocket: the connection's time is over",
    "steering_not_supported": "over WebSocket: `response.steer` is not supported",
}
"""`error.code` -> when a client gets it."""

STATUSES: dict[int, str] = {
    400: "The request cannot be carried out as it stands; nothing was stored. Also: the upstream refused it (foreground).",
    401: "No API key, or one that is not ours.",
    403: "The upstream refused this server (foreground, before any output).",
    404: "There is no such thing in this project.",
    408: "The upstream timed out the request (foreground, before any output).",
    413: "The body is larger than this server takes.",
    415: "The body is not JSON, or is compressed.",
    422: "The upstream could not process the request (foreground, before any output). This server itself never answers 422.",
    424: "The tools of an MCP server could not be listed (foreground, before any output).",
    429: "The upstream wants fewer requests (foreground, before any output).",
    500: "A fault of this server.",
    502: "The upstream is away, broke off or talked nonsense.",
    503: "The database is away, or the server is stopping: nothing was stored and nothing will run.",
    504: "The upstream took too long, or one of this server's own limits ended the run (foreground, before any output).",
}
"""Status of an error -> what it means."""
