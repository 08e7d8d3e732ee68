"""The command ``rescorer-train vectors similarity``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.render.tables import FoldingTable, print_out
from rescorer.errors import ConfigError
from rescorer_training.cli.options import JsonOption
from rescorer_training.cli.vectors.options import VectorReadingOptions, VectorsArgument
from rescorer_training.vectors.evaluation.questions import SimilaritySet, read_similarities
from rescorer_training.vectors.evaluation.similarity import Similarities, measure_similarity


@expand_options
def similarity_command(
    vectors: VectorsArgument,
    sets: Annotated[
        list[Path],
        typer.Argument(
            metavar="SET…",
            help="Files of pairs with the similarity that people gave: two words and a number per line. Of a "
            "folder, all files that end in .txt or .txt.gz.",
        ),
    ],
    *,
    reading: VectorReadingOptions,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the bootstrap.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Correlate cosines with the similarities that people gave, by Spearman's ρ.

    Words are compared in lower case. A pair with a word that has no vector is left out: "covered" is the
    share that is not. A set whose pairs are all in a larger one, such as the two halves of WordSim-353, is
    shown but does not count in the mean. Intervals have 95 %, from a bootstrap over the pairs.

    Example: rescorer-train vectors similarity vectors.bin similarity/
    """
    read = read_sets(sets)
    result = measure_similarity(reading.read(vectors), read, seed)
    if as_json:
        typer.echo(json.dumps(asdict(result)))
        return
    print_result(result)


def read_sets(paths: Sequence[Path]) -> list[SimilaritySet]:
    """Read files of pairs, and those of folders in the order of their names.

    Raises:
        ConfigError: a folder has no such file, or two sets have the same name.
    """
    sets: dict[str, SimilaritySet] = {}
    for path in paths:
        files = sorted([*path.glob("*.txt"), *path.glob("*.txt.gz")]) if path.is_dir() else [path]
        if not files:
            raise ConfigError(f"{path}: no files that end in .txt or .txt.gz; expected sets of pairs")
        for file in files:
            item = read_similarities(file)
            if item.name in sets:
                raise ConfigError(f"{file}: another set has the name {item.name!r} too; rename one")
            sets[item.name] = item
    return list(sets.values())


def print_result(result: Similarities) -> None:
    """Print a table of the sets, and their mean."""
    table = FoldingTable("set", "pairs", "covered %", "Spearman's ρ", "95 % interval")
    for row in result.sets:
        name = f"{row.name} (in {row.part_of})" if row.part_of else row.name
        correlation = "–" if row.spearman is None else f"{row.spearman:.3f}"
        covered = f"{100 * row.n_covered / row.n_pairs:.1f}"
        table.add_row(name, f"{row.n_pairs:,}", covered, correlation, format_interval(row.interval))
    n_counted = sum(row.counts for row in result.sets)
    mean = f"{result.mean:.3f}"
    table.add_row(f"mean of {n_counted}", "", "", mean, format_interval(result.interval))
    print_out(table)


def format_interval(interval: tuple[float, float] | None) -> str:
    return "–" if interval is None else f"{interval[0]:.3f} … {interval[1]:.3f}"
