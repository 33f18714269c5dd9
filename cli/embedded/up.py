"""`backburner up`: the whole server on one machine. Standard output carries one line, when it is ready."""

import resource
import sys

from cli.embedded.data_folder import DataFolder, default_folder
from cli.embedded.stack import Options, Stack
from cli.embedded.supervisor import Stopped, StopSignal, print_status
from cli.settings import configured_settings, read_settings, startup_error
from models.config.configuration import BadSettings

FILES_WANTED = 65536
"""A stream takes one or two open files in every process it passes; many systems start with 1024."""
FILES_ON_MACOS = 10240


def up(options: Options) -> None:
    """Run until SIGINT or SIGTERM, then return with nothing left running; StartFailed when it could not start."""
    try:
        configured_settings()  # every mistake is told at once, before anything is started
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
    """For the operator, on standard error."""
    return (
        f"Backburner is up; its data and logs are in {folder.path}. Ctrl-C stops it. Try:\n\n"
        f"  curl {stack.base_url}/responses -H 'Authorization: Bearer {stack.api_key}' \\\n"
        f'    -H \'Content-Type: application/json\' -d \'{{"model": "{stack.example_model}", "input": "Hello"}}\'\n'
    )


def raise_open_file_limit() -> None:
    """Raise the limit on open files for us and our children as far as the system lets us, up to what we want."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_ON_MACOS if sys.platform == "darwin" else FILES_WANTED
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
