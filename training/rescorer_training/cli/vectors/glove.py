"""The command ``rescorer-train vectors glove``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rescorer.cpu_count import count_cpus
from rescorer_training.cli.options import (
    NormaliserOption,
    ResumeOption,
    SeedOption,
    TextsArgument,
    ThreadsOption,
)
from rescorer_training.cli.vectors.options import (
    DimensionsOption,
    MemoryOption,
    MinCountOption,
    OutputFormatOption,
    VectorsOutputOption,
    WindowOption,
)
from rescorer_training.data.normalisation import choose_normaliser
from rescorer_training.vectors.files import write_vectors
from rescorer_training.vectors.files.formats import VectorFormat


def glove_command(
    texts: TextsArgument,
    output: VectorsOutputOption,
    folder: Annotated[
        Path, typer.Option("--run", help="Folder of the run: text as ids, co-occurrences, and state.")
    ],
    to: OutputFormatOption = VectorFormat.WORD2VEC,
    dimensions: DimensionsOption = 100,
    window: WindowOption = 10,
    min_count: MinCountOption = 5,
    epochs: Annotated[int, typer.Option(help="Number of passes over all pairs.")] = 15,
    learning_rate: Annotated[float, typer.Option(help="Learning rate of AdaGrad.")] = 0.05,
    x_max: Annotated[
        float,
        typer.Option(help="Co-occurrence from which on a pair has the full weight; rarer pairs weigh less."),
    ] = 100.0,
    alpha: Annotated[
        float, typer.Option(help="Power of the weights: a pair weighs (co-occurrence / x-max)^alpha.")
    ] = 0.75,
    block_cells: Annotated[
        int,
        typer.Option(help="Number of pairs per step. With 1, each pair sees the vectors after the last one."),
    ] = 1024,
    memory_mb: MemoryOption = 1024,
    seed: SeedOption = 1,
    normaliser: NormaliserOption = None,
    threads: ThreadsOption = None,
    resume: ResumeOption = False,
) -> None:
    """Train GloVe vectors, whose products approximate the logarithms of co-occurrences.

    A pair of words at distance d counts 1/d. With one thread the same seed gives the same vectors, also after
    an interruption; several threads change the same vectors without waiting, so that results vary a little.

    Example: rescorer-train vectors glove books.txt.gz --run runs/glove -o glove.txt --dimensions 300
    """
    # deferred, because importing torch takes seconds
    from rescorer_training.vectors.glove import run
    from rescorer_training.vectors.glove.options import GloveOptions

    options = GloveOptions(dimensions, epochs, learning_rate, x_max, alpha, block_cells, seed)
    if not resume:
        run.start_run(
            texts,
            choose_normaliser(normaliser),
            folder,
            options,
            min_count=min_count,
            window=window,
            memory_mb=memory_mb,
        )
    vectors, state = run.run(folder, options, threads or count_cpus())
    write_vectors(output, vectors, to)
    typer.echo(
        f"{output}: {len(vectors):,} words, {vectors.dimensions} dimensions; loss {state.losses[-1]:.4f} per "
        f"pair; trained in {state.seconds:,.0f} s"
    )
