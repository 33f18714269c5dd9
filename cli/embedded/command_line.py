"""What the command line of `up` changes in the environment, which the settings and all child
processes are made from."""

import os
import re

from cli.embedded.stack import Options
from cli.errors import CommandFailed
from cli.output import print_status
from cli.settings import StackSettings, configured_settings, read_settings, startup_error
from models.config.config_file import BadSettings, find_config_file
from models.config.routes import DEFAULT
from models.config.settings import Settings
from models.config.values import HTTP_ADDRESS

FROM_ENVIRONMENT = "env"
"""The value of `--database-url` and `--redis-url` that stands for the variable's own value."""


def apply_command_line(options: Options) -> tuple[StackSettings, Settings]:
    """Changes this process's environment. Returns the settings of `up`, and those of its children
    without what `up` adds. Raises CommandFailed or BadSettings.

    DATABASE_URL and REDIS_URL are often set for another program. `up` makes tables in the database
    that it uses, so it uses these variables only where an option asks for it.
    """
    _select_server("DATABASE_URL", "--database-url", options.database_url)
    _select_server("REDIS_URL", "--redis-url", options.redis_url)
    configured = _configured()  # reports all mistakes before anything is started
    if options.upstream is None:
        return read_settings(), configured
    _check_address(options.upstream)
    if DEFAULT in configured.upstreams:
        raise CommandFailed(
            f"--upstream cannot be used beside [upstreams.{DEFAULT}] in {find_config_file()}"
        )
    os.environ["BACKBURNER_UPSTREAM__BASE_URL"] = options.upstream  # noqa: TID251
    # the only upstream, because the option overrides the file
    os.environ["BACKBURNER_ROUTES"] = f'{{"*": "{DEFAULT}"}}'  # noqa: TID251
    return read_settings(), _configured()


def _configured() -> Settings:
    try:
        return configured_settings()
    except BadSettings as bad:
        raise startup_error(bad) from bad


def _select_server(variable: str, option: str, address: str | None) -> None:
    names = [name for name in os.environ if name.upper() == variable]  # noqa: TID251
    if address == FROM_ENVIRONMENT:
        if not names:
            raise CommandFailed(f"{option} {FROM_ENVIRONMENT}: {variable} is not set")
        return
    for name in names:
        del os.environ[name]  # noqa: TID251
    if address is not None:
        os.environ[variable] = address  # noqa: TID251
    elif names:
        print_status(
            f"{variable} is set, and not used: `up` starts a server of its own. "
            f"`{option} {FROM_ENVIRONMENT}` uses it."
        )


def _check_address(address: str) -> None:
    if re.fullmatch(HTTP_ADDRESS, address):
        return
    if "://" not in address and re.fullmatch(HTTP_ADDRESS, f"http://{address}"):
        path = "" if "/" in address else "/v1"
        raise CommandFailed(
            f"--upstream {address} has no http:// or https://; try http://{address}{path}"
        )
    raise CommandFailed(
        "--upstream must be an http:// or https:// address without user name, query or fragment"
    )
