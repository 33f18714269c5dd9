"""`backburner up`: the whole server on one machine. Standard output gets one line when it is
ready."""

import resource
import sys

from cli.embedded.data_folder import DataFolder, default_folder
from cli.embedded.stack import Options, Stack
from cli.embedded.supervisor import Stopped, StopSignal
from cli.output import print_status
from cli.settings import configured_settings, read_settings, startup_error
from models.config.configuration import BadSettings

FILES_WANTED = 65536
"""A stream needs one or two open files in each of its processes; the default is often 1024."""
FILES_ON_MACOS = 10240


def up(options: Options) -> None:
    """Runs until SIGINT or SIGTERM, then stops all processes. Raises CommandFailed or
    BadSettings."""
    try:
        configured_settings()  # reports all mistakes before anything is started
    except BadSettings as bad:
        raise startup_error(bad) from bad
    settings = read_settings()
    raise_open_file_limit()
    with StopSignal() as stop, DataFolder(options.data or default_folder()) as folder:
        stack = Stack(options, settings, folder)
        try:
            stack.start(stop)
            print_status(greeting(stack, folder))
            print(f"ready {stack.base_url} {stack.api_key}", flush=True)
            stack.supervisor.watch(stop)
        except Stopped:
            print_status("Stopped before it was ready.")
        finally:
            stack.stop()


def greeting(stack: Stack, folder: DataFolder) -> str:
    """The text on standard error when everything serves."""
    body = f'{{"model": "{stack.example_model}", "input": "Hello"}}'
    return (
        f"Backburner is up; its data and logs are in {folder.path}. Ctrl-C stops it. Try:\n\n"
        f"  curl {stack.base_url}/responses -H 'Authorization: Bearer {stack.api_key}' \\\n"
        f"    -H 'Content-Type: application/json' -d '{body}'\n"
    )


def raise_open_file_limit() -> None:
    """Raises the limit of open files of this process and its children, as far as the system
    allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_ON_MACOS if sys.platform == "darwin" else FILES_WANTED
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
