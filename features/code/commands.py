"""`backburner sandbox`."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from cli.errors import CommandFailed

app = typer.Typer()

_MIB = 1024 * 1024


# Imports when it runs, as in cli/main.py.
@app.command(short_help="Run code of models, for workers.")
def sandbox(
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 8600,
    folder: Annotated[
        Path | None, typer.Option(help="Where sessions have their files.", show_default="temporary")
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="The Python that runs the code.", show_default="this one")
    ] = None,
    sessions: Annotated[int, typer.Option(min=1, help="Most sessions at the same time.")] = 16,
    memory: Annotated[int, typer.Option(min=64, help="MiB of memory of a session.")] = 1024,
    disk: Annotated[int, typer.Option(min=1, help="MiB of files of a session.")] = 512,
    wall_time: Annotated[float, typer.Option(min=1, help="Seconds of one call.")] = 120,
    idle_time: Annotated[float, typer.Option(min=1, help="Seconds until a session ends.")] = 1500,
) -> None:
    """Run code of models in confined processes, for the workers whose token is
    BACKBURNER_CODE__TOKEN. It needs no database, no Redis, no network and no other setting."""
    import asyncio

    from features.code.sandbox.server import SandboxOptions, serve
    from features.code.sandbox.session import Limits, Unusable
    from models import logs

    # The only secret of this process: it reads no configuration.
    token = os.environ.pop("BACKBURNER_CODE__TOKEN", "")  # noqa: TID251
    if len(token) < 16:
        raise CommandFailed("BACKBURNER_CODE__TOKEN must have at least 16 characters")
    logs.configure("info", process="sandbox")
    limits = Limits(
        memory=memory * _MIB,
        disk=disk * _MIB,
        file_bytes=64 * _MIB,
        files=2000,
        wall_time=wall_time,
        output=100_000,
    )
    place = folder or Path(tempfile.gettempdir()) / f"backburner-sandbox-{os.getpid()}"
    options = SandboxOptions(
        token, place.resolve(), python or sys.executable, sessions, idle_time, limits
    )
    try:
        asyncio.run(serve(options, host, port))
    except Unusable as error:
        raise CommandFailed(f"code cannot be confined here: {error}") from None
    except KeyboardInterrupt:
        return


COMMANDS = ((None, app),)
