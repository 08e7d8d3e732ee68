"""The command ``rescorer-train neural``; most of its options are fields of ``neural.options``."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from rescorer.bundle import TEXT
from rescorer.cli.options.dataclass_options import expand_options
from rescorer.errors import ConfigError
from rescorer_training.cli.options import JsonOption, NormaliserOption, parse_number
from rescorer_training.cli.outputs import check_run_output
from rescorer_training.data.normalisation import choose_normaliser
from rescorer_training.neural.options import NetworkOptions, RunOptions, TrainingOptions
from rescorer_training.neural.prepare import (
    TRAIN_FILE,
    VALIDATION_FILE,
    VOCABULARY_FILE,
    RunInputs,
    load_prepared,
)


@dataclass(frozen=True, slots=True)
class TextOptions:
    """Texts to train on, and the text that says when to stop."""

    texts: Annotated[
        list[str],
        typer.Argument(
            help="Training texts, one sentence per line; gzip or plain. TEXT:0.5 draws half of a text's "
            "sentences per epoch, different ones each time; TEXT:2 draws each sentence twice."
        ),
    ]
    validation: Annotated[Path, typer.Option(help="Held-out text for early stopping.")]


@dataclass(frozen=True, slots=True)
class PreparationOptions:
    """How texts are prepared: their words, their normaliser, and how long sentences may be."""

    vocabulary: Annotated[Path | None, typer.Option(help="File of the words to model, one per line.")] = None
    vocabulary_size: Annotated[
        int, typer.Option(help="Number of words to model without --vocabulary, the most frequent ones.")
    ] = 50_000
    normaliser: NormaliserOption = None
    start_from: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a run whose best model and vocabulary to start from. To adapt a model to a "
            "domain, train it on all text, then start from it on the text of the domain."
        ),
    ] = None
    longest: Annotated[
        int,
        typer.Option(help="Maximum number of words per training sentence; longer sentences are truncated."),
    ] = 200


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What is reported of a run."""

    tensorboard: Annotated[
        bool, typer.Option(help="Write TensorBoard scalars into the folder of the run.")
    ] = False
    as_json: JsonOption = False


@expand_options
def neural(
    data: TextOptions,
    output_folder: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the run: models, log and state.")
    ],
    *,
    preparation: PreparationOptions,
    run: RunOptions,
    reports: ReportOptions,
    network: NetworkOptions,
    options: TrainingOptions,
) -> None:
    """Train a neural language model.

    To share a run among several processes or GPUs, start it with torchrun --nproc-per-node 2 -m
    rescorer_training neural …

    Example: rescorer-train neural train.txt.gz --validation valid.txt -o runs/lstm --hidden 200
    """
    # deferred, because importing torch takes seconds
    from rescorer_training.neural import train
    from rescorer_training.neural.checkpoint import STATE_FILE
    from rescorer_training.neural.distributed import ProcessGroup

    processes = ProcessGroup.join()
    paths, weights = zip(*map(parse_weighted_text, data.texts), strict=True)
    start_from, longest = preparation.start_from, preparation.longest
    run = replace(run, resume=processes.choose_resumption(run.resume, output_folder / STATE_FILE))
    begun = output_folder if run.resume else start_from
    chosen = choose_normaliser(preparation.normaliser, [begun] if begun else [])
    inputs = RunInputs(list(paths), data.validation, output_folder, chosen, longest, start_from, weights)
    if processes.is_first and not run.resume:
        check_run_output("-o", output_folder, (TEXT, VOCABULARY_FILE, TRAIN_FILE, VALIDATION_FILE))
        train.prepare_run(inputs, preparation.vocabulary, preparation.vocabulary_size, network)
    processes.wait_for(output_folder / VALIDATION_FILE)
    text = load_prepared(output_folder, longest)
    processes.check_same(text.train.n_words, "words of training text")
    facts = train.train(
        inputs, text, network, options, run, tensorboard=reports.tensorboard, processes=processes
    )
    processes.leave()
    if processes.is_first:
        best = facts["validation_perplexity"]
        typer.echo(json.dumps(facts) if reports.as_json else f"best validation perplexity {best:.2f}")


def parse_weighted_text(text: str) -> tuple[Path, float]:
    """Parse TEXT or TEXT:WEIGHT. If the whole argument names an existing file, it is not split at the colon.

    Raises:
        ConfigError: the weight is not a positive number.
    """
    name, colon, weight = text.rpartition(":")
    if not colon or Path(text).exists():
        return Path(text), 1.0
    if not parse_number(weight) > 0:
        raise ConfigError(f"{text!r}: expected a weight above 0, got {weight}")
    return Path(name), parse_number(weight)
