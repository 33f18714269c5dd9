"""`backburner up`: the whole server on one machine. Standard output gets one line when it is
ready."""

import os
import re
import resource
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

from cli import is_checkout
from cli.embedded.data_folder import DataFolder, default_folder
from cli.embedded.detached import Detachment, Log, detach
from cli.embedded.log_text import readable
from cli.embedded.process import Stopped, StopSignal
from cli.embedded.stack import Options, Stack
from cli.errors import DISK_FULL_ERRORS, CommandFailed, disk_full
from cli.options import exit_on_failure
from cli.output import print_status
from cli.settings import (
    StackSettings,
    configured_settings,
    read_settings,
    secret_value,
    startup_error,
)
from models.config.config_file import BadSettings, find_config_file
from models.config.routes import DEFAULT, Routes
from models.config.settings import Settings
from models.config.values import HTTP_ADDRESS
from models.confinement.policy import missing
from models.upstream_probe import TIMEOUT, UpstreamProbe, chat_models, probe_upstream

FROM_ENVIRONMENT = "env"
"""The value of `--database-url` and `--redis-url` that stands for the variable's own value."""
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
    settings, configured = _apply_command_line(options)
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
    console = (
        f"\nIt listens on {stack.host}, so other machines can connect, with a key. There is no "
        "console: set BACKBURNER_CONSOLE__OPERATOR_TOKEN (docs/console.md).\n"
    )
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
    """One line for each tool that nothing here can run, or runs with less than it could."""
    notes = [
        f"The tool {tool} cannot run: {variable} is not set (docs/tools.md)."
        for tool, variable in settings.missing_tools.items()
    ]
    if not settings.code.sandboxes and (lacking := missing()):
        notes.append(
            f"Code of models cannot run here: the system has no {' and no '.join(lacking)} "
            "(docs/code.md)."
        )
    if settings.retrieval.embedding_model is None:
        notes.append(
            "The tool file_search finds words, not meanings: "
            "BACKBURNER_RETRIEVAL__EMBEDDING_MODEL is not set (docs/vector-stores.md)."
        )
    return notes


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


def _apply_command_line(options: Options) -> tuple[StackSettings, Settings]:
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


class UpstreamProbes:
    """One request to each upstream that has a route, each in a thread of its own, while everything
    starts: for warnings, and for a model that the example can name."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._probes: dict[str, UpstreamProbe] = {}
        used = {target.upstream for targets in routes.patterns.values() for target in targets}
        self._threads = [
            # a daemon, so that the end of `up` does not wait for it
            threading.Thread(target=self._probe, args=(name,), daemon=True)
            for name in routes.upstreams
            if name in used
        ]
        for thread in self._threads:
            thread.start()

    def _probe(self, name: str) -> None:
        self._probes[name] = probe_upstream(self._routes.upstreams[name])

    def problems(self) -> list[str]:
        """One line for each upstream that does not work; waits for the answers."""
        return [
            f"Warning: {probe.sentence}"
            for probe in self._answers().values()
            if probe.problem is not None
        ]

    def example_model(self) -> str:
        """A model name that clients can use: one that an upstream lists, else one of a route, else
        `MODEL`. Waits for the answers."""
        names = (pattern for pattern in self._routes.patterns if "*" not in pattern)
        return next(self._listed_names(), None) or next(names, "MODEL")

    def _listed_names(self) -> Iterator[str]:
        """The client's names of listed models, those of routes without a `*` first."""
        answers = self._answers()
        for pattern, targets in self._routes.patterns.items():
            for target in targets if "*" not in pattern else ():
                probe = answers.get(target.upstream)
                if probe is not None and (target.model or pattern) in probe.models:
                    yield pattern
        for name, probe in answers.items():
            for model in chat_models(probe.models):
                yield from self._routes.client_names(name, model)

    def _answers(self) -> dict[str, UpstreamProbe]:
        """By name of the upstream, in the order of the configuration."""
        for thread in self._threads:
            thread.join(2 * TIMEOUT)
        return {name: self._probes[name] for name in self._routes.upstreams if name in self._probes}
