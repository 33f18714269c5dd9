"""The proxies between the processes of a campaign and their servers."""

import asyncio
import random
from urllib.parse import urlsplit, urlunsplit

from tests.support.chaos.injector import Injector
from tests.support.chaos.proxy import Proxy


class Injectors:
    """The proxies of all processes before PostgreSQL, with one rate of lost replies."""

    def __init__(self, dsn: str, seed: int) -> None:
        """`seed` decides which statements are hit."""
        self._dsn = dsn
        self._seed = seed
        self._rate = 0.0
        self._injectors: list[Injector] = []

    def before(self, process_name: str) -> Injector:
        """Makes the proxy of this process."""
        injector = Injector(self._dsn, random.Random(f"{self._seed}/{process_name}"))
        injector.rate = self._rate
        self._injectors.append(injector)
        return injector

    def set_rate(self, rate: float) -> None:
        """Sets the share of the statements that are hit, for all processes."""
        self._rate = rate
        for injector in self._injectors:
            injector.rate = rate

    def redirect(self, port: int) -> None:
        """Leads new connections of all processes, also of those to come, to another port."""
        self._dsn = _with_port(self._dsn, port)
        for injector in self._injectors:
            injector.redirect(port)

    @property
    def lost(self) -> int:
        """The number of statements so far whose request or reply was lost."""
        return sum(injector.answers_lost + injector.requests_lost for injector in self._injectors)

    async def close(self) -> None:
        """Closes all proxies."""
        await asyncio.gather(*(injector.close() for injector in self._injectors))


def _with_port(dsn: str, port: int) -> str:
    parts = urlsplit(dsn)
    credentials = parts.netloc.rpartition(":")[0]
    return urlunsplit(parts._replace(netloc=f"{credentials}:{port}"))


class RedisProxies:
    """The proxies of all processes before Redis."""

    def __init__(self, redis_url: str) -> None:
        parts = urlsplit(redis_url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._address = parts.hostname, parts.port
        self._proxies: list[Proxy] = []

    def before(self, process_name: str) -> Proxy:
        """Makes the proxy of this process."""
        proxy = Proxy(*self._address)
        self._proxies.append(proxy)
        return proxy

    def lose(self) -> None:
        """Makes the open connections of all processes silent for ever; new ones are served."""
        for proxy in self._proxies:
            proxy.lose()

    async def close(self) -> None:
        """Closes all proxies."""
        await asyncio.gather(*(proxy.close() for proxy in self._proxies))
