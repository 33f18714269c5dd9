"""The commands for a configuration: `config check`, `config settings`, `upstream check`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import EXIT_BAD_CONFIGURATION, AsJson, Data, exit_on_failure
from cli.output import as_json as to_json
from cli.output import print_status

if TYPE_CHECKING:
    from cli.configuration.conformance import ConformanceCheck
    from models.config.settings import Settings

EXIT_UNUSABLE, EXIT_INCOMPLETE = 1, 4
"""Exit statuses besides 0 and 2; docs/upstreams.md explains them."""

config_app = typer.Typer(
    help="The configuration: environment and backburner.toml.", no_args_is_help=True
)
upstream_app = typer.Typer(help="Upstreams.", no_args_is_help=True)


# Commands import when they run, as in cli/main.py.
@config_app.command(
    "check",
    short_help="Name the mistakes in it, or show the effective configuration.",
    epilog=(
        f"Exit codes: 0 valid; {EXIT_BAD_CONFIGURATION} invalid, and no process would "
        "start with it."
    ),
)
def check_configuration(as_json: AsJson = False) -> None:
    """Read the environment and backburner.toml as every process does.

    Name each mistake with its file and line, or its variable. Without mistakes, show upstreams,
    routes, and each setting that differs from its default, with its source. Keys are not shown.
    Where the database answers, also warn if its role is a superuser, or if it lacks pgvector. Where
    files are stored in a bucket, try to write, read and delete an object there, and warn if that
    fails. Warn if this system confines the processes that read files less than it could.
    """
    from cli.configuration.deployment_warnings import (
        confinement_warnings,
        database_warnings,
        storage_warnings,
    )
    from cli.configuration.effective import configuration_text, effective_configuration
    from cli.settings import configured_settings
    from models.config.config_file import BadSettings, find_config_file, read_config_file

    try:
        settings = configured_settings()
    except BadSettings as bad:
        typer.echo(
            to_json({"ok": False, "mistakes": bad.mistakes})
            if as_json
            else "\n".join(map(str, bad.mistakes))
        )
        raise typer.Exit(EXIT_BAD_CONFIGURATION) from bad
    facts = effective_configuration(settings, read_config_file(find_config_file()))
    warnings = [*database_warnings(settings), *storage_warnings(settings), *confinement_warnings()]
    typer.echo(
        to_json({"ok": True, "mistakes": [], "warnings": warnings, "effective": facts})
        if as_json
        else configuration_text(facts)
    )
    for warning in warnings:
        print_status(f"Warning: {warning}")


@config_app.command("settings", short_help="Print a page about every setting.")
def print_settings() -> None:
    """Print every setting as a Markdown page: variable, key, unit, default, meaning."""
    from cli.configuration.settings_page import settings_page

    typer.echo(settings_page(), nl=False)


@upstream_app.command(
    "check",
    short_help="Find out what an upstream can do.",
    epilog=(
        f"Exit codes: 0 everything works; {EXIT_UNUSABLE} it gives no answer, or there is none of "
        f"this name; {EXIT_BAD_CONFIGURATION} wrong usage, or a mistake in the configuration; "
        f"{EXIT_INCOMPLETE} it answers, but not everything works."
    ),
)
def check_upstream(
    name: Annotated[
        str,
        typer.Argument(
            help="Its name in backburner.toml; `default` is that of BACKBURNER_UPSTREAM__BASE_URL."
        ),
    ] = "default",
    model: Annotated[
        str | None,
        typer.Option(
            help="The upstream's model name.",
            show_default="one that is routed there, else the first it lists",
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Time limit of each request.")] = 60,
    tokens: Annotated[
        int, typer.Option(min=16, help="Limit of output tokens of each request.")
    ] = 500,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Send an upstream some dozen short requests, as a worker would, and show what works.

    The first ones try text, stream, usage, tools, parallel tools, tool_choice, structured output,
    images, reasoning and the limit of tokens. The next ones find out which settings a chat upstream
    needs, and the last ones whether it has a Responses API. Each result is shown as it comes; at
    the end are the lines for backburner.toml.
    """
    from cli.configuration.conformance import ConformanceCheck
    from cli.settings import configured_settings

    with exit_on_failure(EXIT_UNUSABLE):
        settings = _add_upstream_of_up(configured_settings(), data)
        check = ConformanceCheck.of(settings, name, model, seconds=seconds, tokens=tokens)
        _run_check(check, as_json=as_json)
        result = check.result
    raise typer.Exit(
        0 if result.is_complete else EXIT_INCOMPLETE if result.is_usable else EXIT_UNUSABLE
    )


def _run_check(check: "ConformanceCheck", *, as_json: bool) -> None:
    """Shows the findings as they come, or all of them at the end."""
    import asyncio

    from cli.configuration.conformance import ConformanceLines

    if as_json:
        asyncio.run(check.run(lambda _: None))
        typer.echo(to_json(check.result))
        return
    lines = ConformanceLines()
    typer.echo(lines.head(check.result))
    asyncio.run(check.run(lambda finding: typer.echo("\n".join(lines.lines(finding)))))
    if end := lines.end(check.result):
        typer.echo(end)


def _add_upstream_of_up(settings: "Settings", data: Path | None) -> "Settings":
    """The settings; where they have no upstream `default`, that of the `up` that runs in the data
    folder: its command line named it, or it is the demo."""
    from cli.embedded.data_folder import default_folder, running_up
    from models.config.routes import DEFAULT

    if settings.upstream.base_url or DEFAULT in settings.upstreams:
        return settings
    running = running_up(data or default_folder())
    if running is None or not running.upstream:
        return settings
    upstream = settings.upstream.model_copy(update={"base_url": running.upstream})
    return settings.model_copy(update={"upstream": upstream})
