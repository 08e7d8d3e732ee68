"""The commands ``rescorer-train quantise`` and ``rescorer-train average``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rescorer.evaluation.figures import format_size
from rescorer.text import Normaliser
from rescorer_training.cli.options import DeviceOption, JsonOption, NormaliserOption
from rescorer_training.data.corpus import read_sentences
from rescorer_training.data.normalisation import choose_normaliser, record_normaliser
from rescorer_training.evaluation.model_set import load_models, resolve_model_folder
from rescorer_training.evaluation.perplexity import measure
from rescorer_training.evaluation.token_scores import score_tokens

OutputOption = Annotated[Path, typer.Option("-o", "--output", help="Folder of the model to write.")]
TestOption = Annotated[Path | None, typer.Option(help="Text on which to measure the perplexities.")]


def quantise_command(
    model: Annotated[Path, typer.Argument(help="Folder of a trained network or of its run.")],
    output: OutputOption,
    precision: Annotated[
        str,
        typer.Option(
            metavar="int8|float16|float32",
            help="Precision of the stored weights; int8 has one scale per matrix row.",
        ),
    ] = "int8",
    test: TestOption = None,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Store a network's weights in fewer bits; scoring still computes in float32.

    Example: rescorer-train quantise runs/lstm -o runs/lstm-int8 --precision int8 --test test.txt
    """
    from rescorer_training.neural.postprocess import quantise  # deferred, importing torch takes seconds

    folder = resolve_model_folder(model)
    before, after = quantise(folder, output, precision)
    chosen = choose_normaliser(normaliser, [folder])
    record_normaliser(output, chosen)
    perplexities = measure_perplexities([folder, output], test, chosen, device)
    if as_json:
        facts = {"precision": precision, "bytes_before": before, "bytes": after, "perplexity": perplexities}
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"weights: {before / 1e6:.1f} → {after / 1e6:.1f} MB")
    print_perplexities(perplexities)


def average_command(
    models: Annotated[list[Path], typer.Argument(help="Folders of trained networks or of their runs.")],
    output: OutputOption,
    test: TestOption = None,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Average the weights of several networks into one network.

    The networks must have the same configuration and vocabulary. Average checkpoints of one run, or runs that
    started from the same model.

    Example: rescorer-train average runs/a runs/b runs/c -o runs/mean --test valid.txt
    """
    from rescorer_training.neural.postprocess import average  # deferred, importing torch takes seconds

    folders = [resolve_model_folder(model) for model in models]
    average(folders, output)
    chosen = choose_normaliser(normaliser, folders)
    record_normaliser(output, chosen)
    perplexities = measure_perplexities([*folders, output], test, chosen, device)
    if as_json:
        typer.echo(json.dumps({"models": [str(folder) for folder in folders], "perplexity": perplexities}))
        return
    typer.echo(f"{output}: average of {len(folders)} models")
    print_perplexities(perplexities)


def measure_perplexities(
    folders: list[Path], test: Path | None, normaliser: Normaliser, device: str
) -> dict[str, float]:
    """Return the perplexity of each model by its folder; empty if there is no text."""
    if test is None:
        return {}
    words = list(read_sentences([test], normaliser))
    perplexities = {}
    for folder in folders:
        models = load_models(None, (), [folder], device=device)
        scores = score_tokens(models.models, words, f"scoring {folder}", in_order=True)
        perplexities[str(folder)] = measure(scores).models["neural"].shared
    return perplexities


def print_perplexities(perplexities: dict[str, float]) -> None:
    """Print one line per model."""
    for folder, value in perplexities.items():
        typer.echo(f"perplexity {format_size(value, 3)}  {folder}")
