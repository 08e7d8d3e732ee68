"""Owns the command ``rescorer-train neural``: from text to a trained network in a run folder."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tqdm import tqdm

from rescorer.errors import ConfigError
from rescorer.lm.checkpoint import load_model
from rescorer.lm.networks import NetworkConfig, NeuralModel
from rescorer.vocabulary import Vocabulary
from training.classes import default_n_classes, frequency_bins
from training.loop import Progress, Run, TrainingOptions
from training.options import NormaliserOption, read_normaliser
from training.prepare import PreparedText, choose_vocabulary, prepare, prepared


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
    embedding: Annotated[int, typer.Option(help="Size of the word vectors.")] = 200,
    hidden: Annotated[int, typer.Option(help="Size of the recurrent state.")] = 200,
    layers: Annotated[int, typer.Option(help="LSTM layers.")] = 1,
    classes: Annotated[int | None, typer.Option(help="Output classes; default √V.")] = None,
    tied: Annotated[bool, typer.Option(help="One matrix for input embedding and output words.")] = True,
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
    if threads:
        torch.set_num_threads(threads)
    options = TrainingOptions(
        epochs, batch_words, learning_rate, warmup_steps, gradient_clip, weight_decay, validations_an_epoch,
        patience, bfloat16, seed,
    )  # fmt: skip
    if resume:
        text = prepared(output, longest)
    else:
        if (output / "train.ids").exists():
            raise ConfigError(
                f"{output} already holds a run; continue it with --resume, or choose another folder"
            )
        output.mkdir(parents=True, exist_ok=True)
        normalise = read_normaliser(normaliser)
        if start_from:
            words = Vocabulary.load(start_from / "best" / "vocabulary.txt")
        else:
            words = choose_vocabulary(texts, normalise, vocabulary, vocabulary_size)
        text = prepare(output, texts, validation, normalise, words, longest)
    torch.manual_seed(seed)
    if start_from:
        model = load_model(start_from / "best")[0]
        model.network.dropout.p = dropout
    else:
        counts = text.counts()
        sizes = frequency_bins(counts, classes or default_n_classes(len(counts)))
        model = NeuralModel(
            NetworkConfig(len(text.vocabulary), sizes, "lstm", embedding, hidden, layers, tied, dropout)
        )
        model.output.start_from_unigrams(torch.from_numpy(counts))
    run = Run(output, model.to(device), text.vocabulary, options)
    if resume:
        run.resume()
    typer.echo(describe(model, text), err=True)
    progress = run.train(text.train, text.validation, lambda entry: tqdm.write(line(entry), file=sys.stderr))
    facts = write_facts(run, progress, texts, validation, threads)
    typer.echo(json.dumps(facts) if as_json else f"best validation perplexity {progress.best_perplexity:.2f}")


def describe(model: NeuralModel, text: PreparedText) -> str:
    """What is about to be trained, in one line."""
    config = model.config
    parameters = sum(value.numel() for value in model.parameters())
    cut = f", {text.train.n_cut:,} sentences cut" if text.train.n_cut else ""
    return (
        f"{config.kind} {config.embedding_size}/{config.hidden_size} × {config.layers}, "
        f"{parameters / 1e6:.1f} M parameters, "
        f"{config.vocabulary_size:,} words in {len(config.class_sizes)} classes, "
        f"{text.train.n_words:,} training words in {len(text.train.starts):,} sentences{cut}"
    )


def line(entry: dict[str, Any]) -> str:
    """One validation for the screen."""
    return (
        f"epoch {entry['epoch']:3d}  step {entry['step']:7,}  training perplexity "
        f"{entry['training_perplexity']:8.2f}  validation {entry['validation_perplexity']:8.2f}  "
        f"{entry['seconds'] / 60:6.1f} min"
    )


def write_facts(
    run: Run, progress: Progress, texts: list[Path], validation: Path, threads: int | None
) -> dict[str, Any]:
    """Records how the model came to be beside it, for the bundle's manifest."""
    facts = {
        "network": run.model.config.to_dict() | {"class_sizes": len(run.model.config.class_sizes)},
        "options": asdict(run.options),
        "texts": [path.name for path in texts],
        "validation_text": validation.name,
        "state": "reset at every sentence",
        "validation_perplexity": round(progress.best_perplexity, 3),
        "epochs": progress.epoch,
        "steps": progress.step,
        "seconds": round(progress.seconds, 1),
        "threads": threads or torch.get_num_threads(),
        "torch": torch.__version__,
    }
    (run.folder / "best" / "training.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return facts
