"""The command line ``rescorer-train``: training, measuring and publishing language models.

Reads options and files; produces models, bundles, tables or JSON. Errors are one line on stderr. One module
per command parses options and calls the library; ``options`` holds what commands share. This module imports
little, so that signals are handled from the start; ``program`` holds the commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rescorer.signals import handle_signals

if TYPE_CHECKING:
    from rescorer_training.cli.program import app

__all__ = ["app", "main"]


def main() -> None:
    """Run a command; print errors of this project as one line on stderr instead of a traceback."""
    with handle_signals():
        from rescorer_training.cli.program import run_commands

        run_commands()


def __getattr__(name: str) -> object:
    if name == "app":
        from rescorer_training.cli.program import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
