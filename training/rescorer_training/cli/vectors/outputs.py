"""Files that commands for word vectors write, and temporary files beside them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rescorer.cli.output import check_not_an_input
from rescorer.errors import FormatError
from rescorer.formats.io.targets import check_target, is_stream


def prepare_output(output: Path, option: str = "-o") -> None:
    """Create the folder of an output, and check before any work that the file can be written.

    Raises:
        ConfigError: the output is an input of the command.
        FormatError: the folder cannot be created, or the file cannot be written there.
    """
    check_not_an_input(option, output)
    if str(output) == "-":
        return
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FormatError(f"cannot be written: {error.strerror}", file=str(output)) from None
    check_target(output)


@contextmanager
def open_temporary_folder(output: Path) -> Iterator[Path]:
    """Open a folder for temporary files, on the disk of an output; removed afterwards.

    Beside a device or a pipe nothing can be created: then it is the system's folder for temporary files.
    """
    place = None if is_stream(output) else output.parent
    with tempfile.TemporaryDirectory(dir=place, prefix=".vectors-") as folder:
        yield Path(folder)
