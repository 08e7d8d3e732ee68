"""The command ``rescorer-train tables``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def tables(
    bundle: Annotated[
        Path, typer.Argument(help="Bundle to convert: NAME/VERSION, or NAME for its newest version.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the new bundle, NAME/VERSION: models/mine/2.")
    ],
) -> None:
    """Publish a bundle again, with n-gram tables in place of its ARPA files.

    Example: rescorer-train tables models/starter -o tables/starter/1

    Tables are larger, but opened at once and shared by the workers of a server. Scores stay the same to the
    last bit, so that weights and rerankers stay valid.
    """
    # deferred, because importing them takes seconds
    from rescorer_training.adaptation.run import check_output
    from rescorer_training.recipe.bundles.tables import publish_tables

    check_output(output)
    for name in publish_tables(bundle, output):
        typer.echo(f"{output}: {name} is a table now")
