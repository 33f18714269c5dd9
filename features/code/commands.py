"""`backburner sandbox`."""

import os
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.errors import CommandFailed
from cli.options import exit_on_failure

if TYPE_CHECKING:
    from features.code.sandbox.proxy import Destinations

app = typer.Typer()

_MIB = 1024 * 1024
_TOKEN = "BACKBURNER_CODE__TOKEN"  # noqa: S105 - its name
_RUNNER = "BACKBURNER_CODE__RUNNER"
_HOSTS = "BACKBURNER_CODE__ALLOWED_HOSTS"
_MIN_TOKEN = 16


class Runner(StrEnum):
    """What keeps code in."""

    AUTO = "auto"
    KERNEL = "kernel"
    RUNSC = "runsc"


# Imports when it runs, as in cli/main.py.
@app.command(short_help="Run code of models, for workers.")
def sandbox(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 8600,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="A folder whose subfolder `sessions` is emptied at the start and has their files.",
            show_default="temporary",
        ),
    ] = None,
    python: Annotated[
        Path | None,
        typer.Option(help="The Python that runs the code.", show_default="this one"),
    ] = None,
    venv: Annotated[
        Path | None,
        typer.Option(
            help="A folder that gets a Python with the packages of requirements-code.lock at the "
            "first use, for which the network is needed.",
            show_default="none",
        ),
    ] = None,
    runner: Annotated[
        Runner,
        typer.Option(
            help="What keeps code in: the kernel, gVisor's runsc, or runsc where it works.",
            envvar=_RUNNER,
        ),
    ] = Runner.AUTO,
    allowed_hosts: Annotated[
        str,
        typer.Option(
            help="Hosts that code may reach, if its container's network policy names them too: "
            "names, `*.name`, with `:port` for another port than 80 and 443, and the networks "
            "outside the public internet to which they may lead. Separated by commas.",
            envvar=_HOSTS,
            show_default="none",
        ),
    ] = "",
    sessions: Annotated[int, typer.Option(min=1, help="Most sessions at the same time.")] = 16,
    memory: Annotated[int, typer.Option(min=64, help="MiB of memory of a session.")] = 1024,
    disk: Annotated[int, typer.Option(min=1, help="MiB of files of a session.")] = 512,
    files: Annotated[int, typer.Option(min=1, help="Files and folders of a session.")] = 5000,
    wall_time: Annotated[float, typer.Option(min=1, help="Seconds of one call.")] = 120,
    cpu_time: Annotated[float, typer.Option(min=1, help="Seconds of CPU of one call.")] = 120,
    idle_time: Annotated[float, typer.Option(min=1, help="Seconds until a session ends.")] = 1500,
) -> None:
    """Run code of models in confined processes, for the workers whose token is
    BACKBURNER_CODE__TOKEN. It needs no database, no Redis, no network and no other setting."""
    import asyncio
    from dataclasses import replace

    from features.code.sandbox.packages import Packages
    from features.code.sandbox.server import SandboxOptions, serve
    from features.code.sandbox.session import Limits, Unusable
    from models import logs

    with exit_on_failure():
        token = _token()
        logs.configure("info", process="sandbox")
        limits = Limits(
            memory=memory * _MIB,
            disk=disk * _MIB,
            file_bytes=64 * _MIB,
            files=files,
            wall_time=wall_time,
            cpu_time=cpu_time,
            output=100_000,
        )
        place = folder or Path(tempfile.gettempdir()) / f"backburner-sandbox-{port}"
        packages = Packages((python or Path(sys.executable)).absolute(), venv and venv.absolute())
        options = SandboxOptions(
            token, place.resolve() / "sessions", packages, sessions, idle_time, limits, runner.value
        )
        if allowed_hosts:
            if runner is Runner.RUNSC:
                raise CommandFailed(
                    f"{_HOSTS} needs {_RUNNER}=kernel: gVisor cannot hand over calls"
                )
            options = replace(options, destinations=_destinations(allowed_hosts))
        try:
            asyncio.run(serve(options, host, port))
        except Unusable as error:
            reason = str(error).strip().rpartition("\n")[2]
            raise CommandFailed(f"code cannot be confined here: {reason}") from None
        except OSError as error:
            raise CommandFailed(f"the sandbox cannot run: {error}") from None
        except KeyboardInterrupt:
            return


def _destinations(hosts: str) -> "Destinations":
    """Raises CommandFailed."""
    from pydantic import TypeAdapter, ValidationError

    from features.code.egress import destinations
    from models.config.values import TextList
    from models.hosts import allowed_hosts

    try:
        return destinations(allowed_hosts(TypeAdapter(TextList).validate_python(hosts)))
    except ValidationError:
        raise CommandFailed(f"{_HOSTS} has neither commas between its entries nor JSON") from None
    except ValueError as error:
        raise CommandFailed(f"{_HOSTS}: {error}") from None


def _token() -> str:
    """The only secret of this process, which reads no configuration. Raises CommandFailed."""
    for name in os.environ:  # noqa: TID251
        is_ours = name.startswith("BACKBURNER_") or name in ("DATABASE_URL", "REDIS_URL")
        if is_ours and name not in (_TOKEN, _RUNNER, _HOSTS):
            raise CommandFailed(f"a sandbox runs foreign code: do not give it {name}")
    token = os.environ.pop(_TOKEN, "")  # noqa: TID251
    if len(token) < _MIN_TOKEN:
        raise CommandFailed(f"{_TOKEN} must have at least {_MIN_TOKEN} characters")
    return token


COMMANDS = ((None, app),)
