"""The command ``rescorer-train vectors svd``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from rescorer.cli.options.dataclass_options import expand_options
from rescorer.cli.output import print_results_apart
from rescorer_training.cli.options import NormaliserOption, SeedOption, TextsArgument
from rescorer_training.cli.vectors.options import (
    DimensionsOption,
    MemoryOption,
    MinCountOption,
    VectorsTarget,
    WindowOption,
)
from rescorer_training.cli.vectors.outputs import open_temporary_folder, prepare_output
from rescorer_training.data.normalisation import choose_normaliser
from rescorer_training.vectors.files import write_vectors


@dataclass(frozen=True, slots=True)
class MatrixOptions:
    """How pairs of words are counted, and their matrix weighted and decomposed."""

    dimensions: DimensionsOption = 100
    window: WindowOption = 5
    min_count: MinCountOption = 5
    shift: Annotated[
        float, typer.Option(help="Subtract the logarithm of this number, 1 or more, from every value.")
    ] = 1.0
    smoothing: Annotated[
        float, typer.Option(help="Power of the counts of context words, up to 1; 1 for none.")
    ] = 0.75
    power: Annotated[
        float, typer.Option(metavar="0|0.5|1", help="Power of the singular values in the vectors.")
    ] = 0.5
    memory_mb: MemoryOption = 1024
    seed: SeedOption = 1


@expand_options
def svd_command(
    texts: TextsArgument,
    target: VectorsTarget,
    *,
    matrix: MatrixOptions,
    normaliser: NormaliserOption = None,
) -> None:
    """Compute word vectors by singular value decomposition of pointwise mutual information (PPMI).

    Pairs of words are counted on disk within --memory-mb. The matrix of all distinct pairs is then held in
    memory for the decomposition, about 50 bytes per pair.

    Example: rescorer-train vectors svd books.txt.gz -o svd.txt --dimensions 300 --window 5
    """
    from rescorer_training.vectors.cooccurrences.counting import (
        check_memory,
        check_window,
        count_cooccurrences,
    )
    from rescorer_training.vectors.cooccurrences.matrix import load_matrix
    from rescorer_training.vectors.encoded_text import prepare_text
    from rescorer_training.vectors.svd import SvdOptions, decompose

    options = SvdOptions(matrix.dimensions, matrix.shift, matrix.smoothing, matrix.power, matrix.seed)
    check_window(matrix.window)
    check_memory(matrix.memory_mb)
    chosen = choose_normaliser(normaliser)
    prepare_output(target.output)
    with open_temporary_folder(target.output) as folder:
        text = prepare_text(texts, chosen, folder, matrix.min_count)
        cells = folder / "cells"
        count_cooccurrences(text, cells, window=matrix.window, by_distance=False, memory_mb=matrix.memory_mb)
        vectors = decompose(text.words, load_matrix(cells, len(text.words)), options)
    write_vectors(target.output, vectors, target.to)
    with print_results_apart(target.output):
        typer.echo(f"{target.output}: {len(vectors):,} words, {vectors.dimensions} dimensions")
