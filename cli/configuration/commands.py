"""The commands for what a deployment is told: `config check` and `upstream check`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.embedded.supervisor import print_status
from cli.options import EXIT_BAD_CONFIGURATION

if TYPE_CHECKING:
    from models.config.settings import Settings

EXIT_UNUSABLE, EXIT_INCOMPLETE = 1, 4
"""Exit codes beside 0 and 2; docs/upstreams.md explains them."""

config_app = typer.Typer(
    help="The configuration: environment and backburner.toml.", no_args_is_help=True
)
upstream_app = typer.Typer(help="Upstreams.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")]


# Imports wait until a command needs them, as in cli/main.py.
@config_app.command(
    "check",
    short_help="Name the mistakes in it, or show what it amounts to.",
    epilog=f"Exit codes: 0 it is right; {EXIT_BAD_CONFIGURATION} it is not, and no process would start.",
)
def check_configuration(as_json: AsJson = False) -> None:
    """Read the environment and backburner.toml as every process does. Name each mistake with its file and line or its variable; without any,
    show upstreams, routes, and what else is not as by default and where it is set. Keys are not shown."""
    from cli import report
    from cli.configuration.effective import effective_configuration
    from cli.settings import configured_settings
    from models.config.config_file import find_config_file, read_config_file
    from models.config.configuration import BadSettings

    try:
        settings = configured_settings()
    except BadSettings as bad:
        told = (
            report.as_json({"ok": False, "mistakes": bad.mistakes})
            if as_json
            else "\n".join(map(str, bad.mistakes))
        )
        typer.echo(told)
        raise typer.Exit(EXIT_BAD_CONFIGURATION) from bad
    facts = effective_configuration(settings, read_config_file(find_config_file()))
    typer.echo(
        report.as_json({"ok": True, "mistakes": [], "effective": facts})
        if as_json
        else report.configuration(facts)
    )


@config_app.command("settings", short_help="Print a page about every setting.")
def print_settings() -> None:
    """Print every setting as a Markdown page: variable, key, unit, default, meaning."""
    from cli.configuration.settings_page import settings_page

    typer.echo(settings_page(), nl=False)


@upstream_app.command(
    "check",
    short_help="Find out what an upstream can do.",
    epilog=(
        f"Exit codes: 0 everything works; {EXIT_UNUSABLE} it gives no answer, or there is none of this name; {EXIT_BAD_CONFIGURATION} wrong usage, or a mistake "
        f"in the configuration; {EXIT_INCOMPLETE} it answers, but not everything works."
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
            help="The model to ask, as the upstream calls it.",
            show_default="one that is routed there, else the first it lists",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1, help="For the first word of each answer, and between two.")
    ] = 60,
    as_json: AsJson = False,
) -> None:
    """Ask an upstream a dozen short questions, as a worker would, and tell what works: text, stream, usage, tools, parallel tools, tool_choice,
    structured output, images, reasoning."""
    import asyncio

    from cli import report
    from cli.configuration.conformance import NoModel, check_conformance
    from cli.settings import configured_settings
    from models.config.configuration import BadSettings

    try:
        settings = configured_settings()
    except BadSettings as bad:
        for mistake in bad.mistakes:
            print_status(f"backburner: {mistake}")
        raise typer.Exit(EXIT_BAD_CONFIGURATION) from bad
    upstream, limits, routed = _select_upstream(settings, name, seconds)
    try:
        found = asyncio.run(check_conformance(upstream, limits, model or routed))
    except NoModel as missing:
        print_status(
            f"backburner: {upstream.base_url} gives no list of models; name one with --model"
        )
        raise typer.Exit(EXIT_UNUSABLE) from missing
    typer.echo(report.as_json(found) if as_json else report.conformance(found))
    raise typer.Exit(
        0 if found.is_complete else EXIT_INCOMPLETE if found.is_usable else EXIT_UNUSABLE
    )


def _select_upstream(settings: "Settings", name: str, seconds: float) -> Any:
    """The upstream of this name, limits for a conversation with it, and the name of a model that is routed there, or None."""
    from datetime import timedelta

    from models.config.routes import Routes

    routes = Routes(settings)
    upstream = routes.upstreams.get(name)
    if upstream is None or not upstream.base_url:
        known = (
            ", ".join(sorted(known for known, each in routes.upstreams.items() if each.base_url))
            or "none"
        )
        print_status(f"backburner: there is no upstream '{name}'; configured: {known}")
        raise typer.Exit(EXIT_UNUSABLE)
    patience = {"first_token": timedelta(seconds=seconds), "token_gap": timedelta(seconds=seconds)}
    ends = [
        (pattern, target)
        for pattern, targets in routes.patterns.items()
        for target in targets
        if target.upstream == name
    ]
    named = (
        target.model or pattern for pattern, target in ends if "*" not in (target.model or pattern)
    )
    return upstream, settings.limits.model_copy(update=patience), next(named, None)
