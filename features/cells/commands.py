"""All cells, as an operator lists them."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.errors import CommandFailed
from cli.options import AsJson, exit_on_failure
from cli.output import as_json as to_json
from cli.output import clean, fitted_table, print_result, print_status

if TYPE_CHECKING:
    from collections import Counter

    from features.cells.remote import CellAnswer
    from models.config.feature_groups import CellSettings

app = typer.Typer(help="Several deployments that serve as one.", no_args_is_help=True)
COMMANDS = (("cells", app),)

EXIT_CELL_DOWN = 3
_EXIT_CODES = f"Exit codes: 0 done; 1 no cell is configured; {EXIT_CELL_DOWN} not all cells answer."


# Commands import when they run, as in cli/main.py.
@app.command("list", epilog=_EXIT_CODES)
def list_cells(as_json: AsJson = False) -> None:
    """List the cells, and which of them answer."""
    answers = _ask("projects")
    rows = [
        {
            "cell": answer.cell,
            "url": answer.url,
            "state": answer.problem or "answers",
            "projects": str(len(answer.rows)) if answer.problem is None else "",
        }
        for answer in answers
    ]
    _finish(answers, rows, ("cell", "url", "state", "projects"), as_json=as_json)


@app.command("projects", epilog=_EXIT_CODES)
def list_projects(as_json: AsJson = False) -> None:
    """List the projects of all cells."""
    _show("projects", as_json=as_json)


@app.command("keys", epilog=_EXIT_CODES)
def list_keys(as_json: AsJson = False) -> None:
    """List the valid keys of all cells, at most 500 of each, the newest first."""
    _show("keys", as_json=as_json)


@app.command("usage", epilog=_EXIT_CODES)
def list_usage(as_json: AsJson = False) -> None:
    """Show what the projects of all cells have used in the last seven days."""
    _show("usage", as_json=as_json)


@app.command("audit", epilog=_EXIT_CODES)
def list_audit(as_json: AsJson = False) -> None:
    """List the newest entries of the audit logs of all cells, at most 500 of each."""
    _show("audit", as_json=as_json)


@app.command("move", epilog="Exit codes: 0 done; 1 not done. It may be repeated.")
def move_project(
    project: Annotated[str, typer.Argument(help="The name of the project.")],
    source: Annotated[str, typer.Option("--from", help="The cell that has it.")],
    target: Annotated[str, typer.Option("--to", help="The cell that serves it from now on.")],
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the first cell has nothing of it any more.")
    ] = False,
) -> None:
    """Let another cell serve a project, and take over what it has.

    Its keys stay valid. What its open responses need stays in the first cell until they have ended.
    """
    import asyncio

    from features.cells.remote import move
    from features.cells.travel import MoveFailed

    with exit_on_failure():
        cells = _configured()
        for name in (source, target):
            if name not in cells:
                raise CommandFailed(f"there is no [cells.{name}] in backburner.toml")
        if source == target:
            raise CommandFailed("--from and --to are the same cell")
        try:
            moved = asyncio.run(move(cells[source], cells[target], project, wait=wait))
        except MoveFailed as failed:
            raise CommandFailed(str(failed)) from failed
    typer.echo(f"{target} serves {project}; {moved.keys} keys are new there")
    typer.echo(f"moved: {_counts(moved.left)}")
    if moved.stays.total():
        typer.echo(
            f"still in {source}: {_counts(moved.stays)}; repeat the command when they have ended"
        )


def _counts(counted: "Counter[str]") -> str:
    texts = [f"{kind.replace('_', ' ')}: {count}" for kind, count in counted.items() if count]
    return ", ".join(texts) or "nothing"


def _configured() -> "dict[str, CellSettings]":
    from cli.settings import configured_settings

    cells = configured_settings().cells
    if not cells:
        raise CommandFailed("no cell is configured: backburner.toml has no [cells.NAME]")
    return cells


def _ask(view: str) -> "list[CellAnswer]":
    import asyncio

    from features.cells.remote import ask_all

    with exit_on_failure():
        return asyncio.run(ask_all(_configured(), view))


def _show(view: str, *, as_json: bool) -> None:
    from features.cells.remote import merged
    from features.cells.views import COLUMNS

    answers = _ask(view)
    _finish(answers, merged(answers), ("cell", *COLUMNS[view]), as_json=as_json)


def _finish(
    answers: "list[CellAnswer]",
    rows: list[dict[str, Any]],
    columns: tuple[str, ...],
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_result(to_json(rows))
    else:
        head = [name.replace("_", " ").upper() for name in columns]
        print_result(
            fitted_table(
                rows, head, lambda row, _: [clean(row[name]) for name in columns], empty="nothing"
            )
        )
    problems = [answer for answer in answers if answer.problem is not None]
    for answer in problems:
        print_status(f"backburner: the cell {answer.cell} at {answer.url} {answer.problem}")
    if problems:
        raise typer.Exit(EXIT_CELL_DOWN)
