"""The command ``rescorer seal``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rescorer.bundle import newest_version, read_bundle, seal


def seal_bundle(
    folder: Annotated[Path, typer.Argument(metavar="BUNDLE", help="Bundle, or folder of its versions.")],
) -> None:
    """List and hash files that were added to a bundle, such as weights sets and lists of phrases.

    Example: rescorer seal models/starter/1

    A bundle is served only if its manifest lists every file with its hash. This adds files that are not
    listed, and takes weights sets and lists of phrases as they are now. It refuses a bundle whose models or
    normaliser have changed.
    """
    folder = newest_version(folder)
    changed = seal(folder)
    read_bundle(folder)
    for name in changed:
        typer.echo(name)
