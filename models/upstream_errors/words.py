"""What vendors' names and numbers of errors mean, and the words of an error's message. Each server
has its own wording."""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

_SEARCHED_CHARACTERS = 4000
"""Characters of a message that are searched. A message may have any length."""

_OVERFLOW_CODES = frozenset(
    (
        "context_length_exceeded",
        "exceed_context_size_error",
        "context_window_exceeded",
        "model_context_window_exceeded",
        "model_max_prompt_tokens_exceeded",
    )
)
"""Values of the error's `code` or `type`: OpenAI and servers that copy it; llama.cpp; litellm;
Anthropic; Copilot."""

_OVERFLOW = re.compile(
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
    | context[ ](length|window|size)[ ](was[ ]|is[ ]|has[ ]been[ ])?
        (exceed(ed|s[ ])|too[ ]small)                                 # …, MiniMax
    | context[ ](the[ ])?overflows                                    # LM Studio
    | greater[ ]than[ ]the[ ]context[ ]length                         # LM Studio, newer
    | too[ ]large[ ]for[ ]model[ ]with[ ]\d+[ ]maximum[ ]context      # Mistral
    | inputs`?[ ](tokens[ ]\+|must[ ]have[ ]less[ ]than)              # TGI
    | reduce[ ]the[ ]length[ ]of[ ]the[ ](messages|prompt|input)      # Groq, vLLM
    | range[ ]of[ ]input[ ]length[ ]should[ ]be                       # Alibaba
    | prompt[ ]tokens?[ ]too[ ]long                                   # Baidu
    | prompt[ ](is[ ])?too[ ]long | prompt[ ]超长                     # Ollama, newer; GLM
    | prompt[ ]exceeds[ ]max(imum)?[ ]length                          # GLM
    | exceeded[ ]model[ ]token[ ]limit                                # Kimi
    | too[ ]many[ ]tokens:[ ]                                         # Cohere
    | maximum[ ]prompt[ ]length[ ]is[ ]\d                             # xAI
    | token[ ]count[ ]of[ ]\d+[ ]exceeds                              # Copilot
    | input[ ]token[ ]count[ ]is[ ]\d+[ ]but[ ]model                  # Vertex
    | prompt[ ]length[ ]\(?\d+\)?[ ]exceeds                           # mlx-lm
    | exceeds[ ](the[ ])?maximum[ ]allowed[ ]input[ ]length           # Poolside
    | context[ ]length[ ]is[ ]only[ ]\d                               # vLLM, newer
    | configured[ ]context[ ]size[ ]is[ ]\d
    """,
    re.IGNORECASE | re.VERBOSE,
)
_TOO_LARGE = re.compile(
    r"""(input|prompt)[ ](\([^)]{0,40}\)[ ])?is[ ]too[ ]large        # llama.cpp
    | increase[ ]the[ ](physical[ ])?batch[ ]size
    | (must|should)[ ]have[ ](less|fewer)[ ]than[ ]\d+[ ]tokens      # text-embeddings-inference
    | (maximum|max)[ ](allowed[ ])?(number[ ]of[ ])?(input[ ])?(sequence[ ]length|tokens)
    | tokens[ ]per[ ]request
    | (sequence|input|token|prompt)[ ](indices[ ])?(sequence[ ])?length[ ]
        .{0,40}(longer|exceed|greater|larger)
    | exceeds?[ ].{0,30}max(imum)?_?[ ]?(seq|input|model|position|batch)
    | too[ ]many[ ](input[ ])?tokens | too[ ]long
    """,
    re.IGNORECASE | re.VERBOSE,
)
_REFUSED = re.compile(
    r"""(image|audio|video|file|multimodal|vision|tool|function)s?[ ]?
        (input|content|call|calling|data|url)?s?[ ]
        (is|are)[ ]not[ ]supported                                    # llama.cpp, of a text model
    | (does|do)[ ]not[ ]support[ ](image|audio|video|vision|multimodal|tool|function)
    | provide[ ]the[ ]mmproj
    | (input|prompt)[ ](\([^)]{0,40}\)[ ])?is[ ]too[ ]large[ ]to[ ]process
    | increase[ ]the[ ](physical[ ])?batch[ ]size
    | missing[ ]data[ ]required[ ]for[ ]image[ ]input                 # Ollama
    | failed[ ]to[ ](load|decode|process)[ ](the[ ])?(image|audio|inputs?\b)
    | unsupported[ ]content(\[\]\.type|[ ](part|type))                # llama.cpp
    | failed[ ]to[ ]parse[ ](the[ ]|input[ ])?
        (messages|tools|tool_choice|tool[ ]call[ ]arguments|grammar|json[ ]schema)
    | (error|failed|failure)[ ](while[ ])?(parsing|compiling|initializing|to[ ](initialize|compile))
        [ ](the[ ])?(grammar|json[ ]schema|samplers?)
    | json[ ]schema[ ](conversion[ ]failed|error|to[ ]grammar)
    | unrecogni[sz]ed[ ]schema | unsupported[ ](json[ ])?schema
    | (invalid|unsupported)[ ](grammar|regex|json[ ]schema)
    | grammar[ ](error|is[ ]invalid|could[ ]not)
    | \bjinja | template[ ]?error | chat[ ]template
    | error[ ]rendering[ ]prompt | while[ ]executing[ ]\w+[ ]at[ ]line
    | conversation[ ]roles?[ ]must[ ]alternate | roles[ ]are[ ]supported
    | (requires|param[ ]requires)[ ]--jinja
    | cannot[ ]use[ ]custom[ ]grammar
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""Words under a server error (5xx) for a request that can never succeed: llama.cpp raises such
errors as exceptions, and other servers copy that."""

_NAMED = r"\bmodel(?: name| id| identifier)?:? (?:\S{1,200} )?"
"""The word with at most one more, the name."""
_UNKNOWN_MODEL = re.compile(
    "|".join(
        (
            # OpenAI, vLLM, DeepSeek, Ollama, Cohere, Fireworks
            rf"{_NAMED}(?:does not|doesn['’]t|not) exist",
            rf"{_NAMED}(?:was |is |could )?not (?:be )?found",
            rf"{_NAMED}is (?:unknown|invalid|not a? ?valid)\b",
            rf"{_NAMED}is not available(?! (?:right|at|now|yet|due))",
            # Hugging Face
            rf"{_NAMED}is not supported(?! (?:with|for|in|on|when)\b)",
            # LiteLLM, Mistral, Perplexity, MiniMax, Cloudflare
            (
                r"\b(?:invalid|unknown|unrecognized|no such|non-?existent|unsupported) model"
                r"(?: name| id| identifier)?(?=$|\W)(?! (?:parameter|setting|option|output|input|"
                r"response|reply|config|type|architecture|format|version|weight|kwarg|argument))"
            ),
            # OpenRouter, one-api
            r"\bis not a valid model\b",
            r"\bno endpoints found for\b",
            (
                r"\bno (?:available )?(?:providers?|deployments?|channels?) (?:found |available )?"
                r"for (?:the )?model\b"
            ),
            r"\bserver is pinned to\b",  # transformers
            r"\btry pulling it first\b",  # Ollama
            r"\bno model (?:named|with (?:the )?(?:name|id))\b",
            r"\bno models? loaded\b",  # LM Studio
            r"\bmodels/\S{1,200} is not found\b",  # Gemini
            r"\bdeployment for this resource does not exist\b",  # Azure
            r"模型不存在",
        )
    ),
    re.IGNORECASE,
)
_UNKNOWN_MODEL_CODES = frozenset(
    (
        "model_not_found",
        "modelnotfound",
        "model_not_supported",
        "invalid_model",
        "unknown_model",
        "deploymentnotfound",
    )
)

_BY_WORDS = tuple(
    (status, re.compile("|".join(patterns), re.IGNORECASE))
    for status, patterns in (
        (
            402,
            (
                r"insufficient (?:account )?(?:balance|credits?|funds)|insufficient_quota",
                r"balance is too low|exceeded your current quota|out of credits|in arrears",
            ),
        ),
        (
            401,
            (
                r"(?:invalid|incorrect|missing|expired|wrong|bad) (?:api|access|auth)[ _-]?key",
                r"(?:invalid|expired|bad) (?:access|auth|authentication|bearer) token",
                r"(?:api|access) ?key (?:is )?(?:invalid|incorrect|missing|expired)",
                r"\bunauthori[sz]ed\b|\bunauthenticated\b",
                r"authentication (?:failed|error|required)",
            ),
        ),
        (
            429,
            (
                r"rate.?limit|too many requests|throttl|\b(?:rpm|tpm|qps) (?:limit|exceeded)",
                r"qps.?overflow|resource (?:has been )?exhausted|concurrency (?:limit )?exceeded",
            ),
        ),
        (
            503,
            (
                r"overloaded|temporarily unavailable|service unavailable|bad gateway",
                r"gateway time-?out|upstream connect error|upstream request timeout",
                r"no healthy upstream|connection (?:refused|reset)|(?:is|currently|too) busy",
                r"at capacity|capacity (?:temporarily )?exceeded",
                r"loading model|is (?:currently |still )?loading",
            ),
        ),
    )
)
"""Statuses, and words of errors that name none."""


def _searched(message: str) -> str:
    return message[:_SEARCHED_CHARACTERS]


def is_overflow(message: str, codes: Iterable[str] = ()) -> bool:
    """Whether an error with this message means that the request is too long for the model's
    context. `codes`: its `code` and `type`."""
    return not _OVERFLOW_CODES.isdisjoint(codes) or _OVERFLOW.search(_searched(message)) is not None


def is_too_large(message: str, codes: Iterable[str] = ()) -> bool:
    """Whether an error of an endpoint for embeddings means that a text, or all of them together,
    are too long."""
    return is_overflow(message, codes) or _TOO_LARGE.search(_searched(message)) is not None


def is_refused(message: str) -> bool:
    """Whether the message of a server error (5xx) blames the request: it can never succeed."""
    return _REFUSED.search(_searched(message)) is not None


def is_unknown_model(message: str, codes: Iterable[str] = ()) -> bool:
    """Whether an error means that the upstream does not have the model."""
    return (
        any(code.lower() in _UNKNOWN_MODEL_CODES for code in codes)
        or _UNKNOWN_MODEL.search(_searched(message)) is not None
    )


def status_of_words(message: str) -> int:
    """The status that the words of an error without one mean; 0 if they do not say it."""
    searched = _searched(message)
    return next((status for status, pattern in _BY_WORDS if pattern.search(searched)), 0)


def comparable(message: str) -> str:
    """The message without words that have a digit, which name a request or a time: two errors with
    the same rest are the same."""
    return " ".join(word for word in message.split() if not any(map(str.isdigit, word)))


FIRST_STATUS, LAST_STATUS = 400, 599
"""Numbers that are an HTTP status of an error."""
PAYMENT_REQUIRED = 402


def _statuses(rows: Mapping[int, str]) -> Mapping[str, int]:
    return MappingProxyType(
        {_plain(name): status for status, names in rows.items() for name in names.split()}
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", name.lower())


_NAMES = _statuses(
    {
        # OpenAI, Anthropic, vLLM, Google, Amazon, Alibaba. Upper case and underscores do not count.
        400: """invalid_request_error BadRequestError bad_request invalid_request invalid_prompt
            invalid_parameter_error INVALID_ARGUMENT FAILED_PRECONDITION OUT_OF_RANGE
            validation template_error ValidationException
            ValidationError validation_error value_error InvalidParameter
            InvalidParameterValue BadRequest InvalidURL UnsupportedOperation DataInspectionFailed
            content_policy_violation content_filter request_too_large invalid_params
            ModelErrorException model_error""",
        401: """authentication_error AuthenticationError invalid_api_key invalid_authentication
            UNAUTHENTICATED InvalidApiKey UnrecognizedClientException ExpiredTokenException
            InvalidSignatureException IncompleteSignature unauthorized invalid_iam_token""",
        402: """insufficient_quota billing_error billing_hard_limit_reached billing_not_active
            insufficient_balance InsufficientBalance payment_required Arrearage
            insufficient_credits exceeded_current_quota_error token_quota_reached""",
        403: """permission_error PermissionDeniedError PERMISSION_DENIED AccessDeniedException
            AccessDenied forbidden permission_denied""",
        404: """not_found_error NotFoundError NOT_FOUND ResourceNotFoundException
            ModelNotFound model_not_found""",
        408: "RequestTimeOut ModelTimeoutException request_timeout",
        413: "request_too_large",
        429: """rate_limit_error RateLimitError rate_limit_exceeded rate_limit_reached
            rate_limit_reached_error too_many_requests RESOURCE_EXHAUSTED ThrottlingException
            Throttling TooManyRequestsException ModelNotReadyException limit_requests
            ServiceQuotaExceededException rate_limited LimitExceeded RequestLimitExceeded""",
        500: """api_error INTERNAL InternalServerException InternalServerError internal_error
            InternalError ModelStreamErrorException internal_server_error UNKNOWN""",
        503: """UNAVAILABLE overloaded_error engine_overloaded_error ServiceUnavailableException
            service_unavailable ServiceUnavailable ServiceUnavailableError overloaded
            unavailable_error""",
        504: "DEADLINE_EXCEEDED timeout_error TimeoutError",
    }
)
MINIMAX = _statuses(
    {
        400: "1026 1027 1042 2013 20132 2037 2039 2048",
        401: "1004 2049",
        402: "1008",
        403: "2042 2061",
        408: "1001",
        429: "1002 1039 1041 2045 2056",
        500: "1000 1013 1024 1033",
    }
)
"""`base_resp.status_code`. 1039 is the limit of tokens in a minute."""
BAIDU = _statuses(
    {
        400: """336001 336002 336003 336004 336005 336006 336007 336103 336104 336105 336106 336107
            336108 336109 336110 336111 336112 336113 336114 336115 336116 336117""",
        401: "13 14 100 110 111",
        402: "17",
        403: "6 15",
        404: "3",
        429: "4 18 19 336501 336502 336503 336504 336505",
        500: "1 336000",
        503: "2 336100 336101",
    }
)
"""`error_code` beside `error_msg`."""
ZHIPU = _statuses(
    {
        400: "1210 1212 1213 1214 1215 1231 1261 1301",
        401: "1000 1001 1002 1003 1004 1100 1110 1111 1112 1120 1121",
        402: "1113 1309",
        403: "1220 1221 1222 1311",
        404: "1211",
        429: "1302 1303 1304 1305 1308 1310 1313",
        500: "500 1200 1230 1234",
    }
)
"""`error.code` of GLM's servers."""


def status_number(value: Any) -> int:
    """The HTTP status in a number or a string of digits; 0 if it is none of an error."""
    if isinstance(value, str) and re.fullmatch(r"\d{3}", value):
        value = int(value)
    return value if type(value) is int and FIRST_STATUS <= value <= LAST_STATUS else 0


def status_of_names(names: Iterable[str]) -> int:
    """The status that the first telling one of an error's names means; 0 without one."""
    for name in names:
        # Amazon writes a namespace before it, Alibaba a reason behind it.
        plain = _plain(name.rpartition("#")[2])
        status = _NAMES.get(plain) or _NAMES.get(plain.partition(".")[0], 0)
        if status:
            return status
    return 0
