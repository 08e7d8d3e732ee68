"""Parts that commands share: options, opening models, checking outputs, and tables."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from rescorer.errors import ConfigError, FormatError, InputError
from rescorer.evaluation.statistics import PairedTest
from rescorer.formats.io.text_io import is_stream, make_folder
from rescorer.terminal.program import check_not_an_input
from rescorer.terminal.tables import FoldingTable
from rescorer.trie import Words
from rescorer_training.corpus import choose_normaliser, direction_file, read_sentences, record_file
from rescorer_training.evaluation.perplexity import (
    ModelSet,
    TokenScores,
    load_models,
    resolve_model_folder,
    score_tokens,
)
from rescorer_training.ngram.estimate import BINARY_SUFFIXES, word_list_file
from rescorer_training.progress import option

NormaliserOption = Annotated[
    str | None,
    typer.Option(
        "--normaliser",
        metavar="FILE|raw",
        help="JSON file of normaliser settings, or 'raw' for text that is already normalised. Default: the "
        "one recorded with the given models; without one, words without case and punctuation.",
    ),
]
TextsArgument = Annotated[
    list[Path], typer.Argument(help="Training texts, one sentence per line; gzip or plain; - for a pipe.")
]
SeedOption = Annotated[int, typer.Option(min=0, help="Random seed.")]
ResumeOption = Annotated[bool, typer.Option(help="Continue an interrupted run where it stopped.")]
DeviceOption = Annotated[str, typer.Option(help="Device to compute on: cpu, cuda, cuda:1, …")]
ThreadsOption = Annotated[int | None, typer.Option(min=1, help="Number of CPU threads. Default: all.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]


def make_table(headings: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> FoldingTable:
    """Make a table for the terminal."""
    table = FoldingTable(*headings, title=title)
    for row in rows:
        table.add_row(*row)
    return table


def format_test(test: PairedTest | None) -> tuple[str, str, str]:
    """Format a test as three cells: answers that only the first, or only the second, has right; and p."""
    return (f"{test.only_first:,}", f"{test.only_second:,}", f"{test.p_value:.2g}") if test else ("", "", "")


def parse_shares(values: list[str] | None) -> dict[str, float]:
    """Parse ``--share`` options into interpolation weights by model name."""
    return {name: parse_number(value) for name, value in parse_pairs(values or [])}


def parse_pairs(values: list[str]) -> list[tuple[str, str]]:
    """Split NAME=VALUE options; raises ConfigError if a value has no ``=``."""
    for value in values:
        if "=" not in value:
            raise ConfigError(f"expected NAME=VALUE, got {value!r}")
    return [tuple(value.split("=", 1)) for value in values]  # type: ignore[misc]


def parse_number(value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"expected a number, got {value!r}") from None


def check_model_output(option: str, output: Path) -> None:
    """Raise ConfigError if the model to write, or a file that is written next to it, is one of the inputs."""
    check_not_an_input(option, output)
    if not is_stream(output):
        words = [word_list_file(output)] if output.suffix in BINARY_SUFFIXES else []
        for file in (record_file(output), direction_file(output), *words):
            check_not_an_input(option, file)


def check_vocabulary(file: Path | None) -> None:
    """Raise ConfigError if the file of ``--vocabulary`` is missing, before any text is read."""
    if file is not None and not file.exists():
        number = str(file)
        hint = f"; for the most frequent words, give --vocabulary-size {number}" if number.isdecimal() else ""
        raise ConfigError(f"--vocabulary {file}: no such file{hint}")


def check_run_output(option: str, folder: Path, files: Iterable[str]) -> None:
    """Raise ConfigError if the folder of a new run, or a file that is written there, is one of the inputs."""
    check_not_an_input(option, folder)
    for name in files:
        check_not_an_input(option, folder / name)


@contextmanager
def train_in(folder: Path, state: str, *, resume: bool) -> Iterator[None]:
    """Let no other process train in the folder of a run within the context. If a signal stops the training,
    say that it can be resumed. If a new run is refused, nothing is left of it.

    Args:
        state: name of the file from which a run is resumed.
        resume: whether the run exists already; otherwise its folder is made.

    Raises:
        ConfigError: another process trains there, or there is no run to resume.
        FormatError: the folder cannot be made.
    """
    from rescorer_training.state_files import lock_folder  # imports torch, which only such commands need

    is_made = not folder.exists()
    if not resume:
        make_folder(folder)
    elif not folder.is_dir():
        raise ConfigError(f"{folder} has no training run; start one without --resume")
    with lock_folder(folder):
        is_made &= not any(folder.iterdir())  # else another process has trained there in the meantime
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            if (folder / state).exists():
                typer.echo(f"stopped; {folder} is saved: repeat the command with --resume", err=True)
            raise
        except (ConfigError, InputError):
            if is_made and not (state and (folder / state).exists()):
                shutil.rmtree(folder, ignore_errors=True)
            raise


def describe_next_step(name: str, option: str, model: Path, validation: Path | None) -> str:
    """Return a line with the command that makes a bundle of a model that was just trained.

    Args:
        name: name of the bundle.
        option: option of ``rescorer-train bundle`` that takes the model.
        validation: text to measure on; None for one that is still to be chosen.
    """
    words = ["rescorer-train", "bundle", f"models/{name}/1", option, str(model)]
    if option != "--ngram":
        words += ["--ngram", "NGRAM.arpa.gz"]
    return f"next: {shlex.join([*words, '--validation', str(validation or 'VALID.txt')])}"


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Language models to open."""

    bundle: Path | None = option(None, "Bundle folder: NAME/VERSION, or NAME for its newest version.")
    ngram: list[Path] | None = option(
        None, "ARPA file, n-gram table or KenLM binary; repeat for more models."
    )
    neural: list[Path] | None = option(
        None, "Folder of a trained network or of its run; repeat for more models."
    )

    @property
    def shares(self) -> Mapping[str, float]:
        """The given interpolation weights λ, by model name."""
        return {}

    def open(self, normaliser: str | None, device: str, *, with_units: bool = False) -> ModelSet:
        """Load the models.

        Args:
            normaliser: value of ``--normaliser``; None for the one recorded with the models.
            with_units: see ``load_models``.
        """
        ngrams, neurals = self.ngram or [], self.neural or []
        given = [*ngrams, *map(resolve_model_folder, neurals)]
        chosen = choose_normaliser(normaliser, given) if normaliser else None
        return load_models(
            self.bundle, ngrams, neurals, normaliser=chosen, shares=self.shares, device=device,
            with_units=with_units,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MixtureOptions(ModelOptions):
    """Language models to open, and their interpolation weights λ."""

    share: list[str] | None = option(
        None,
        "Interpolation weight λ of a model in the mixture, such as ngram=0.4; repeat for each "
        "model. Default: the bundle's weights, or equal ones.",
        metavar="NAME=WEIGHT",
    )

    @property
    def shares(self) -> Mapping[str, float]:
        return parse_shares(self.share)


def score_file(models: ModelSet, path: Path) -> TokenScores:
    """Score a text file with every model.

    Networks that carry their state across sentence boundaries read the sentences in text order."""
    return score_tokens(models.models, read_words(models, path), f"scoring {path.name}", in_order=True)


def read_words(models: ModelSet, path: Path) -> list[Words]:
    """Read the sentences of a text file with the normaliser of the models; raises FormatError without any."""
    sentences = list(read_sentences([path], models.normaliser))
    if not sentences:
        raise FormatError("no words in the text to score", file=str(path))
    return sentences
