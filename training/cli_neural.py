"""Owns the command ``rescorer-train neural``: its options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from training.options import NormaliserOption, read_normaliser
from training.prepare import prepared


def neural(
    texts: Annotated[list[Path], typer.Argument(help="Training text, one sentence a line; gzip or plain.")],
    validation: Annotated[Path, typer.Option(help="Text that decides when to stop.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the run.")],
    vocabulary: Annotated[Path | None, typer.Option(help="File of words, one a line, to model.")] = None,
    vocabulary_size: Annotated[
        int, typer.Option(help="Without --vocabulary: the most frequent words.")
    ] = 50_000,
    normaliser: NormaliserOption = None,
    start_from: Annotated[
        Path | None, typer.Option(help="Run whose best model and vocabulary this one starts from.")
    ] = None,
    embedding: Annotated[int | None, typer.Option(help="Size of the word vectors (default 200).")] = None,
    hidden: Annotated[int | None, typer.Option(help="Size of the recurrent state (default 200).")] = None,
    layers: Annotated[int | None, typer.Option(help="LSTM layers (default 1).")] = None,
    classes: Annotated[int | None, typer.Option(help="Output classes (default √V).")] = None,
    tied: Annotated[
        bool | None,
        typer.Option("--tied/--untied", help="One matrix for input embedding and output words (default)."),
    ] = None,
    dropout: Annotated[float, typer.Option(help="Share of values dropped in training.")] = 0.0,
    epochs: Annotated[
        int, typer.Option(help="Passes over the text; the learning rate decays over them.")
    ] = 10,
    batch_words: Annotated[int, typer.Option(help="Words a batch, padding included.")] = 4096,
    learning_rate: Annotated[float, typer.Option(help="Peak of the schedule.")] = 2e-3,
    warmup_steps: Annotated[int, typer.Option(help="Steps up to the peak.")] = 200,
    gradient_clip: Annotated[float, typer.Option(help="Largest gradient norm.")] = 1.0,
    weight_decay: Annotated[float, typer.Option(help="AdamW's.")] = 0.0,
    validations_an_epoch: Annotated[int, typer.Option(help="How often to measure.")] = 1,
    patience: Annotated[int, typer.Option(help="Validations without gain before stopping.")] = 4,
    longest: Annotated[int, typer.Option(help="Words after which a training sentence is cut.")] = 200,
    bfloat16: Annotated[bool, typer.Option(help="Multiply in bfloat16 where the processor has it.")] = False,
    seed: Annotated[int, typer.Option(help="Of weights, batches and dropout.")] = 1,
    threads: Annotated[int | None, typer.Option(help="CPU threads; default: all.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1, …")] = "cpu",
    resume: Annotated[bool, typer.Option(help="Go on where a killed run stopped.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the final facts as JSON.")] = False,
) -> None:
    """Train an LSTM with class-factored softmax.

    Example: rescorer-train neural train.txt.gz --validation valid.txt -o runs/lstm --hidden 200
    """
    from training import (
        neural_run,
    )  # torch takes seconds to import; --help and the other commands need not wait

    options = neural_run.TrainingOptions(
        epochs, batch_words, learning_rate, warmup_steps, gradient_clip, weight_decay, validations_an_epoch,
        patience, bfloat16, seed,
    )  # fmt: skip
    network = neural_run.NetworkOptions(embedding, hidden, layers, classes, tied, dropout)
    inputs = neural_run.RunInputs(texts, validation, output, read_normaliser(normaliser), longest, start_from)
    if resume:
        text = prepared(output, longest)
    else:
        text = neural_run.prepare_run(inputs, vocabulary, vocabulary_size)
    facts = neural_run.train(inputs, text, network, options, device=device, threads=threads, resume=resume)
    best = facts["validation_perplexity"]
    typer.echo(json.dumps(facts) if as_json else f"best validation perplexity {best:.2f}")
