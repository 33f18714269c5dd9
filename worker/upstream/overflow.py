"""Whether an upstream's error means that the request is too long for the model's context. Each
server has its own wording."""

import re
from collections.abc import Iterable

from models.errors import UpstreamFailed

_ERROR_CODES = frozenset(
    (
        "context_length_exceeded",
        "exceed_context_size_error",
        "context_window_exceeded",
        "model_context_window_exceeded",
    )
)
"""Values of the error's `code` or `type`: OpenAI and servers that copy it; llama.cpp; litellm;
Anthropic."""

_MESSAGE_PATTERN = re.compile(
    r"""maximum[ ]context[ ]length                                      # OpenAI, vLLM, DeepSeek …
    # SGLang; vLLM, of the prompt
    | longer[ ]than[ ]the[ ](model'?s[ ]context|maximum[ ]model)[ ]length
    # llama.cpp, Ollama, Anthropic
    | exceeds?[ ](the[ ])?(available[ ]|model'?s[ ]|maximum[ ])*context[ ](size|length|limit|window)
    | exceeds?[ ](the[ ])?(model'?s[ ])?(maximum[ ])?n_ctx            # older llama.cpp
    | tokens[ ]exceed[ ]context[ ]window                              # llama-cpp-python
    | prompt[ ]is[ ]too[ ]long                                        # Anthropic
    | input[ ]is[ ]too[ ]long                                         # Bedrock
    | input[ ]token[ ]count.*exceeds[ ]the[ ]maximum[ ]number[ ]of[ ]tokens  # Gemini
    | context[ ](length|window|size)[ ](was[ ]|is[ ]|has[ ]been[ ])?(exceeded|too[ ]small)
    | context[ ](the[ ])?overflows                                    # LM Studio
    | greater[ ]than[ ]the[ ]context[ ]length                         # LM Studio, newer
    | too[ ]large[ ]for[ ]model[ ]with[ ]\d+[ ]maximum[ ]context      # Mistral
    | inputs`?[ ](tokens[ ]\+|must[ ]have[ ]less[ ]than)              # TGI
    | reduce[ ]the[ ]length[ ]of[ ]the[ ](messages|prompt|input)      # Groq, vLLM
    """,
    re.IGNORECASE | re.VERBOSE,
)
_SEARCHED_CHARACTERS = 4000
"""Characters of a message that are searched. A message may have any length."""


def is_overflow(message: str, codes: Iterable[str] = ()) -> bool:
    """Whether an error with this message means an overflow. `codes`: its `code` and `type`."""
    return (
        not _ERROR_CODES.isdisjoint(codes)
        or _MESSAGE_PATTERN.search(message[:_SEARCHED_CHARACTERS]) is not None
    )


def overflow_failure(message: str) -> UpstreamFailed:
    """The failure. With `truncation: auto` the run tries again with a shorter history. `message`
    is for the client."""
    return UpstreamFailed(
        message,
        code=OVERFLOW,
        reason=OVERFLOW,
        status=400,
        param="input",
        envelope_code=OVERFLOW,
    )


OVERFLOW = "context_length_exceeded"
"""The code and the `reason` of such a failure. OpenAI's SDK does not list the code for failed
responses, but OpenAI sends it, and Codex then shortens its history."""
