"""Check what commands write besides single files: models with files next to them, and folders of runs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rescorer.cli.output import check_not_an_input
from rescorer.formats.io.targets import is_stream
from rescorer_training.data.direction import direction_file
from rescorer_training.data.normalisation import record_file
from rescorer_training.ngram.output import BINARY_SUFFIXES, word_list_file


def check_model_output(option: str, output: Path) -> None:
    """Raise ConfigError if a model, or one of the files that are written next to it, is an input."""
    check_not_an_input(option, output)
    if not is_stream(output):
        words = [word_list_file(output)] if output.suffix in BINARY_SUFFIXES else []
        for file in (record_file(output), direction_file(output), *words):
            check_not_an_input(option, file)


def check_run_output(option: str, folder: Path, files: Iterable[str]) -> None:
    """Raise ConfigError if the folder of a new run, or one of the files written there, is an input."""
    check_not_an_input(option, folder)
    for name in files:
        check_not_an_input(option, folder / name)
