"""Who sees inputs and outputs, by the cookie of a session."""

from http.cookies import SimpleCookie

import pytest
from starlette.requests import Request
from starlette.responses import Response

from features.console.access import Role, Session, is_revealed, set_reveal_cookie

_OPERATOR = Session("token-of-one", Role.OPERATOR, "one")
_NAME = "backburner-console-reveal"


def _request(value: str | None = None) -> Request:
    headers = [] if value is None else [(b"cookie", f"{_NAME}={value}".encode())]
    return Request({"type": "http", "scheme": "http", "path": "/", "headers": headers})


def _cookie() -> str:
    answer = Response()
    set_reveal_cookie(_request(), answer, _OPERATOR, "/console")
    return SimpleCookie(answer.headers["set-cookie"])[_NAME].value


def test_only_the_session_that_asked_sees_them() -> None:
    cookie = _cookie()
    other = Session("token-of-another", Role.OPERATOR, "one")
    reader = Session("token-of-one", Role.READ_ONLY, "one")
    seen = [is_revealed(_request(cookie), each) for each in (_OPERATOR, other, reader)]
    assert seen == [True, False, False]
    assert not is_revealed(_request(), _OPERATOR)


def test_they_are_hidden_after_an_hour_and_nobody_can_extend_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cookie = _cookie()
    until, _, seal = cookie.partition(".")
    for invalid in (f"{int(until) + 1}.{seal}", f"{until}.", f"{until}.{seal[:-1]}x", "²." + seal):
        assert not is_revealed(_request(invalid), _OPERATOR)
    monkeypatch.setattr("time.time", lambda: int(until) + 1.0)
    assert not is_revealed(_request(cookie), _OPERATOR)
