"""The settings of the console: the table `[console]` of `backburner.toml`."""

import re
from datetime import timedelta
from ipaddress import ip_network
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator

from models.config.values import Duration, Group, TextList

_MIN_TOKEN = 16
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")


class ConsoleSettings(Group):
    """The console ([console.md](console.md))."""

    operator_token: SecretStr | None = None
    """The token of an operator, at least 16 characters. Without this, the next one and
    `user_header`, only processes on a loopback address serve the console."""
    read_only_token: SecretStr | None = None
    """The token of a user who only looks, at least 16 characters."""
    session_time: Duration = Field(default=timedelta(hours=12))
    """How long a login is valid."""
    path_prefix: str = ""
    """The path, such as `/backburner`, that a proxy removes from the requests."""
    user_header: str = ""
    """The header in which a proxy names the user, such as `X-Forwarded-User`; the console asks for
    no token then. Needs `trusted_proxies`."""
    groups_header: str = ""
    """The header with the user's groups, separated by commas."""
    operator_groups: TextList = ()
    """Groups whose members are operators. `*`: every user."""
    read_only_groups: TextList = ()
    """Groups whose members only look. `*`: every user."""
    trusted_proxies: TextList = ()
    """Networks (CIDR) of the proxies whose `user_header` is believed."""

    @field_validator("operator_token", "read_only_token")
    @classmethod
    def _check_token(cls, value: SecretStr | None) -> SecretStr | None:
        if value is None or not value.get_secret_value():
            return None
        if len(value.get_secret_value()) < _MIN_TOKEN:
            raise ValueError(f"must have at least {_MIN_TOKEN} characters")
        return value

    @field_validator("path_prefix")
    @classmethod
    def _check_prefix(cls, value: str) -> str:
        prefix = value.rstrip("/")
        if not _PREFIX.fullmatch(prefix):
            raise ValueError("must be a path such as /backburner")
        return prefix

    @field_validator("trusted_proxies")
    @classmethod
    def _check_networks(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for entry in value:
            try:
                ip_network(entry, strict=False)
            except ValueError:
                raise ValueError(f"{entry!r} is no network such as 10.1.0.0/16") from None
        return value

    @model_validator(mode="after")
    def _check_users(self) -> Self:
        if self.user_header and not self.trusted_proxies:
            raise ValueError("console.user_header needs console.trusted_proxies")
        if self.user_header and not (self.operator_groups or self.read_only_groups):
            raise ValueError(
                "console.user_header needs console.operator_groups or console.read_only_groups"
            )
        if self.operator_token is not None and self.operator_token == self.read_only_token:
            raise ValueError("the two tokens of the console must differ")
        return self

    @property
    def has_login(self) -> bool:
        """Whether somebody can log in without a link of this machine."""
        tokens = (self.operator_token, self.read_only_token)
        return bool(self.user_header) or any(token is not None for token in tokens)
