"""Owns the commands ``rescorer-train quantise`` and ``rescorer-train average``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rescorer_training.cli.options import DeviceOption, NormaliserOption, read_normaliser
from rescorer_training.data.corpus import sentences
from rescorer_training.evaluation.model_set import load_models, resolve_model_folder
from rescorer_training.evaluation.perplexity import measure
from rescorer_training.evaluation.token_scores import score_tokens

OutputOption = Annotated[Path, typer.Option("-o", "--output", help="Folder of the model to write.")]
TestOption = Annotated[Path | None, typer.Option(help="Text to measure perplexities on.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]


def quantise_command(
    model: Annotated[Path, typer.Argument(help="Folder of a trained network, or of its run.")],
    output: OutputOption,
    precision: Annotated[str, typer.Option(help="int8 (a scale a row), float16 or float32.")] = "int8",
    test: TestOption = None,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Store a network's weights in fewer bits; scoring goes on in float32.

    Example: rescorer-train quantise runs/lstm -o runs/lstm-int8 --precision int8 --test test.txt
    """
    from rescorer_training.neural.postprocess import quantise  # torch takes seconds to import

    folder = resolve_model_folder(model)
    before, after = quantise(folder, output, precision)
    figures = perplexities([folder, output], test, normaliser, device)
    if as_json:
        facts = {"precision": precision, "bytes_before": before, "bytes": after, "perplexity": figures}
        typer.echo(json.dumps(facts))
        return
    typer.echo(f"weights: {before / 1e6:.1f} → {after / 1e6:.1f} MB")
    tell(figures)


def average_command(
    models: Annotated[list[Path], typer.Argument(help="Folders of trained networks, or of their runs.")],
    output: OutputOption,
    test: TestOption = None,
    normaliser: NormaliserOption = None,
    device: DeviceOption = "cpu",
    as_json: JsonOption = False,
) -> None:
    """Make one network whose weights are the means of several networks' weights.

    They must have one config and one vocabulary: checkpoints of a run, or runs that started from one model.

    Example: rescorer-train average runs/a runs/b runs/c -o runs/mean --test valid.txt
    """
    from rescorer_training.neural.postprocess import average  # torch takes seconds to import

    folders = [resolve_model_folder(model) for model in models]
    average(folders, output)
    figures = perplexities([*folders, output], test, normaliser, device)
    if as_json:
        typer.echo(json.dumps({"models": [str(each) for each in folders], "perplexity": figures}))
        return
    typer.echo(f"{output}: the mean of {len(folders)} models")
    tell(figures)


def perplexities(
    folders: list[Path], test: Path | None, normaliser: str | None, device: str
) -> dict[str, float]:
    """Perplexity of each model on the text, by its folder; none where there is no text."""
    if test is None:
        return {}
    words = list(sentences([test], read_normaliser(normaliser)))
    figures = {}
    for folder in folders:
        models = load_models(None, (), [folder], device=device)
        scores = score_tokens(models.models, words, f"scoring {folder}", in_order=True)
        figures[str(folder)] = measure(scores).models["neural"].shared
    return figures


def tell(figures: dict[str, float]) -> None:
    """A line a model, for people."""
    for folder, value in figures.items():
        typer.echo(f"perplexity {value:,.3f}  {folder}")
