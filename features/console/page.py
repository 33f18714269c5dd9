"""A page of the console: its address, and the function that answers."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import Response

from features.console.visit import Visit


@dataclass(frozen=True, slots=True)
class Page:
    """One route."""

    path: str
    """below the console; empty: the console itself"""
    respond: Callable[[Visit], Awaitable[Response]]
    method: str = "GET"
    needs_login: bool = True
    is_for_all: bool = False
    """a POST that is also for somebody who only looks"""
