"""Owns the command ``rescorer-train neural``: its options, most of which are fields of ``run_options``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rescorer.errors import ConfigError
from rescorer_training.cli.options import NormaliserOption, number, read_normaliser
from rescorer_training.neural.dataclass_options import takes
from rescorer_training.neural.options import NetworkOptions, TrainingOptions
from rescorer_training.neural.prepare import prepared


@takes(NetworkOptions, TrainingOptions)
def neural(
    network: NetworkOptions,
    options: TrainingOptions,
    texts: Annotated[
        list[str],
        typer.Argument(
            help="Training text, one sentence a line; gzip or plain. TEXT:0.5 takes half of its sentences an "
            "epoch, others each time, TEXT:2 each twice."
        ),
    ],
    validation: Annotated[Path, typer.Option(help="Text that decides when to stop.")],
    output_folder: Annotated[Path, typer.Option("-o", "--output", help="Folder of the run.")],
    vocabulary: Annotated[Path | None, typer.Option(help="File of words, one a line, to model.")] = None,
    vocabulary_size: Annotated[
        int, typer.Option(help="Without --vocabulary: the most frequent words.")
    ] = 50_000,
    normaliser: NormaliserOption = None,
    start_from: Annotated[
        Path | None,
        typer.Option(
            help="Run whose best model and vocabulary this one starts from; to adapt a model, train it on "
            "all text, then start from it on the text of the domain."
        ),
    ] = None,
    longest: Annotated[int, typer.Option(help="Words after which a training sentence is cut.")] = 200,
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: all.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    resume: Annotated[bool, typer.Option(help="Go on where a killed run stopped.")] = False,
    tensorboard: Annotated[bool, typer.Option(help="Write TensorBoard scalars into the folder too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the final facts as JSON.")] = False,
) -> None:
    """Train a neural language model.

    Several processes or GPUs share a run: torchrun --nproc-per-node 2 -m rescorer_training neural …

    Example: rescorer-train neural train.txt.gz --validation valid.txt -o runs/lstm --hidden 200
    """
    # torch takes seconds to import; --help and the other commands need not wait
    from rescorer_training.neural import train
    from rescorer_training.neural.distributed import Workers

    workers = Workers.join()
    paths, weights = zip(*map(weighted, texts), strict=True)
    inputs = train.RunInputs(
        list(paths), validation, output_folder, read_normaliser(normaliser), longest, start_from, weights
    )
    if workers.first and not resume:
        train.prepare_run(inputs, vocabulary, vocabulary_size, network)
    workers.wait()
    text = prepared(output_folder, longest)
    facts = train.train(
        inputs, text, network, options,
        device=device, threads=threads, resume=resume, tensorboard=tensorboard, workers=workers,
    )  # fmt: skip
    workers.leave()
    if workers.first:
        best = facts["validation_perplexity"]
        typer.echo(json.dumps(facts) if as_json else f"best validation perplexity {best:.2f}")


def weighted(text: str) -> tuple[Path, float]:
    """TEXT or TEXT:WEIGHT; raises ConfigError where the weight is not above 0."""
    name, colon, weight = text.rpartition(":")
    if not colon or Path(text).exists():
        return Path(text), 1.0
    if not number(weight) > 0:
        raise ConfigError(f"{text!r}: expected a weight above 0")
    return Path(name), number(weight)
