"""Vendors' names and numbers of errors, and the HTTP statuses that they mean."""

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

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
