"""Somebody who uses the console over HTTP, without a browser: cookies, forms, pages."""

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from html import unescape

import aiohttp

from tests.support.stack import Stack

OPERATOR_TOKEN = "operator-token-of-tests"
READ_ONLY_TOKEN = "read-only-token-of-tests"
CONSOLE_SETTINGS = {
    "BACKBURNER_CONSOLE__OPERATOR_TOKEN": OPERATOR_TOKEN,
    "BACKBURNER_CONSOLE__READ_ONLY_TOKEN": READ_ONLY_TOKEN,
}
"""Of the deployments that tests share."""
PROXY_SETTINGS = {
    "BACKBURNER_CONSOLE__PATH_PREFIX": "/behind/proxy",
    "BACKBURNER_CONSOLE__USER_HEADER": "X-Forwarded-User",
    "BACKBURNER_CONSOLE__GROUPS_HEADER": "X-Forwarded-Groups",
    "BACKBURNER_CONSOLE__OPERATOR_GROUPS": "admins",
    "BACKBURNER_CONSOLE__READ_ONLY_GROUPS": "support",
    "BACKBURNER_CONSOLE__TRUSTED_PROXIES": "127.0.0.0/8",
}
"""A proxy that authenticates, and offers the server under a path. It is this machine."""
_FORM_TOKEN = re.compile(r'name="form_token" value="([0-9a-f]+)"')


@dataclass(frozen=True, slots=True)
class ConsolePage:
    """An answer of the console."""

    status: int
    headers: Mapping[str, str]
    html: str

    @property
    def text(self) -> str:
        """What a person reads, in one line."""
        return " ".join(unescape(re.sub(r"<[^>]*>", " ", self.html)).split())

    @property
    def form_token(self) -> str:
        """Of the first form. Empty if there is none."""
        found = _FORM_TOKEN.search(self.html)
        return found[1] if found else ""


@dataclass(slots=True)
class ConsoleUser:
    """A person with a browser of their own. `follows`: redirects."""

    origin: str
    session: aiohttp.ClientSession
    headers: dict[str, str] = field(default_factory=dict)

    async def get(
        self, path: str, headers: Mapping[str, str] | None = None, *, follows: bool = True
    ) -> ConsolePage:
        """A page. `path`: with `/console`."""
        async with self.session.get(
            f"{self.origin}{path}",
            headers={**self.headers, **(headers or {})},
            allow_redirects=follows,
        ) as answer:
            return ConsolePage(answer.status, answer.headers, await answer.text())

    async def post(
        self,
        path: str,
        fields: list[tuple[str, str]],
        headers: Mapping[str, str] | None = None,
        *,
        follows: bool = True,
    ) -> ConsolePage:
        """Sends a form, as a page of this server does."""
        async with self.session.post(
            f"{self.origin}{path}",
            data=fields,
            headers={"origin": self.origin, **self.headers, **(headers or {})},
            allow_redirects=follows,
        ) as answer:
            return ConsolePage(answer.status, answer.headers, await answer.text())

    async def log_in(self, token: str, **headers: str) -> ConsolePage:
        """Logs in with a token."""
        form = await self.get("/console/login")
        fields = [("form_token", form.form_token), ("token", token), ("next", "")]
        return await self.post("/console/login", fields, headers)

    async def reveal(self, path: str) -> ConsolePage:
        """Asks to see inputs and outputs in this session. Returns the page of the path."""
        page = await self.get(path)
        return await self.post("/console/reveal", [("form_token", page.form_token), ("next", path)])


@asynccontextmanager
async def console_user(
    stack: Stack, token: str | None = None, web: int = 0
) -> AsyncIterator[ConsoleUser]:
    """Somebody at one web process; logged in with `token` if one is given."""
    jar = aiohttp.CookieJar(unsafe=True)
    async with aiohttp.ClientSession(cookie_jar=jar) as session:
        user = ConsoleUser(f"http://127.0.0.1:{stack.webs[web].port}", session)
        if token is not None:
            page = await user.log_in(token)
            assert page.status == 200, page.text
        yield user
