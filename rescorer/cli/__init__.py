"""The program ``rescorer``: its commands and exit codes.

A command parses options, calls the library and prints the result. ``rescorer.terminal`` contains the options
that commands share, and prints tables. ``program`` lists the commands. This module imports little, so that
signals such as Ctrl-C are handled soon after the start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rescorer.signals import handle_signals

if TYPE_CHECKING:
    from rescorer.cli.program import app
    from rescorer.terminal.program import BROKEN_PIPE, EXIT_CODES, exit_code, run

__all__ = ["BROKEN_PIPE", "EXIT_CODES", "app", "exit_code", "main", "run"]


def main() -> None:
    """Run the command line."""
    with handle_signals():
        from rescorer.runtime import collect_rarely

        collect_rarely()
        from rescorer.cli.program import app
        from rescorer.terminal.program import run

        run(app, "rescorer")


def __getattr__(name: str) -> object:
    if name in __all__:
        from rescorer.cli.program import app
        from rescorer.terminal import program

        return app if name == "app" else getattr(program, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
