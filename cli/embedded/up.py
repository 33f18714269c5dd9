"""`backburner up`: the whole server on one machine. Standard output gets one line when it is
ready."""

import resource
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from cli.checkout import is_checkout
from cli.embedded.command_line import apply_command_line
from cli.embedded.data_folder import DataFolder, default_folder
from cli.embedded.detached import Detachment, Log, detach
from cli.embedded.log_text import readable
from cli.embedded.stack import Options, Stack
from cli.embedded.supervisor import Stopped, StopSignal
from cli.embedded.upstreams import UpstreamProbes
from cli.errors import DISK_FULL_ERRORS, disk_full
from cli.options import exit_on_failure
from cli.output import print_status
from cli.settings import StackSettings, secret_value
from models.config.routes import Routes
from models.config.settings import Settings
from models.config.tool_availability import missing_tools

FILES_WANTED = 65536
"""A stream needs one or two open files in each of its processes; the default is often 1024."""
FILES_ON_MACOS = 10240
_OTHER_FORMATS = frozenset(("postgres", "valkey"))
"""Logs that have no JSON lines, and much that only matters when these servers fail."""
_INTERVAL = 0.2
"""Seconds between two looks at the logs."""


def up(options: Options, detachment: Detachment | None = None) -> None:
    """Runs until SIGINT or SIGTERM, then stops all processes. With `detachment` it leaves the
    terminal when it is ready. Raises CommandFailed or BadSettings."""
    settings, configured = apply_command_line(options)
    raise_open_file_limit()
    data = options.data or default_folder()
    try:
        _run(options, settings, configured, data, detachment)
    except OSError as error:
        if error.errno in DISK_FULL_ERRORS:
            raise disk_full(data) from error
        raise


def _run(
    options: Options,
    settings: StackSettings,
    configured: Settings,
    data: Path,
    detachment: Detachment | None,
) -> None:
    with StopSignal() as stop, DataFolder(data) as folder:
        stack = Stack(options, settings, folder)
        folder.base_url, folder.upstream = stack.base_url, stack.upstream_address or None
        folder.database_url = secret_value(settings.database_url)
        folder.redis_url = secret_value(settings.redis_url)
        upstreams = UpstreamProbes(Routes(configured)) if stack.has_upstream else None
        terminal_logs: TerminalLogs | None = None
        try:
            stack.start(stop)
            model = upstreams.example_model() if upstreams is not None else "demo"
            stopped_by = "Ctrl-C" if detachment is None else _down(options)
            print_status(greeting(stack, folder, stopped_by, model))
            problems = upstreams.problems() if upstreams is not None else []
            for line in [*problems, *tool_notes(configured)]:
                print_status(line)
            print(f"ready {stack.base_url} {stack.api_key}", flush=True)
            if detachment is not None:
                detachment.complete(folder.logs / "up.log")
            elif sys.stderr.isatty():
                terminal_logs = TerminalLogs(folder.logs.glob("*.log"))
            stack.supervisor.watch(stop)
        except Stopped:
            print_status("Stopped before it was ready.")
        finally:
            stack.stop()
            if terminal_logs is not None:
                terminal_logs.close()


def run_detached(options: Options) -> int:
    """Starts `up` in the background. Returns the exit status when it is ready, or has failed."""

    def run(detachment: Detachment) -> None:
        with exit_on_failure():
            up(options, detachment)

    return detach(run)


def _down(options: Options) -> str:
    """The command that stops it in the background."""
    program = "./dev" if is_checkout() else "backburner"
    return f"`{program} down{f' --data {options.data}' if options.data else ''}`"


def greeting(stack: Stack, folder: DataFolder, stopped_by: str, model: str) -> str:
    """The text on standard error when everything serves."""
    body = f'{{"model": "{model}", "input": "Hello"}}'
    console = ""
    if stack.console_url is not None:
        console = (
            "\nThe console (the link logs you in once, within ten minutes):\n\n"
            f"  {stack.console_url}\n"
        )
    return (
        f"Backburner is up; its data and logs are in {folder.path}. {stopped_by} stops it. Try:\n\n"
        f"  curl {stack.base_url}/responses -H 'Authorization: Bearer {stack.api_key}' \\\n"
        f"    -H 'Content-Type: application/json' -d '{body}'\n"
        f"{console}"
    )


def tool_notes(settings: Settings) -> list[str]:
    """One line for each tool that nothing here can run."""
    return [
        f"The tool {missing.tool} cannot run: {missing.variable} is not set (docs/tools.md)."
        for missing in missing_tools(settings)
    ]


def raise_open_file_limit() -> None:
    """Raises the limit of open files of this process and its children, as far as the system
    allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_ON_MACOS if sys.platform == "darwin" else FILES_WANTED
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


class TerminalLogs:
    """A thread that prints what is added to the logs of a stack from now on, as text for people."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._logs = [Log(path, 0) for path in paths if path.stem not in _OTHER_FORMATS]
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="terminal-logs", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Prints the last lines. A terminal that accepts nothing is waited for only one second."""
        self._has_ended.set()
        self._thread.join(timeout=1.0)

    def _run(self) -> None:
        while not self._has_ended.wait(_INTERVAL):
            self._print_new_lines()
        self._print_new_lines()

    def _print_new_lines(self) -> None:
        for log in self._logs:
            for line in log.read():
                print_status(readable(log.name, line))
