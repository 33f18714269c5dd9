"""The commands for what the production image contains: `sbom`, `licences`."""

from pathlib import Path
from typing import Annotated

import typer

from cli.options import exit_on_failure
from cli.output import print_result

app = typer.Typer()


# Commands import when they run, as in cli/main.py.
@app.command("sbom", short_help="Print the bill of materials (CycloneDX).")
def print_bill_of_materials(
    file: Annotated[
        Path | None, typer.Argument(help="Where to write it.", show_default="standard output")
    ] = None,
) -> None:
    """Print a CycloneDX document of the packages in the production image: versions, hashes of
    their files, licences."""
    from cli.supply_chain.documents import bill_of_materials
    from cli.supply_chain.packages import pinned_packages
    from models.version import VERSION

    with exit_on_failure():
        text = bill_of_materials(pinned_packages(), VERSION)
    if file is None:
        print_result(text.rstrip("\n"))
    else:
        file.write_text(text)


@app.command("licences", short_help="List the licences of the packages.")
def print_licences() -> None:
    """List the packages in the production image with their licences, as SPDX expressions."""
    from cli.supply_chain.documents import licenses_text
    from cli.supply_chain.packages import pinned_packages

    with exit_on_failure():
        print_result(licenses_text(pinned_packages()))
