"""The commands for what is sealed at rest."""

from typing import TYPE_CHECKING

import typer

from cli.errors import CommandFailed
from cli.options import AsJson, Data
from cli.output import print_status
from features.operator.connection import EXIT_CODES_HELP, EXIT_REFUSED, run, show

if TYPE_CHECKING:
    from features.operator.rotation import Rotation
    from models.db.connection import Connection

app = typer.Typer(help="What is sealed at rest.", no_args_is_help=True)


@app.callback()
def _secrets() -> None:
    """What is sealed at rest."""


# Commands import when they run, as in cli/main.py.
@app.command("rotate", epilog=EXIT_CODES_HELP)
def rotate_secrets(as_json: AsJson = False, data: Data = None) -> None:
    """Seal everything again with the first key of BACKBURNER_SECRET_KEYS.

    The other keys of the list open what they have sealed. Restart web and workers with the new list
    first (docs/security.md). The command may be interrupted and repeated.
    """
    from cli.settings import secret_keys_of
    from features.operator.rotation import audited_rotation
    from models.secrets import Sealer, key_id_of, parse_keys

    async def rotate(database: "Connection") -> "Rotation":
        keys = parse_keys(secret_keys_of(data) or "")
        if not keys:
            raise CommandFailed("BACKBURNER_SECRET_KEYS is not set")
        return await audited_rotation(database, Sealer(keys), key_id_of(keys[0]))

    done = run(data, rotate)
    show(done, _text, as_json=as_json)
    if done.unreadable:
        print_status(
            f"backburner: no configured key opens {done.unreadable} of them; they stay as they are"
        )
        raise typer.Exit(EXIT_REFUSED)


def _text(done: "Rotation") -> str:
    return (
        f"sealed again with the key {done.key_id}: {done.credentials} credentials of open "
        f"responses, {done.webhooks} webhooks, {done.items} items"
    )
