"""Which addresses code may be connected to: those of the guard (models/egress.py)."""

from collections.abc import Sequence

from features.code.sandbox.proxy import Destinations, Refused, Target
from models.config.groups import EgressSettings
from models.egress import NOT_REACHED, EgressPolicy, EgressRefused, FetchTarget
from models.hosts import AllowedHosts
from worker.outbound.guarded_session import ThreadedResolver


class CodeGuard:
    """Public addresses, and those of the networks that the allow-list has."""

    def __init__(self, networks: tuple[str, ...]) -> None:
        self._policy = EgressPolicy(EgressSettings(allow=networks))
        self._resolver = ThreadedResolver()

    def check(self, url: str) -> FetchTarget:
        """Reads a URL. Raises Refused."""
        try:
            return self._policy.check_url(url)
        except EgressRefused as refusal:
            raise Refused(f"the URL is refused: {refusal}") from None

    async def addresses(self, target: Target) -> Sequence[str]:
        """All addresses of the target, each allowed. Raises Refused."""
        try:
            resolved = await self._resolver.resolve(target.host, target.port)
            addresses = list(dict.fromkeys(each["host"] for each in resolved))
            for address in addresses:
                self._policy.check_address(address, target.port)
        except (EgressRefused, OSError, UnicodeError):
            raise Refused(NOT_REACHED) from None
        return addresses


def destinations(hosts: AllowedHosts) -> Destinations:
    """What code may reach with this allow-list."""
    return Destinations(hosts, CodeGuard(hosts.networks))
