"""The commands for the stack of this machine besides `up`: `status`, `logs`, `down`."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import AsJson, Data, exit_on_failure
from cli.output import GREEN, RED, as_json, paint, print_result, print_status, table

if TYPE_CHECKING:
    from cli.embedded.detached import StackStatus

EXIT_NOT_READY, EXIT_INTERRUPTED = 1, 130

app = typer.Typer()


# Commands import when they run, as in cli/main.py.
@app.command(
    "status",
    short_help="Show what `up` runs on this machine.",
    epilog=f"Exit codes: 0 it runs and is ready; {EXIT_NOT_READY} it does not, or is not.",
)
def show_status(data: Data = None, json: AsJson = False) -> None:
    """Show whether `up` runs in the data folder, its address, its processes and their logs."""
    from cli.embedded.data_folder import default_folder
    from cli.embedded.detached import status

    with exit_on_failure():
        facts = status((data or default_folder()).resolve())
    print_result(as_json(facts) if json else _status_text(facts))
    raise typer.Exit(0 if facts.ready else EXIT_NOT_READY)


def _status_text(facts: "StackStatus") -> str:
    if not facts.running:
        return f"no `up` runs in {facts.data}"
    state = paint("ready", GREEN) if facts.ready else paint("not ready", RED)
    rows = [
        (
            process.name,
            str(process.pid),
            paint("runs", GREEN) if process.running else paint("ended", RED),
        )
        for process in facts.processes
    ]
    return (
        f"{facts.base_url or '(starting)'}  {state}, process {facts.pid}\n"
        f"data and logs: {facts.data}\n{table(('PROCESS', 'PID', 'STATE'), rows)}"
    )


@app.command("logs", short_help="Show the logs of what `up` runs.")
def show_logs(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="web, worker, worker-quarantine, sandbox, postgres, valkey, demo-upstream or up.",
            show_default="all",
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more lines, until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="How many of the last lines to show.")
    ] = 20,
    data: Data = None,
) -> None:
    """Show the last lines of each log.

    On a terminal they are text, with the log's name. Elsewhere they are as they are in the logs:
    JSON. Of several logs each line then begins with its log's name.
    """
    from cli.embedded.data_folder import default_folder
    from cli.embedded.detached import log_lines
    from cli.embedded.log_text import readable

    folder = (data or default_folder()).resolve()
    with exit_on_failure():
        try:
            for name, line in log_lines(folder, names or [], lines, follow=follow):
                if sys.stdout.isatty():
                    print_result(readable(name, line))
                else:
                    print_result(line if names and len(names) == 1 else f"{name:<17} | {line}")
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None


@app.command("down", short_help="Stop what `up` runs on this machine.")
def stop_stack(data: Data = None) -> None:
    """Stop the `up` of the data folder, in the background or not, and wait for its end.

    Running responses are handed over and continue with the next `up`. Data and key are kept.
    """
    from cli.embedded.data_folder import default_folder
    from cli.embedded.detached import stop

    folder = (data or default_folder()).resolve()
    with exit_on_failure():
        stopped = stop(folder)
    print_status(f"no `up` runs in {folder}" if stopped is None else "Stopped.")
